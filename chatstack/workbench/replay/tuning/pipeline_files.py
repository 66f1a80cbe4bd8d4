"""Writes a config as a file that ``from_config`` reads: TOML, YAML or JSON, by its suffix."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from chatstack.cli.terminal import printable
from chatstack.workbench.replay.tuning.candidates import LayerConfig, PipelineConfig

_COLUMNS = 100
SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def pipeline_text(config: PipelineConfig, suffix: str, remarks: Iterable[str] = ()) -> str:
    """Return the text of the file. The remarks stand above it as comments; JSON has none."""
    if suffix == ".json":
        return f"{json.dumps(config, indent=2)}\n"
    writer = _toml if suffix == ".toml" else _yaml
    comments = [line for remark in remarks for line in _comment(remark)]
    return "\n".join([*comments, *writer(config["layers"])]).lstrip("\n") + "\n"


def _comment(remark: str) -> Iterator[str]:
    yield from textwrap.wrap(printable(remark), _COLUMNS, initial_indent="# ", subsequent_indent="#   ")


def _toml(layers: Iterable[LayerConfig]) -> Iterator[str]:
    for layer in layers:
        yield from ("", "[[layers]]")
        for name, value in layer.items():
            yield f"{name} = {_inline(value)}"


def _inline(value: object) -> str:
    """Return a text, number, bool, or table of these, as JSON has it, except the table."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    entries = cast("Mapping[str, object]", value).items()
    return f"{{ {', '.join(f'{name} = {_inline(each)}' for name, each in entries)} }}"


def _yaml(layers: Iterable[LayerConfig]) -> Iterator[str]:
    """Yield the layers with values as JSON has them, which YAML 1.2 reads as they are."""
    yield from ("", "layers:")
    for layer in layers:
        for number, (name, value) in enumerate(layer.items()):
            yield f"  {' ' if number else '-'} {name}: {json.dumps(value)}"
