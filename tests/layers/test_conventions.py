"""Conventions: what every public layer has in common, checked on each class that a config can name."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import chatstack
from chatstack import ChatClient, LayerKind, WiringError
from chatstack.client.hints import hints_of, members
from chatstack.client.protocol import LAYER_KINDS
from chatstack.config.recipes import LAYERS
from chatstack.testing import ScriptedClient
from tests.needed_options import NEEDED

LAYER_CLASSES: list[Any] = [
    kind for name in LAYERS if isinstance(kind := getattr(chatstack, name, None), type) and hasattr(kind, "send")
]
NOT_PUBLIC = {"WindowKeeper", "StrategyApplier", "_DuplicateReferrer"}
"""Classes that wrap a client, and are made by others: by a strategy, by a layer."""

BINDING = Path(chatstack.__file__).parents[1] / "docs" / "how-to" / "any-container.md"


def options_of(kind: type) -> dict[str, object]:
    """Return the options without which a layer cannot be made; clients as clients."""
    needed = NEEDED.get(kind.__name__, {})
    return {**needed, "clients": [ScriptedClient(["x"])]} if "clients" in needed else needed


def test_there_are_layers_to_look_at() -> None:
    assert {kind.__name__ for kind in LAYER_CLASSES} >= {"ContextWindowGuard", "Budget", "FunctionInvoker"}


@pytest.mark.parametrize("kind", LAYER_CLASSES)
def test_a_layer_is_frozen_and_takes_its_client_first_and_all_else_by_name(kind: Any) -> None:
    fields = [each for each in dataclasses.fields(kind) if each.init]
    assert kind.__dataclass_params__.frozen, "@dataclass(frozen=True): state of a conversation lives in services"
    assert fields[0].name == "inner", "the wrapped client comes first"
    assert not fields[0].kw_only
    assert [each.name for each in fields[1:] if not each.kw_only] == [], "put `_: KW_ONLY` behind inner"
    assert "__slots__" in vars(kind), "@dataclass(slots=True)"
    assert not kind.__dataclass_params__.eq, "@dataclass(eq=False): a layer is equal to itself alone"


@pytest.mark.parametrize("kind", LAYER_CLASSES)
def test_a_layer_says_what_it_is(kind: Any) -> None:
    found: LayerKind | str = kind.kind
    assert found in LAYER_KINDS


@pytest.mark.parametrize("kind", LAYER_CLASSES)
def test_a_layer_without_a_client_says_how_it_is_used(kind: Any) -> None:
    with pytest.raises(WiringError, match=r"\.use\("):
        kind(**options_of(kind))


def bounds(kind: Any) -> Iterator[tuple[str, object]]:
    """Each option that has a bound, with a value beyond it."""
    for name, hint in hints_of(kind).items():
        for member in (hint, *members(hint)):
            for meta in getattr(member, "__metadata__", ()):
                if isinstance(meta, msgspec.Meta) and (meta.ge is not None or meta.gt is not None):
                    yield name, (meta.ge if meta.ge is not None else meta.gt or 0) - 1


@pytest.mark.parametrize("kind", LAYER_CLASSES)
def test_a_value_beyond_a_bound_is_refused_by_the_constructor_with_the_options_name(kind: Any) -> None:
    for name, value in dict(bounds(kind)).items():
        with pytest.raises(WiringError) as caught:
            kind(ScriptedClient(["x"]), **{**options_of(kind), name: value})
        assert kind.__name__ in str(caught.value)
        assert name in str(caught.value)


def test_most_layers_have_bounds() -> None:
    assert sum(bool(dict(bounds(kind))) for kind in LAYER_CLASSES) >= 5


def test_every_class_that_wraps_a_client_is_public() -> None:
    root = Path(chatstack.__file__).parent
    found = {
        node.name
        for path in (*(root / "layers").glob("*.py"), *(root / "tools").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any(_is_inner(each) for each in node.body)
    }
    missing = found - set(chatstack._HOME_OF) - NOT_PUBLIC
    assert not missing, f"{missing}: add them to chatstack/__init__.py, or to NOT_PUBLIC here"


@pytest.mark.parametrize("kind", LAYER_CLASSES)
def test_the_services_of_a_layer_are_public_and_told_to_those_who_bind_them(kind: Any) -> None:
    hints = [each for hint in hints_of(kind).values() for each in members(hint)]
    services = {each.__name__ for each in hints if isinstance(each, type) and hasattr(each, "shared_by_stack")}
    missing = services - set(chatstack._HOME_OF)
    assert not missing, f"{missing}: a container binds them by their class: add them to chatstack/__init__.py"
    untold = {name for name in services if f"`{name}`" not in BINDING.read_text(encoding="utf-8")}
    assert not untold, f"{untold}: say in {BINDING.name} what they are for, under 'What a stack asks for'"


def _is_inner(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.target.id == "inner"
        and ast.unparse(statement.annotation) == ChatClient.__name__
    )
