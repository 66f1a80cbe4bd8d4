"""Small conversations for these tests, and the way to the recorded ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chatstack.tokens.counter import CharCounter
from chatstack.values.requests import DeclaredTool
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import Policy
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from chatstack.workbench.replay.setup import Setup

CHARACTERS = WireCounter(CharCounter(1), "characters")
DATA = Path(__file__).resolve().parents[3] / "../shared/data"


def data_file(name: str) -> Path:
    """A file of recorded conversations; skips the test where there is none."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the recorded conversations are not here: {name}")
    return path


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: str) -> dict[str, object]:
    wire: dict[str, object] = {"role": "assistant", "content": text}
    if calls:
        function = {"name": "look", "arguments": '{"at": "it"}'}
        wire["tool_calls"] = [{"id": call, "type": "function", "function": function} for call in calls]
    return wire


def result(call: str, text: str = "seen") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def conversation(*messages: dict[str, object], model: str = "gpt-4o", id: str = "one") -> dict[str, object]:
    return {"id": id, "model": model, "messages": list(messages)}


def talk(turns: int, words: int = 50, *, about: str = "Be brief.") -> dict[str, object]:
    """A conversation in which each turn has a call, its result, and an answer. ``about`` makes it another one."""
    messages: list[dict[str, object]] = [{"role": "system", "content": about}]
    for turn in range(turns):
        messages += [
            user(f"question {turn}"),
            assistant(None, f"call_{turn}"),
            result(f"call_{turn}", f"finding {turn} " * words),
            assistant(f"answer {turn}"),
        ]
    return conversation(*messages)


def write_lines(path: Path, *lines: dict[str, object] | str) -> Path:
    """A JSONL file, gzipped when it is called so; text goes in as it is."""
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def by_name(figures: list[PolicyFigures]) -> dict[str, PolicyFigures]:
    return {each.name: each for each in figures}


def recording(wire: dict[str, object], *, line: int = 1) -> Recording:
    """A conversation of chat messages, as it is read from a file."""
    body = {name: value for name, value in wire.items() if name not in ("id", "model")}
    return Recording(body, "chat", str(wire["id"]), str(wire["model"]), "talks.jsonl", line)


def recordings_in(path: Path) -> list[Recording | BrokenLine]:
    """All that is in a file."""
    with sources_from([path]) as sources:
        return list(read_recordings(sources))


def setup_of(
    *policies: Policy,
    window: int = 1_000,
    counter: WireCounter = CHARACTERS,
    tools: tuple[DeclaredTool, ...] = (),
    model: str = "",
    pause_seconds: float = 0.0,
    long_cache: bool = False,
    stories: int = 0,
) -> Setup:
    """What a replay is told, measured in characters."""
    return Setup(
        policies,
        window=window,
        counter=counter,
        tools=tools,
        model=model,
        pause_seconds=pause_seconds,
        long_cache=long_cache,
        stories=stories,
    )


def outcome_of(setup: Setup, *items: Recording | BrokenLine) -> Outcome:
    """What comes of these, replayed in this process."""
    return replay(setup, items)
