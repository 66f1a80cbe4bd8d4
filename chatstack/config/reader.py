"""YAML as its version 1.2 reads it, and plain data only; needs the extra ``yaml``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError
from yaml.scanner import ScannerError

from chatstack.config.values import first_twice

_TAG = "tag:yaml.org,2002:"
_DEEPEST = 50

_CORE: dict[str, tuple[str, Callable[[str], object]]] = {
    "null": ("~|null|Null|NULL|", lambda _: None),
    "bool": ("true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (
        "[-+]?[0-9]+(_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+",
        lambda text: int(text, 0) if text[:2] in ("0o", "0x") else int(text),
    ),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        lambda text: float(re.sub(r"\.(?=[a-z])", "", text.lower())),
    ),
}
"""Scalars other than text, by tag: the pattern, and the conversion. This is the core schema of YAML 1.2, plus
underscores in integers (``120_000``). What only YAML 1.1 converts stays text (``yes``, ``1:30``), and ``017`` is
seventeen, not octal."""


class Reader(yaml.SafeLoader):
    """A loader of plain data that refuses duplicate keys, of which PyYAML would silently take the last."""

    yaml_constructors: ClassVar[dict[str | None, Callable[..., Any]]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map", None)
    }

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - its name there
        if self.flow_level >= _DEEPEST:  # for each token, the scanner looks at all brackets that are open
            raise ScannerError(None, None, f"more than {_DEEPEST} brackets are open", self.get_mark())
        super().fetch_flow_collection_start(TokenClass)  # pyright: ignore[reportUnknownMemberType]

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if any(key.value == "<<" or key.tag == f"{_TAG}merge" for key in keys):
            # A few lines of nested merges take exponential time.
            raise ConstructorError(None, None, "'<<' is not read here", node.start_mark)
        if twice := first_twice(key.value for key in keys):
            raise ConstructorError(None, None, twice, node.start_mark)
        return node


def _constructor(tag: str) -> Callable[[Reader, yaml.Node], object]:
    pattern, read = _CORE[tag]

    def construct(reader: Reader, node: yaml.Node) -> object:
        text = reader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if text is None or re.fullmatch(pattern, text) is None:
            raise ConstructorError(None, None, f"expected {tag}", node.start_mark)
        return read(text)

    return construct


for _tag in _CORE:
    Reader.add_constructor(f"{_TAG}{_tag}", _constructor(_tag))
Reader.yaml_implicit_resolvers = {
    None: [(f"{_TAG}{tag}", re.compile(rf"(?:{pattern})\Z")) for tag, (pattern, _) in _CORE.items()]
}
