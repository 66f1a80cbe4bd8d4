"""One tree of errors, drawn in the module's docstring; all of them can be pickled."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path

import pytest

import chatstack
from chatstack import errors
from chatstack.errors import (
    BudgetExceeded,
    ChatStackError,
    ContextOverflowError,
    FallbackError,
    ProviderError,
    RateLimitError,
    ServerError,
    WiringError,
)
from tests.type_checkers import CHECKERS, lines_with_errors

KINDS: tuple[type[ChatStackError], ...] = tuple(
    each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, ChatStackError)
)

ALSO = {
    "InputError": ValueError,
    "MissingFileError": FileNotFoundError,
    "ToolTimeoutError": TimeoutError,
    "TurnTimeoutError": TimeoutError,
    "ProviderTimeoutError": TimeoutError,
}


def made(kind: type[ChatStackError]) -> ChatStackError:
    """One with every keyword argument given."""
    if kind is ContextOverflowError:
        return ContextOverflowError(120, 100, message="too long", provider="openai", status=400, code="length")
    if kind is FallbackError:
        return FallbackError("nobody", [ServerError("no", provider="openai", status=503), RateLimitError("slow")])
    values = {"layer": "L", "parameter": "p", "messages": ("m",), "provider": "openai", "status": 418, "code": "teapot"}
    values |= {"retry_after_seconds": 1.5, "link": b"link"}
    wanted = inspect.signature(kind.__init__).parameters
    return kind("what happened", **{name: value for name, value in values.items() if name in wanted})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickle_with_all_that_it_says(kind: type[ChatStackError]) -> None:
    error = made(kind)
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is kind
    assert str(restored) == str(error)
    assert restored.args == error.args
    assert vars(restored) == vars(error)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_can_be_copied(kind: type[ChatStackError]) -> None:
    error = made(kind)
    assert vars(copy.copy(error)) == vars(error)
    assert str(copy.deepcopy(error)) == str(error)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_in_the_drawing_under_its_parent_and_ends_in_error(kind: type[ChatStackError]) -> None:
    assert kind.__name__.endswith("Error") or kind is BudgetExceeded  # it is no failure of anything
    depths = {
        line.strip("│├└─ ").split()[0]: len(line) - len(line.lstrip("│├└─ "))
        for line in (errors.__doc__ or "").splitlines()
        if line.startswith("    ") and line.strip("│├└─ ")
    }
    own = [each for each in kind.__mro__ if each in KINDS]
    assert depths[kind.__name__] == depths["ChatStackError"] + 4 * (len(own) - 1)


@pytest.mark.parametrize(("name", "builtin"), ALSO.items())
def test_some_errors_are_also_the_builtin_one_that_people_catch(name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), builtin)


def test_a_wiring_error_names_the_place() -> None:
    error = WiringError("no", layer="Guard", parameter="limit")
    assert (error.layer, error.parameter) == ("Guard", "limit")
    assert (WiringError("no").layer, WiringError("no").parameter) == ("", "")


def test_a_provider_error_says_who_and_how() -> None:
    error = ProviderError("no", provider="openai", status=503, code="overloaded")
    assert (error.provider, error.status, error.code) == ("openai", 503, "overloaded")


def test_a_rate_limit_says_when_to_come_back_if_it_was_told() -> None:
    assert RateLimitError("slow down").retry_after_seconds is None
    assert RateLimitError("slow down", retry_after_seconds=2.5).retry_after_seconds == 2.5
    assert RateLimitError("slow down").status == 429


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ContextOverflowError(130_000, 128_000), "the request does not fit: 130,000 of 128,000 tokens"),
        (
            ContextOverflowError(),
            "the request does not fit: an unknown number of an unknown number tokens",
        ),
        (ContextOverflowError(5, 4, message="own words"), "own words"),
        (ContextOverflowError("own words"), "own words"),
        (ContextOverflowError("words", limit=4, message="own words"), "own words"),
        (ContextOverflowError("own words", actual=5, limit=4), "own words"),
        (ContextOverflowError(actual=5, limit=4), "the request does not fit: 5 of 4 tokens"),
    ],
)
def test_an_overflow_says_the_sizes_that_are_known(error: ContextOverflowError, said: str) -> None:
    assert str(error) == said


def test_an_overflow_with_text_in_first_place_has_no_size() -> None:
    error = pickle.loads(pickle.dumps(ContextOverflowError("too long", limit=4, provider="mine")))
    assert (error.actual, error.limit, error.provider) == (None, 4, "mine")


def test_the_size_of_an_overflow_is_given_by_name_beside_text() -> None:
    error = pickle.loads(pickle.dumps(ContextOverflowError("too long", actual=5, limit=4)))
    assert (error.actual, error.limit) == (5, 4)


def test_an_error_keeps_its_cause() -> None:
    with pytest.raises(ProviderError) as caught:
        raise ProviderError("no") from KeyError("k")
    assert isinstance(caught.value.__cause__, KeyError)


def test_every_error_of_the_tree_can_be_imported_from_the_top() -> None:
    tree = {
        name for name, each in vars(errors).items() if isinstance(each, type) and each.__module__ == errors.__name__
    }
    assert tree <= set(chatstack._HOME_OF)
    assert all(name in (errors.__doc__ or "") for name in tree - {"ProviderError"})


TYPED = """
from typing import assert_type
from chatstack import BudgetExceeded, ChatResponse, ChatStackError, InputError, Message, OutputError, Usage

def go_on(history: list[Message], error: Exception) -> None:
    if isinstance(error, OutputError):
        assert_type(error.response, ChatResponse | None)
    elif isinstance(error, BudgetExceeded):
        history += error.messages
        assert_type(error.usage, Usage | None)
        print([message.txt for message in error.messages])  # refused
    elif isinstance(error, InputError):
        assert_type(error.messages, tuple[Message, ...])
    elif isinstance(error, ChatStackError):
        assert_type(error.messages, tuple[Message, ...])
        assert_type(error.overhead_usage, Usage | None)

raised: list[ChatStackError] = [InputError("no"), OutputError("no"), BudgetExceeded("no", usage=Usage(1))]
BudgetExceeded("no", messages=("text",))  # refused
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_knows_what_an_error_carries(checker: str, tmp_path: Path) -> None:
    refused = {at for at, line in enumerate(TYPED.splitlines(), 1) if "# refused" in line}
    assert lines_with_errors(checker, TYPED, tmp_path) == refused
