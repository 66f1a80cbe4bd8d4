"""The words of docstrings: they begin with a verb or a noun, and their lines of summary say something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import chatstack
from tests.sources import statements_below, tree_of

ROOT = Path(chatstack.__file__).parent

CLAUSE = re.compile(r"(What(ever)?|Whether|How|Who(ever|se)?|Which(ever)?|Where|When|Why|Told|Asked|Those|That|If)\b")


def docstrings(root: Path) -> Iterator[tuple[str, str]]:
    """All docstrings below a folder with their places, those of attributes and constants included."""
    for path in sorted(root.rglob("*.py")):
        for node in statements_below(tree_of(path)):
            body = getattr(node, "body", None)
            if not isinstance(body, list):
                continue
            named = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            for at, statement in enumerate(body):
                follows = at > 0 and isinstance(body[at - 1], ast.Assign | ast.AnnAssign)
                if (follows or (named and at == 0)) and isinstance(statement, ast.Expr):
                    value = statement.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield f"{path.relative_to(root).as_posix()}:{statement.lineno}", value.value.strip()


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings(ROOT) if CLAUSE.match(text)]
    assert not found, "\n".join(["begin with a verb or a noun, not with a clause:", *found])


def test_a_clause_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Things."""\nX = 1\n"""What is asked of it."""\n\ndef f():\n    """Return X."""\n'
    )
    assert [(place, bool(CLAUSE.match(text))) for place, text in docstrings(tmp_path)] == [
        ("a.py:1", False),
        ("a.py:3", True),
        ("a.py:6", False),
    ]
