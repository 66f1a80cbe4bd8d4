"""An option is declared once, and checked, shown and made a key of from there."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from chatstack import (
    Budget,
    ChatClient,
    ContextServices,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    ModelTracer,
    ProgressReporter,
    Telemetry,
    WiringError,
)
from chatstack.client.hints import hints_of, is_plain
from chatstack.client.options import (
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Share,
    ShareOrZero,
    check_options,
    check_value,
    options_key,
    short_repr,
    wanted,
)
from chatstack.config.recipes import LAYERS
from chatstack.testing import ScriptedClient
from chatstack.tokens.counter import CharCounter, TokenCounter

Size = Annotated[Mapping[str, int | float], OneOf(tokens=PositiveInt, share=Share)]


@dataclass(frozen=True)
class Layer:
    inner: ChatClient
    _: KW_ONLY
    most: PositiveInt | None = None
    share: Share = 0.5
    size: Size = field(default_factory=lambda: {"tokens": 5})
    secret: Literal["a", "b"] = field(default="a", repr=False)
    counter: TokenCounter | None = None

    def __post_init__(self) -> None:
        check_options(self)


def layer(**options: Any) -> Layer:
    return Layer(ScriptedClient(), **options)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (PositiveInt, "a whole number, at least 1"),
        (PositiveInt | None, "a whole number, at least 1, or None"),
        (NonNegativeInt | Literal["pays"], "a whole number, at least 0, or 'pays'"),
        (Share, "a number greater than 0, at most 1"),
        (ShareOrZero, "a number from 0 to 1"),
        (PositiveFloat | Decimal | None, "a number greater than 0, a Decimal, or None"),
        (Literal["a", "b", "c"], "'a', 'b' or 'c'"),
        (bool, "True or False"),
        (str | None, "text or None"),
        (Annotated[str, Meta(min_length=1)], "text that is not empty"),
        (Annotated[Sequence[str], Meta(description="a list of names")], "a list of names"),
    ],
)
def test_a_hint_says_in_words_what_it_wants(hint: object, words: str) -> None:
    assert wanted(hint) == words


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (PositiveInt | None, (None, 1, 10**9, 10**30), (0, -1, 1.5, 4_000.0, True, False, "4000", [4_000])),
        (PositiveFloat, (1, 0.5, 1e300), (0, -1, True, "5", float("nan"), float("inf"), None)),
        (PositiveFloat | Decimal | None, (None, 3, Decimal("0.1")), (Decimal(0), Decimal("NaN"), Decimal("sNaN"), "3")),
        (Sequence[str], (["a"], ("a",), {"a"}), ("a", [1], None)),
        (str | Callable[[], str], ("a", len), ()),
    ],
)
def test_a_value_fits_or_does_not(hint: object, good: Collection[object], bad: Collection[object]) -> None:
    for value in good:
        check_value("Layer", "most", value, hint)
    for value in bad:
        with pytest.raises(WiringError, match=f"^Layer: most={re.escape(repr(value))} must be ") as caught:
            check_value("Layer", "most", value, hint)
        assert (caught.value.layer, caught.value.parameter) == ("Layer", "most")


def test_an_error_names_the_very_entry_of_a_table_and_quotes_no_secret() -> None:
    with pytest.raises(
        WiringError, match=r"^Layer: size\.share=2 must be a number greater than 0, at most 1$"
    ) as caught:
        layer(size={"share": 2})
    assert caught.value.parameter == "size.share"
    with pytest.raises(WiringError, match=r'^Layer: size=5 must be exactly one of {"tokens": n} and {"share": x}$'):
        layer(size=5)
    with pytest.raises(WiringError, match=r"^Layer: secret=<class 'str'> must be 'a' or 'b'$"):
        layer(secret="hunter2")


@pytest.mark.parametrize("name", LAYERS)
def test_every_default_would_be_accepted(name: str) -> None:
    kind = getattr(importlib.import_module(LAYERS[name]), name)
    hints = hints_of(kind)
    for each in fields(kind):
        if each.init and isinstance(each.default, bool | int | float | str) and is_plain(hints[each.name]):
            check_value(name, each.name, each.default, hints[each.name])


SERVICES = [
    (ContextWindowGuard, "services", {"max_context_tokens": 9}),
    (Fallback, "services", {"clients": [ScriptedClient()]}),
    (Budget, "spending", {"max_tokens": 9}),
    (ModelTracer, "telemetry", {}),
    (FunctionInvoker, "telemetry", {}),
    (ProgressReporter, "feed", {}),
]


@pytest.mark.parametrize("given", [None, True, "abc", Telemetry])
@pytest.mark.parametrize(("layer", "name", "needed"), SERVICES)
def test_a_service_of_another_class_is_named(layer: Any, name: str, needed: dict[str, Any], given: object) -> None:
    with pytest.raises(WiringError, match=rf"{layer.__name__}: {name}=.* must be a ") as caught:
        layer(ScriptedClient(), **needed, **{name: given})
    assert caught.value.parameter == name


def test_a_part_of_the_services_of_another_class_is_named() -> None:
    with pytest.raises(WiringError, match=r"ContextServices: memory=.* must be a ContextMemory"):
        ContextServices(memory={})  # type: ignore[arg-type]


def test_half_a_character_in_the_place_of_an_option_is_named() -> None:
    with pytest.raises(WiringError, match=r"ContextWindowGuard: strict='\\ud800' must be True or False"):
        ContextWindowGuard(ScriptedClient(), max_context_tokens=9, strict="\ud800")  # type: ignore[arg-type]


def test_the_short_repr_names_what_differs_from_the_defaults() -> None:
    assert short_repr(layer()) == "Layer()"
    assert short_repr(layer(most=5, secret="b", size={"tokens": 5})) == "Layer(most=5)"


def test_a_key_has_what_differs_in_one_form_and_nothing_that_comes_from_elsewhere() -> None:
    assert options_key(layer(counter=CharCounter(3))) == "Layer/1:{}"
    assert (
        options_key(layer(share=1, most=7)) == options_key(layer(most=7, share=1.0)) == 'Layer/1:{"most":7,"share":1.0}'
    )


@dataclass
class Words:
    version = 3
    words: Collection[str] = ()
    allows: Callable[[str], bool] | None = None
    deepest: object = None


def test_a_key_holds_any_value_and_a_version() -> None:
    assert options_key(Words({"b", "a"})) == 'Words/3:{"words":["a","b"]}'
    assert options_key(Words(allows=str.isupper)) == """Words/3:{"allows":"<method 'isupper' of 'str' objects>"}"""
    for value in (10**30, "\ud800", {(1, 2): 3}):
        assert options_key(Words(deepest=value)) not in (options_key(Words()), options_key(Words(deepest="x")))
