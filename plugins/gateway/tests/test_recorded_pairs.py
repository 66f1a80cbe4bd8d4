"""Every recorded exchange passes a gateway with layers byte for byte, however its client spells JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from answers import PATHS, WHOLE
from recorded import DATA, FORMS, SPELLINGS, rows
from upstreams import Seen, Server, Upstream, Wire, serving, upstream

from chatstack_gateway import Settings
from chatstack_gateway import Upstream as Address

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the recorded provider exchanges are not on this machine")

PIPELINE = """
provider = { use = "openai", model = "unused" }
layers = [
  { use = "ToolResultClearer", trigger = { tokens = 1_000_000 }, keep = { messages = 3 } },
  { use = "ClearThenDrop", max_tokens = 1_000_000 },
  { use = "ContextWindowGuard", max_context_tokens = 1_000_000, prune_on_overflow = true },
]
"""
ANSWERS: dict[str, tuple[bytes, bool]] = {}


async def play(seen: Seen, wire: Wire) -> None:
    body, streamed = ANSWERS[seen.header("x-row") or ""]
    if streamed:
        middle = len(body) // 2
        await wire.stream(body[:middle], body[middle:])
    else:
        await wire.whole(body)


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Upstream, Server]]:
    path = tmp_path_factory.mktemp("pipeline") / "pipeline.toml"
    path.write_text(PIPELINE)
    with upstream(play) as api, serving(Settings(Address(api.url), pipeline=str(path))) as gateway:
        yield api, gateway


def answer_of(row: dict[str, Any]) -> tuple[bytes, bool]:
    if row.get("response_sse"):
        text = row["response_sse"]
        return (text if isinstance(text, str) else "".join(text)).encode(), True
    return json.dumps(row.get("response") or WHOLE[FORMS[row["kind"]]]).encode(), False


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", FORMS)
def test_every_exchange_passes_byte_for_byte(between: tuple[Upstream, Server], kind: str, spelling: str) -> None:
    api, gateway = between
    found = rows(kind)
    assert len(found) > 100
    with httpx2.Client() as client:
        for row in found:
            body, (answer, streamed) = SPELLINGS[spelling](row["request"]), answer_of(row)
            ANSWERS[row["id"]] = answer, streamed
            url = gateway.url + PATHS[FORMS[kind]]
            with client.stream("POST", url, content=body, headers={"x-row": row["id"]}) as got:
                came = b"".join(got.iter_raw())
            assert api.requests[-1].body == body, row["id"]
            assert came == answer, row["id"]
            api.requests.clear()
    gateway.settled()
