"""A replay on workers of somebody else's: found by name, given bytes, with the figures of a replay without them."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chatstack import ChatStackError
from chatstack.cli import main
from chatstack.errors import InputError
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.work import Work, versions
from tests.command_line import error_of
from tests.plugin_fixtures import Shop
from tests.plugin_fixtures import shop as shop  # a fixture
from tests.workbench.replay.conversations import conversation, recording, setup_of, talk, user, write_lines
from tests.workbench.replay.errands import errands

THREADS = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

asked = []

class Pool:
    def __init__(self, pool, jobs):
        self.pool, self.jobs = pool, jobs

    def submit(self, work, batch, /):
        assert type(batch) is bytes
        return self.pool.submit(work, batch)

    def count(self):
        return self.jobs

@contextmanager
def workers(address, jobs):
    asked.append((address, jobs))
    with ThreadPoolExecutor(jobs or 3) as pool:
        yield Pool(pool, jobs or 3)
    asked.append("closed")
"""


@pytest.fixture
def threads(shop: Shop) -> Shop:
    shop.install("acme-threads", {"engines: threads": "acme_threads:workers"}, {"acme_threads": THREADS})
    return shop


class Pool:
    """Threads, each a worker."""

    def __init__(self, pool: ThreadPoolExecutor, count: int) -> None:
        self._pool = pool
        self._count = count

    def submit(self, work: Callable[[bytes], bytes], batch: bytes, /) -> Future[bytes]:
        return self._pool.submit(work, batch)

    def count(self) -> int:
        return self._count


def items() -> list[Recording | BrokenLine]:
    """Several batches, with something in them that cannot be read."""
    found: list[Recording | BrokenLine] = []
    for number in range(8):
        messages = talk(4 + number, 80)["messages"]
        assert isinstance(messages, list)
        found.append(recording(conversation(*messages, *[user("and?")] * 150, id=f"talk-{number}"), line=number))
        if number % 3 == 0:
            found.append(BrokenLine("talks.jsonl", 100 + number, "not valid JSON"))
            found.append(recording(conversation({"role": "nobody"}), line=200 + number))
    return found


def figures_of(outcome: Outcome) -> list[object]:
    everything = [outcome.everything, *outcome.figures]
    return [dataclasses.replace(each, cpu_seconds=0.0) for each in everything] + [outcome.broken, outcome.stories]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_figures_do_not_depend_on_who_works_nor_on_how_many(count: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"layers": [{"use": "ContextWindow", "max_tokens": 1000}]}')
    setup = setup_of(*policies_for([path], ["nothing", "guard", "recommended"]), window=1_500, stories=3)
    alone, told = replay(setup, items()), list[int]()
    path.unlink()  # as where it never was: on another machine

    with ThreadPoolExecutor(count) as pool:
        shared = replay(setup, items(), workers=Pool(pool, count), on_progress=told.append)

    assert figures_of(shared) == figures_of(alone)
    assert (shared.conversations, shared.broken_count, told[-1]) == (8, 6, 8)


def report_at(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    for policy in report["policies"]:
        del policy["cpu_ms_per_call"]
    return report


@pytest.mark.slow
def test_the_command_finds_an_engine_by_its_name(threads: Shop, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", *(talk(5, about=f"Be {number}.") for number in range(20)), "{")
    command = ["replay", str(path), "--window", "600", "--json"]

    assert main([*command, str(tmp_path / "alone.json")]) == 1
    assert main([*command, str(tmp_path / "on.json"), "--on", "threads=somewhere:80", "--jobs", "2"]) == 1

    assert report_at(tmp_path / "on.json") == report_at(tmp_path / "alone.json")
    import acme_threads  # type: ignore[import-not-found]

    assert acme_threads.asked == [("somewhere:80", 2), "closed"]


@pytest.mark.slow
def test_tune_opens_it_once_and_finds_the_same(threads: Shop, tmp_path: Path) -> None:
    def calls(name: str) -> list[str]:
        return [f"{name}-a"] * 9

    lines = [*errands(5, is_tuned=True, calls=calls), *errands(5, is_tuned=False, calls=calls)]
    path = write_lines(tmp_path / "talks.jsonl", *lines)
    command = ["tune", str(path), "--window", "1000", "--grounding", "60", "--trials", "4", "--write"]

    assert main([*command, str(tmp_path / "alone.toml")]) == 0
    assert main([*command, str(tmp_path / "on.toml"), "--on", "threads"]) == 0

    assert (tmp_path / "on.toml").read_text() == (tmp_path / "alone.toml").read_text()
    import acme_threads

    assert acme_threads.asked == [("", None), "closed"]


def test_a_name_that_nobody_offers_is_one_line(
    threads: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", talk(2))

    said = error_of(capsys, "replay", path, "--window", "600", "--on", "clouds=a")

    assert said == "chatstack: error: --on 'clouds': no engine has that name: there is threads"


def test_what_is_no_engine_is_one_line(shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shop.install("acme-none", {"engines: none": "acme_none:thing"}, {"acme_none": "thing = 1"})
    path = write_lines(tmp_path / "talks.jsonl", talk(2))

    assert "'none' of acme-none 1.0 is no engine" in error_of(capsys, "replay", path, "--window", "9", "--on", "none")


def test_a_shared_memory_is_on_no_engine(threads: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", talk(2))

    said = error_of(capsys, "replay", path, "--window", "600", "--on", "threads", "--shared-memory")

    assert said.endswith("--shared-memory is in one process: drop --on threads")
    setup = dataclasses.replace(setup_of(), shared_memory=True)
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="a shared memory is in one process"):
        replay(setup, [], workers=Pool(pool, 1))


def test_a_worker_with_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(pickle.dumps(setup_of()), {**versions(), "genai-prices": "0.0.0"})

    error = pickle.loads(work(pickle.dumps([])))

    assert isinstance(error, ChatStackError)
    assert str(error).startswith("a worker has another version of genai-prices: ")


class Failing(Pool):
    """Its workers fail."""

    def submit(self, work: Callable[[bytes], bytes], batch: bytes, /) -> Future[bytes]:
        def fail(_: bytes) -> bytes:
            raise MemoryError("no room")

        return super().submit(fail, batch)


def test_what_an_engine_fails_with_ends_the_replay_in_one_line() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ChatStackError, match="a worker failed: MemoryError: no room"):
        replay(setup_of(), items(), workers=Failing(pool, 1))


def test_what_is_nested_too_deeply_to_be_given_away_is_replayed_here() -> None:
    deep: object = "x"
    for _ in range(3_000):
        deep = [deep]
    item = recording(conversation(user("q"), {"role": "assistant", "content": "a", "x": deep}))
    with ThreadPoolExecutor(1) as pool:
        outcome = replay(setup_of(*policies_for([], ["nothing"])), [item, *items()], workers=Pool(pool, 1))

    assert outcome.conversations + outcome.broken_count == 15
