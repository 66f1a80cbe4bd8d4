# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[tokenizer]"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What counting costs, beside an exact tokenizer, as ratios in one run: ``uv run tests/benchmarks/counting.py``.

Each counter counts 1,000 messages that it has never seen; nothing is kept from round to round. The subjects are timed
in turn, round after round, so that a machine that changes its speed changes it for all; a row gives the median of the
ratios, the lowest and the highest, and the fastest round of each. Times are CPU times of this process. ``--data DIR``
counts recorded conversations, too; what DIR holds is said in ``recordings.py``.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import itertools
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from results import Run, add_options  # beside this file

from chatstack import CharCounter, Message, TokenCounter, TokenizerCounter, ToolCall
from chatstack.providers.openai.chat_wire import messages_from_wire
from chatstack.tokens.estimating import EstimatingCounter

ROUNDS = 9
MESSAGES = 1_000
RECORDED = {"coding agents": "swe_gemini3_mini.dev", "customer service": "tau_airline_gpt4o.dev"}
EXACT, ESTIMATED, CHARACTERS = "the exact tokenizer", "EstimatingCounter", "CharCounter"
COUNTERS: dict[str, Callable[[], TokenCounter]] = {
    EXACT: TokenizerCounter,
    ESTIMATED: lambda: EstimatingCounter("openai"),
    CHARACTERS: CharCounter,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=ROUNDS)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the recorded conversations")
    given = parser.parse_args()
    run = Run("counting", rounds=given.rounds, json=given.json)
    samples = {"made": list(itertools.islice(made(), MESSAGES))}
    if given.data is not None:
        for title, name in RECORDED.items():
            samples[title] = list(itertools.islice(recorded(given.data / f"{name}.jsonl.gz"), MESSAGES))
    load = os.getloadavg()[0]
    rows = [row for title, messages in samples.items() for row in timed(run, title, messages)]
    print(
        f"\nCPython {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after; {run.rounds} rounds, CPU time\n"
    )
    print(f"| {MESSAGES:,} messages | beside {EXACT} | lowest to highest | fastest | tokens |\n|---|---|---|---|---|")
    print("\n".join(rows))
    run.write()


def timed(run: Run, title: str, messages: list[Message]) -> list[str]:
    """Time every counter on the same messages, and return the rows of the table."""
    seconds: dict[str, list[float]] = {name: [] for name in COUNTERS}
    counted: dict[str, int] = {}
    counters = {name: make() for name, make in COUNTERS.items()}
    for _ in range(run.rounds):
        for name, counter in counters.items():
            gc.collect()
            started = time.process_time()
            counted[name] = sum(map(counter.count_message, messages))
            seconds[name].append(time.process_time() - started)
    rows: list[str] = []
    for name, values in seconds.items():
        run.seconds(f"{title}: {name}", values, is_ours=name != EXACT)
        run.exact(f"{title}: tokens by {name}", counted[name])
        ratios = sorted(mine / exact for mine, exact in zip(values, seconds[EXACT], strict=True))
        rows.append(
            f"| {title}: {name} | {statistics.median(ratios):.3f} | {ratios[0]:.3f} to "
            f"{ratios[-1]:.3f} | {min(values) * 1e3:.1f} ms | {counted[name]:,} |"
        )
    return rows


# made conversations


def made() -> Iterator[Message]:
    """Yield tool rounds of a coding agent: calls, and results of source text, JSON, logs and prose."""
    generator = random.Random(20)
    yield Message.system("You are a coding agent. " + prose(generator, 1_200))
    yield Message.user(prose(generator, 300))
    for number in itertools.count():
        calls = [
            ToolCall(
                f"call_{number}_{each}", "read_file", json.dumps({"path": path(generator), "limit": each * 40 + 9})
            )
            for each in range(generator.randint(1, 3))
        ]
        yield Message.assistant(prose(generator, generator.randint(30, 300)), *calls)
        for call in calls:
            kind = generator.choice((prose, source, table, log))
            yield Message.tool(call.id, kind(generator, int(200 * 40 ** generator.random())), name=call.name)


def names(generator: random.Random) -> str:
    """Return a word that no vocabulary was made for, as those of programs are, or a plain one."""
    syllables = (
        "ka",
        "ter",
        "lo",
        "ing",
        "pre",
        "set",
        "con",
        "ry",
        "al",
        "ment",
        "un",
        "der",
        "port",
        "er",
        "list",
        "re",
    )
    plain = (
        "the",
        "file",
        "error",
        "returns",
        "while",
        "value",
        "of",
        "request",
        "and",
        "naïve",
        "token",
        "build",
        "你好",
    )
    return generator.choice(plain) if generator.random() < 0.7 else "".join(generator.choices(syllables, k=3))


def path(generator: random.Random) -> str:
    return "/".join(("src", names(generator), f"{names(generator)}_{names(generator)}.py"))


def prose(generator: random.Random, size: int) -> str:
    return lines(size, lambda: " ".join(names(generator) for _ in range(12)).capitalize() + ". ")


def source(generator: random.Random, size: int) -> str:
    def line() -> str:
        indent, name = "    " * generator.randint(0, 3), names(generator)
        call = f'{name}(count={generator.randint(0, 999)}, at="{names(generator)}")'
        return f"{indent}self.{name}_{names(generator)} = {call}\n"

    return lines(size, line)


def table(generator: random.Random, size: int) -> str:
    def row() -> str:
        value = {"id": generator.getrandbits(32), "name": names(generator), "at": [generator.random(), True, None]}
        return json.dumps(value, ensure_ascii=False) + ",\n"

    return lines(size, row)


def log(generator: random.Random, size: int) -> str:
    def line() -> str:
        second, level = generator.randint(10, 59), generator.choice(("INFO", "WARNING"))
        when = f"2025-03-0{second % 9 + 1}T08:11:{second}Z"
        return f"{when} {level} [{names(generator)}] {names(generator)} {path(generator)}\n"

    return lines(size, line)


def lines(size: int, line: Callable[[], str]) -> str:
    text: list[str] = []
    while size > 0:
        text.append(line())
        size -= len(text[-1])
    return "".join(text)


# recorded conversations


def recorded(file: Path) -> Iterator[Message]:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        for line in text:
            yield from messages_from_wire(json.loads(line)["messages"])


if __name__ == "__main__":
    main()
