"""Recorded exchanges with OpenAI and Anthropic, and ways in which a client may write the same JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[3] / "../shared/data/provider_pairs.dev.jsonl.gz"
FORMS = {"openai-chat": "chat", "anthropic-messages": "messages"}


def rows(*kinds: str) -> list[dict[str, Any]]:
    if not DATA.exists():
        return []
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        return [row for line in lines if (row := json.loads(line))["kind"] in (kinds or FORMS)]


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _turned(each) for name, each in reversed(value.items())}
    return [_turned(each) for each in value] if isinstance(value, list) else value


SPELLINGS: Mapping[str, Callable[[Any], bytes]] = {
    "compact": lambda body: json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(),
    "escaped, from the end": lambda body: json.dumps(_turned(body)).replace("/", "\\/").encode(),
    "spacious": lambda body: (" \r\n" + json.dumps(body, indent="\t", separators=(" , ", " :  ")) + "\n").encode(),
}
