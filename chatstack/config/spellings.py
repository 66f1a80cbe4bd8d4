"""Other spellings of a layer in a config: the block that Xpert's context-editing plugin is configured with.

{"type": "ContextEditingMiddleware", "options": {"trigger": {"tokens": 100000}, "excludeTools": ["healthcheck"]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from chatstack.config.values import key_shown, nearest_to, shown
from chatstack.errors import WiringError

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
"""Other names of options, by layer, and which of ours they stand for."""
CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ToolResultClearer": {"trigger": ("tokens", "messages", "fraction"), "keep": ("tokens", "messages", "fraction")},
}
"""Options that are a table of exactly one of some names."""


def in_our_spelling(entry: Mapping[str, object], here: str) -> dict[str, object]:
    """The entry of a layer as ``{"use": name, ...options}``; one that is spelt so already stays as it is.

    Raises ``WiringError`` for an option that is there in both spellings.
    """
    layer = entry.get("type")
    if "use" in entry or not isinstance(layer, str) or layer not in TYPES:
        return _renamed(entry, here)
    unknown = [key for key in entry if key not in ("type", "options", "name")]
    if unknown:
        raise WiringError(f"{here}: unknown key {shown(unknown[0])}; beside 'type' there are 'options' and 'name'")
    options = entry.get("options", {})
    if not isinstance(options, Mapping):
        raise WiringError(f"{here}.options: expected a table of names and values, got {type(options).__name__}")
    for key in cast("Mapping[object, object]", options):
        if not isinstance(key, str):
            raise WiringError(f"{here}.options: {shown(key)} is not a name; keys are text")
        if key in ("use", "name", "type"):
            raise WiringError(f"{here}.options: unknown option {key!r}; that stands beside 'options'", parameter=key)
    named = {"name": entry["name"]} if "name" in entry else {}
    return _renamed({"use": TYPES[layer], **named, **cast("Mapping[str, object]", options)}, f"{here}.options")


def _renamed(entry: Mapping[str, object], here: str) -> dict[str, object]:
    use = entry.get("use")
    ours: Mapping[str, str] = OPTIONS.get(use, {}) if isinstance(use, str) else {}
    found: dict[str, object] = {}
    for key, value in entry.items():
        name = ours.get(key, key)
        if name in found or (name != key and name in entry):
            raise WiringError(f"{here}: {key!r} and {name!r} are the same option; leave one out", parameter=name)
        found[name] = value
    return found


def check_choices(layer: str, options: Mapping[str, object], here: str) -> None:
    """Refuse a name that such a table does not know, with the nearest one. Raises ``WiringError``."""
    for option, names in CHOICES.get(layer, {}).items():
        value = options.get(option)
        if isinstance(value, Mapping):
            for key in cast("Mapping[object, object]", value):
                if isinstance(key, str) and key not in names:
                    place = f"{here}.{option}.{key_shown(key)}"
                    raise WiringError(f"{place}: unknown key; {nearest_to(key, names)}", parameter=f"{option}.{key}")
