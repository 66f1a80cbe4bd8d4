"""Imports only go down, between packages and between files, and files stay of a size to read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import chatstack
from tests.sources import statements_below, tree_of

ROOT = Path(chatstack.__file__).parent

ORDER = (
    *("forks", "lru", "semconv", "values", "errors", "paths"),
    *("client", "plugins", "tokens", "telemetry"),
    *("stack", "providers"),
    *("context/edits", "context/shapes", "context/histories", "context/memory", "context/requests"),
    *("context/decisions", "context", "context/summaries", "context/strategies"),
    *("tools", "layers", "loop"),
    *("nodes", "config", "stores", "testing", "di"),
    *("cli", "workbench", "live", "__main__"),
)
"""The parts of the package, and the rooms of the largest, from the ground up: each imports only those before it."""

LONGEST_FILE = 350
LONGEST_FUNCTION = 60


class Import(NamedTuple):
    """One import of ours, at whatever depth: in a function, or for type checkers only."""

    file: str
    line: int
    module: str


def imports_below(root: Path) -> Iterator[Import]:
    for path in sorted(root.rglob("*.py")):
        if path == root / "__init__.py":
            continue
        file = path.relative_to(root).as_posix()
        for node in statements_below(tree_of(path)):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                names = [f"chatstack.{each.name}" for each in node.names] if module == "chatstack" else [module]
            else:
                continue
            yield from (Import(file, node.lineno, name) for name in names if name.split(".")[0] in ("chatstack", ""))


def upward(root: Path) -> list[str]:
    """Say of each import that does not go down where it stands, and why it may not be there."""
    return [f"{each.file}:{each.line}: {told}" for each in imports_below(root) if (told := _objection(each))]


def _objection(imported: Import) -> str:
    here = _part_of(imported.file.removesuffix(".py"))
    there = _part_of("/".join(imported.module.split(".")[1:]))
    if here not in ORDER:
        return f"where does {here!r} belong? Add it to ORDER"
    if imported.module.startswith("."):
        return f"{imported.module} is a relative import"
    if there not in ORDER:  # a public name would hide in which part it lives
        return f"{imported.module} is for users and examples; import the module"
    if ORDER.index(there) > ORDER.index(here):
        return f"{imported.module} goes up: {there!r} stands above {here!r}"
    return ""


def _part_of(path: str) -> str:
    room = "/".join(path.split("/")[:2])
    return room if room in ORDER else room.split("/")[0]


def circle_of_files(root: Path) -> list[str]:
    """Return the files of a circle of imports, its first one again at the end; nothing if there is none."""
    files = {path.relative_to(root).as_posix() for path in root.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for each in imports_below(root):
        stem = "/".join(each.module.split(".")[1:])
        found = next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if name in files), None)
        if found is not None:
            graph.setdefault(each.file, set()).add(found)
    return _circle(graph)


def _circle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_only_go_down() -> None:
    found = upward(ROOT)
    assert not found, "\n".join(found)


def test_no_files_import_one_another_in_a_circle() -> None:
    circle = circle_of_files(ROOT)
    assert not circle, " <- ".join(circle)


def test_every_part_of_the_package_has_its_place_in_the_order() -> None:
    parts = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    rooms = {f"context/{path.name}" for path in (ROOT / "context").iterdir() if path.is_dir()}
    assert (parts | rooms) - {"__init__", "__pycache__", "context/__pycache__"} == set(ORDER)


def test_what_is_wrong_with_an_import_is_told(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from chatstack.live import LiveView",
        "values/parts.py": "def f():\n    from chatstack.cli import main\n    import chatstack.workbench.demo.show",
        "client/stream.py": "from chatstack import Message\nfrom .protocol import ChatClient",
        "nowhere.py": "import chatstack.errors",
        "context/a.py": "import chatstack.context.b",
        "context/b.py": "if TYPE_CHECKING:\n    from chatstack.context.a import A",
        "context/edits/c.py": "import chatstack.context.run",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert upward(tmp_path) == [
        "client/stream.py:1: chatstack.Message is for users and examples; import the module",
        "client/stream.py:2: .protocol is a relative import",
        "context/edits/c.py:1: chatstack.context.run goes up: 'context' stands above 'context/edits'",
        "nowhere.py:1: where does 'nowhere' belong? Add it to ORDER",
        "values/parts.py:2: chatstack.cli goes up: 'cli' stands above 'values'",
        "values/parts.py:3: chatstack.workbench.demo.show goes up: 'workbench' stands above 'values'",
    ]
    assert set(circle_of_files(tmp_path)) == {"context/a.py", "context/b.py"}


def test_a_file_can_be_read_at_one_sitting() -> None:
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {name: lines for name, lines in sizes.items() if lines > LONGEST_FILE} == {}


def test_a_function_can_be_read_at_one_glance() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines"
        for path in ROOT.rglob("*.py")
        for node in statements_below(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_every_module_says_what_it_is() -> None:
    modules = {path.relative_to(ROOT).as_posix(): tree_of(path) for path in ROOT.rglob("*.py")}
    assert [name for name, tree in modules.items() if not (ast.get_docstring(tree) or "").strip()] == []


def test_no_module_is_named_for_a_pattern() -> None:
    forbidden = {"utils", "util", "helpers", "base", "core", "common", "manager", "misc"}
    modules = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    assert [path.as_posix() for path in modules if {path.stem, path.parent.name} & forbidden] == []
