"""The package as a whole: floors, names, type hints, sizes, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import chatstack

ROOT = Path(chatstack.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

FLOORS = {
    "errors": 0,
    "semconv": 0,
    "values": 0,
    "client": 1,
    "tokens": 1,
    "telemetry": 1,
    "context": 2,
    "layers": 3,
    "tools": 3,
    "loop": 3,
    "providers": 4,
    "stores": 4,
    "nodes": 4,
    "config": 4,
    "plugins": 4,
    "testing": 4,
    "live": 5,
    "di": 5,
    "replay": 5,
    "cli": 5,
    "demo": 5,
    "__main__": 5,
}

HEAVY = (
    "openai",
    "anthropic",
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

LONGEST_FILE = 350
LONGEST_FUNCTION = 60


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(module: str) -> str:
    """The top-level part of the package that a module belongs to; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every import of ours, at whatever depth, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((each.name, node.lineno) for each in node.names if each.name.split(".")[0] == "chatstack")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)}:{node.lineno}: a relative import"
            if node.module == "chatstack":
                yield from ((f"chatstack.{each.name}", node.lineno) for each in node.names)
            elif node.module is not None and node.module.startswith("chatstack."):
                yield node.module, node.lineno


def floor_of(path: Path) -> int:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert part in FLOORS, f"{named(path)}: which floor is {part!r} on? Add it to FLOORS"
    return FLOORS[part]


INSIDE = [path for path in MODULES if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", INSIDE, ids=named)
def test_imports_only_go_down(path: Path) -> None:
    floor = floor_of(path)
    upward = [
        f"line {line}: {module}" for module, line in imports_of(path) if FLOORS.get(part_of(module), floor) > floor
    ]
    assert upward == []


def test_an_import_inside_a_function_counts(tmp_path: Path) -> None:
    module = tmp_path / "late.py"
    module.write_text("def f():\n    from chatstack.cli import main\n    import chatstack.demo.show\n")
    assert sorted(imports_of(module)) == [("chatstack.cli", 2), ("chatstack.demo.show", 3)]


@pytest.mark.parametrize("path", INSIDE, ids=named)
def test_the_package_itself_is_imported_by_examples_and_users_only(path: Path) -> None:
    """``from chatstack import Message`` inside the package would hide on which floor it lives."""
    assert [module for module, _ in imports_of(path) if part_of(module) not in FLOORS] == []


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_file_can_be_read_at_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_function_can_be_read_at_one_glance(path: Path) -> None:
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert (ast.get_docstring(ast.parse(path.read_text())) or "").strip()


def test_no_module_is_named_for_a_pattern() -> None:
    forbidden = {"utils", "util", "helpers", "base", "core", "common", "manager", "misc"}
    assert [named(path) for path in MODULES if {path.stem, path.parent.name} & forbidden] == []


@pytest.mark.parametrize("name", chatstack.__all__)
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
    assert seen == {name: home for home, names in chatstack._HOMES.items() for name in names}


def test_a_star_import_gives_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from chatstack import *", names)
    assert set(chatstack.__all__) <= set(names)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'chatstack' has no attribute 'Mesage'"):
        _ = chatstack.Mesage


def test_dir_lists_every_public_name() -> None:
    assert set(chatstack.__all__) <= set(dir(chatstack))


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


PUBLIC_CLASSES = [name for name in chatstack.__all__ if inspect.isclass(getattr(chatstack, name))]


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
