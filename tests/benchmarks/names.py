# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[tokenizer]"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""The worth of a list of names, without a model: ``uv run tests/benchmarks/names.py FILE --window 8000``.

Of each value that a recorded call took, and that stood only in a list of names, the mean reciprocal rank among the
names of that list: as the list was sent; with labels made here, the call that held each name last; and with those
shuffled, which are as many tokens (``chatstack/workbench/replay/measures/ranking.py``).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from chatstack.context.edits.pairing import answered_calls
from chatstack.context.strategies.name_lists import Names, without_lists
from chatstack.telemetry.emission import Telemetry
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.ranking import Ranker, Ranking
from chatstack.workbench.replay.measures.values import text_in
from chatstack.workbench.replay.policies import policies_for
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.recordings import Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from chatstack.workbench.replay.recorder import EditLog, Recorder
from chatstack.workbench.replay.talks import Talk

_LABEL_CHARS = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--window", type=int, default=8_000, metavar="N")
    parser.add_argument("--policy", default="ours", metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="look at one conversation in so many")
    given = parser.parse_args()
    as_sent, labelled = Ranking(), Ranking()
    with sources_from([given.file]) as sources:
        for number, item in enumerate(read_recordings(sources)):
            if isinstance(item, Recording) and number % given.every == 0:
                talk = Talk(conversation_of(item), called=item.id)
                asyncio.run(weigh(talk, given.policy, given.window, as_sent, labelled))
    print(f"{given.policy} at {given.window:,}: {as_sent.values:,} values that stood only in a list")
    print(f"as it was sent: {told(as_sent.mean_by_label)}, shuffled {told(as_sent.mean_shuffled)}")
    print(f"labelled here: {told(labelled.mean_by_label)}, shuffled {told(labelled.mean_shuffled)}")


async def weigh(talk: Talk, name: str, window: int, as_sent: Ranking, labelled: Ranking) -> None:
    """Rank the names in all requests of one conversation."""
    recorder = Recorder(window)
    (policy,) = policies_for([], [name])
    services: dict[type, object] = {Telemetry: EditLog()}
    client = policy.stack(window, recorder).build(services.__getitem__)
    ranker = Ranker(talk.messages)
    for position, request in talk.calls():
        recorder.expect(talk.messages[position])
        await (await client.send(request)).response()
        sent = recorder.requests[-1]
        ranker.weigh(position, sent, as_sent)
        if any(without_lists(message)[1] for message in sent.messages):
            ranker.weigh(position, sent, labelled, rows_for(talk.messages[:position], sent))
    await client.aclose()


def rows_for(messages: Sequence[Message], sent: ChatRequest) -> list[Names]:
    """The names that were sent, each under the last call whose arguments or result held it."""
    names = {name for message in sent.messages for row in without_lists(message)[1] for name in row.names}
    rows: dict[str, list[str]] = {}
    for answer in reversed(answered_calls(messages)):
        text = text_in((answer.call, answer.result))
        held = [name for name in names if name in text]
        if held:
            label = f"{answer.call.name} {answer.call.arguments}"[:_LABEL_CHARS]
            rows.setdefault(label, []).extend(sorted(held))
            names.difference_update(held)
    return [*(Names(tuple(held), label) for label, held in rows.items()), Names(tuple(sorted(names)))]


def told(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


if __name__ == "__main__":
    main()
