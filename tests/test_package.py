"""The package as a whole: names, type hints, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import chatstack
from chatstack.providers.registry import PROVIDERS
from tests.type_checkers import CHECKERS, lines_with_errors

ROOT = Path(chatstack.__file__).parent

HEAVY = (
    *sorted({provider.sdk for provider in PROVIDERS.values()}),
    "httpx",
    "httpx2",
    "pydantic",
    "opentelemetry.sdk",
    "rich",
    "genai_prices",
    "yaml",
    "bpe_openai",
    "injectq",
    "dependency_injector",
)


@pytest.mark.parametrize("name", chatstack._HOME_OF)
def test_every_public_name_resolves(name: str) -> None:
    home = next(module for module, names in chatstack._HOMES.items() if name in names)
    assert getattr(chatstack, name) is getattr(importlib.import_module(home), name)


def test_no_public_name_has_two_homes() -> None:
    names = [name for each in chatstack._HOMES.values() for name in each]
    assert len(names) == len(set(names))


def test_the_lazy_names_agree_with_those_that_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    seen: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("chatstack."):
            for each in node.names:
                assert each.asname == each.name, f"{each.name}: re-exported only as `X as X`"
                seen[each.name] = node.module
    homes = {name: home for home, names in chatstack._HOMES.items() for name in names}
    differ = sorted(name for name in {*seen, *homes} if seen.get(name) != homes.get(name))
    assert not differ, f"{differ}: chatstack/__init__.py has to name them under TYPE_CHECKING and in _HOMES, alike"


def test_a_star_import_gives_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from chatstack import *", names)
    assert set(names) - {"__builtins__"} == set(chatstack._HOME_OF)


STARRED = """
from chatstack import *
message: Message = Message.user("x")
Usage("one")  # refused
print(importlib.metadata, _HOMES)  # refused
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_know_the_names_of_a_star_import(checker: str, tmp_path: Path) -> None:
    refused = {at for at, line in enumerate(STARRED.splitlines(), 1) if "# refused" in line}
    assert lines_with_errors(checker, STARRED, tmp_path, mode="standard") == refused


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'chatstack' has no attribute 'Mesage'"):
        _ = chatstack.Mesage


def test_dir_lists_every_public_name() -> None:
    assert set(chatstack._HOME_OF) <= set(dir(chatstack))


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after running that code."""
    script = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    return set(ran.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import chatstack") == set()


def test_touching_every_public_name_loads_nothing_heavy() -> None:
    assert loaded_after("import chatstack\nfor name in chatstack.__all__: getattr(chatstack, name)") == set()


def test_importing_the_package_alone_does_not_even_load_opentelemetry_or_msgspec() -> None:
    script = "import sys, chatstack\nprint('opentelemetry' in sys.modules, 'msgspec' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.split() == ["False", "False"]


PUBLIC_CLASSES = [name for name in chatstack._HOME_OF if inspect.isclass(getattr(chatstack, name))]


@pytest.mark.parametrize("name", PUBLIC_CLASSES)
def test_the_hints_of_every_public_class_resolve_at_run_time(name: str) -> None:
    """Containers read them."""
    kind = getattr(chatstack, name)
    hints = typing.get_type_hints(kind)
    assert not [hint for hint in hints.values() if isinstance(hint, str | typing.ForwardRef)]
    if inspect.isfunction(kind.__init__):
        parameters = [each for each in inspect.signature(kind.__init__).parameters if each != "self"]
        assert set(parameters) <= set(typing.get_type_hints(kind.__init__)) | {"args", "kwargs"}


@pytest.mark.parametrize("name", PUBLIC_CLASSES)
def test_every_public_class_says_what_it_is(name: str) -> None:
    doc = getattr(chatstack, name).__doc__
    assert doc
    assert not doc.startswith(f"{name}("), "the docstring that dataclasses make up"


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "py.typed").is_file()
