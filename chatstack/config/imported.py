"""Import the tools that a config names by their import path: ``"package.module:function"``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Sequence
from typing import cast

from chatstack import plugins
from chatstack.config.values import key_shown, kind_of, nearest_to, shown
from chatstack.errors import WiringError

NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
"""``package.module:function``, or ``package.module:holder.function``."""


def with_tools_imported(value: object, allowed: Collection[str] | None, here: str) -> object:
    """Return the value with each name in a list replaced by the object it names. ``allowed`` lists the names that may
    be imported; None allows any. Raises ``WiringError`` with the place of the wrong name."""
    if not isinstance(value, list | tuple):
        return value
    given = cast("Sequence[object]", value)
    return [
        _imported(each, allowed, f"{here}[{number}]") if isinstance(each, str) else each
        for number, each in enumerate(given)
    ]


def _imported(name: str, allowed: Collection[str] | None, here: str) -> object:
    if allowed is not None and name not in allowed:
        told = ", ".join(sorted(allowed)) or "none"
        raise WiringError(f"{here}: {shown(name)} is not allowed in this config; allowed: {told}", parameter="tools")
    if not re.fullmatch(NAME, name):
        raise WiringError(f"{here}: {shown(name)} names no tool; write 'package.module:function'", parameter="tools")
    module, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        told = f"{key_shown(module)} cannot be imported: {plugins.told(error)}"
        raise WiringError(f"{here}: {told}; it has to be installed, or on PYTHONPATH", parameter="tools") from error
    for part in path.split("."):
        if not hasattr(found, part):
            told = f"there is no {key_shown(path)} in {key_shown(module)}; {nearest_to(part, _names_in(found))}"
            raise WiringError(f"{here}: {told}", parameter="tools")
        found = getattr(found, part)
    if not callable(found):
        raise WiringError(f"{here}: {shown(name)} is {kind_of(found)}, which is no function", parameter="tools")
    return found


def _names_in(holder: object) -> list[str]:
    """Return the names that are defined there; all of them if it only gathers those of other modules."""
    found = {name: each for name, each in vars(holder).items() if callable(each) and not name.startswith("_")}
    here = getattr(holder, "__name__", None)
    return [name for name, each in found.items() if getattr(each, "__module__", None) == here] or list(found)
