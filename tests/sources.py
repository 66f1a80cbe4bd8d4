"""The package's sources as syntax trees, for the checks that look at how it is written."""

from __future__ import annotations

import ast
import functools
import gc
from collections import deque
from collections.abc import Iterator
from pathlib import Path

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file, once; the collector would look through all trees again and again while they grow."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        if was_enabled:
            gc.enable()


def statements_below(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and every statement at whatever depth, handlers and cases too, but no expression.

    ``ast.walk`` visits ten times as many nodes. Imports, functions and docstrings are statements.
    """
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):  # the body of a lambda is an expression
                waiting.extend(block)
