"""Other spellings in a config: of a layer, the block that Xpert's context-editing plugin is configured with; of a value
with parts, the arguments of a function that makes it.

{"type": "ContextEditingMiddleware", "options": {"trigger": {"tokens": 100000}, "excludeTools": ["healthcheck"]}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from chatstack.client.hints import kinds
from chatstack.config.values import Config, check_keys, key_shown, table
from chatstack.errors import WiringError
from chatstack.tokens.prices import Price

TYPES: Mapping[str, str] = {"ContextEditingMiddleware": "ToolResultClearer"}
"""Other names of layers, under the key ``type``."""
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "ToolResultClearer": {
        "excludeTools": "exclude_tools",
        "clearToolInputs": "clear_tool_inputs",
        "tokenCountMethod": "token_count_method",
        "clearAtLeast": "clear_at_least",
        "maxContextTokens": "max_context_tokens",
    },
}
"""Other names of options, by layer, mapped to the names here."""
_SHORT: Mapping[object, Callable[..., object]] = {Price: Price.per_million}
"""Functions that make a value of plain arguments, by its type."""


def short_form(hint: object, given: object) -> Callable[..., object] | None:
    """Return the function whose arguments the value is, a table without tables in it; None for any other value."""
    if not isinstance(given, Mapping) or any(isinstance(each, Mapping) for each in cast("Config", given).values()):
        return None
    return next((_SHORT[kind] for kind in kinds(hint) if kind in _SHORT), None)


class Entry(NamedTuple):
    """The entry of a layer: its options by their names here, and the file's spelling where that differs."""

    options: dict[str, object]
    theirs: Mapping[str, str]
    here: str
    """The place of the options, for errors."""

    def place(self, option: str) -> str:
        """Return the place of an option, in the file's spelling."""
        return f"{self.here}.{key_shown(self.theirs.get(option, option))}"


def entry_of(content: Config, here: str) -> Entry:
    """Normalize the entry of a layer to ``{"use": name, ...options}``.

    Raises ``WiringError`` for an option that is given in both spellings.
    """
    layer = content.get("type")
    if "use" in content or not isinstance(layer, str) or layer not in TYPES:
        return _renamed(content, here)
    check_keys(content, ("type", "name", "options"), here)
    options, here = table(content.get("options", {}), f"{here}.options"), f"{here}.options"
    for key in options:
        if key in ("use", "name", "type"):
            raise WiringError(f"{here}: unknown option {key!r}; that stands beside 'options'", parameter=key)
    named = {"name": content["name"]} if "name" in content else {}
    return _renamed({"use": TYPES[layer], **named, **options}, here)


def _renamed(content: Config, here: str) -> Entry:
    use = content.get("use")
    ours: Mapping[str, str] = OPTIONS.get(use, {}) if isinstance(use, str) else {}
    found: dict[str, object] = {}
    theirs: dict[str, str] = {}
    for key, value in content.items():
        name = ours.get(key, key)
        if name != key:
            if name in content:
                raise WiringError(f"{here}: {key!r} and {name!r} are the same option; leave one out", parameter=name)
            theirs[name] = key
        found[name] = value
    return Entry(found, theirs, here)
