"""A replay in several processes: the same figures as in one, and nothing is left behind, however it ends."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStackError, ChatStream
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from tests.workbench.replay.conversations import assistant, conversation, recording, setup_of, talk, user

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LONG = recording(conversation(*[user("q")] * 400, assistant("a")))
"""A batch by itself."""


def killed(ceiling: int, model: ChatClient) -> ChatStack:
    """A policy that no process of a pool survives."""
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return ChatStack(model)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sleeper:
    """Takes very long from the third conversation on."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        number, _, _ = (request.conversation_id or "").partition(":")
        if int(number) > 2:
            time.sleep(1_000)  # noqa: ASYNC251  # as work would, for which the loop waits
        return await self.inner.send(request)


def sleeping(ceiling: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(Sleeper)


def items() -> Iterator[Recording | BrokenLine]:
    """Batches of different sizes, with conversations that begin alike, two that are the same, and what cannot be read.

    Nobody answers the last messages; they fill the batches."""
    for number, turns in enumerate((6, 14, 3, 6, 18, 14, 4, 12, 6, 9, 3, 13)):
        messages = talk(turns, 80)["messages"]
        assert isinstance(messages, list)
        model = "unknown" if number == 7 else "gpt-4o"
        wire = conversation(*messages, *[user("and?")] * 150, id=f"talk-{number}", model=model)
        yield recording(wire, line=number)
        if number % 3 == 0:
            yield BrokenLine("talks.jsonl", 100 + number, "not valid JSON")
            yield recording(conversation({"role": "nobody"}), line=200 + number)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    """By the number of processes."""
    path = tmp_path_factory.mktemp("pipelines") / "summing.json"
    path.write_text('{"layers": [{"use": "ContextWindow", "max_tokens": 1000}]}')
    setup = setup_of(
        *policies_for([path], ["nothing", "guard", "recommended"]), window=1_500, counter=WireCounter.best(), stories=5
    )
    return {jobs: replay(setup, items(), jobs=jobs) for jobs in (1, 2, 3)}


def without_cpu(figures: PolicyFigures) -> PolicyFigures:
    return dataclasses.replace(figures, cpu_seconds=0.0)


@pytest.mark.parametrize("jobs", [2, 3])
def test_figures_do_not_depend_on_how_many_processes_there_are(outcomes: dict[int, Outcome], jobs: int) -> None:
    one, more = outcomes[1], outcomes[jobs]

    assert one.conversations == more.conversations == 12
    assert [without_cpu(each) for each in more.figures] == [without_cpu(each) for each in one.figures]
    assert without_cpu(more.everything) == without_cpu(one.everything)
    assert (more.prices, more.unpriced) == (one.prices, one.unpriced)
    assert one.unpriced == {"unknown"}
    assert all(each.edits for each in one.figures[1:])
    assert one.figures[-1].spending.summary_output > 1_000


@pytest.mark.parametrize("jobs", [2, 3])
def test_errors_and_stories_come_in_the_order_of_the_input(outcomes: dict[int, Outcome], jobs: int) -> None:
    lines = [100, 200, 103, 203, 106, 206, 109, 209]

    assert [each.line for each in outcomes[1].broken] == lines
    assert outcomes[jobs].broken == outcomes[1].broken
    assert (outcomes[jobs].broken_count, len(outcomes[1].stories)) == (8, 5)
    assert outcomes[jobs].stories == outcomes[1].stories


def test_progress_ends_with_all_conversations() -> None:
    told: list[int] = []

    replay(setup_of(*policies_for([], ["nothing"])), [LONG] * 3, jobs=2, on_progress=told.append)

    assert sorted(told) == told
    assert told[-1] == 3


def test_a_policy_that_cannot_be_pickled_is_told_before_a_process_starts() -> None:
    def stack(ceiling: int, model: ChatClient) -> ChatStack:
        return ChatStack(model)

    with pytest.raises(
        ChatStackError, match=r"cannot be given to other processes: .*function of a module, or run with"
    ):
        replay(setup_of(Policy("mine", stack)), [LONG], jobs=2)
    assert replay(setup_of(Policy("mine", stack)), [LONG], jobs=1).conversations == 1


def test_the_reader_is_no_more_than_two_batches_for_each_process_ahead() -> None:
    jobs, done, ahead = 2, 0, list[int]()

    def read() -> Iterator[Recording]:
        for number in range(40):
            ahead.append(number - done)
            yield LONG

    def progress(conversations: int) -> None:
        nonlocal done
        done = conversations

    replay(setup_of(*policies_for([], ["nothing"])), read(), jobs=jobs, on_progress=progress)

    assert len(ahead) == 40
    assert jobs <= max(ahead) <= 2 * jobs + 1


def test_an_error_of_whoever_reads_ends_the_processes() -> None:
    before = children_of(os.getpid())

    def read() -> Iterator[Recording]:
        yield from [LONG] * 3
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        replay(setup_of(*policies_for([], ["nothing"])), read(), jobs=2)
    assert children_of(os.getpid()) <= before


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux
def test_a_process_that_is_killed_is_an_error_and_leaves_no_process() -> None:
    before = children_of(os.getpid())

    with pytest.raises(ChatStackError, match=r"ended by itself, perhaps for want of memory; try fewer than 2 jobs"):
        replay(setup_of(Policy("killed", killed)), itertools.repeat(LONG), jobs=2)

    assert children_of(os.getpid()) <= before


def children_of(pid: int) -> set[int]:
    """The processes that this one started and has not waited for, also those that have ended; without the tracker of
    ``multiprocessing``, which stays."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and "resource_tracker" not in (path / "cmdline").read_text():
                found.add(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def alive_in(session: int) -> list[str]:
    """What runs in a session."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of_session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of_session) == session and state != "Z":
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


ENDLESS = """
import itertools
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import Policy
from tests.workbench.replay.conversations import setup_of
from tests.workbench.replay.test_parallel import LONG, sleeping

setup = setup_of(Policy("sleeping", sleeping))
replay(setup, itertools.repeat(LONG), jobs=2, on_progress=lambda _: print("", flush=True))
"""


@linux
@pytest.mark.parametrize("whom", ["all", "the first"])
def test_an_interrupt_ends_it_at_once_and_leaves_no_process(whom: str) -> None:
    """As a terminal sends it, to all, and as ``kill`` does, to the first alone; in the midst of work that takes
    long. Nobody else says a word of it."""
    with at_work(ENDLESS) as process:
        (os.killpg if whom == "all" else os.kill)(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGINT
        assert said.count("Traceback") == 1
        assert said.endswith("KeyboardInterrupt\n")
        deadline = time.monotonic() + 300
        while alive_in(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive_in(process.pid) == []


@contextmanager
def at_work(program: str) -> Generator[subprocess.Popen[str]]:
    """A process that has replayed something, and goes on; with all that it started it is gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            yield process
        finally:
            if alive_in(process.pid):
                os.killpg(process.pid, signal.SIGKILL)


def listen_to_interrupts() -> None:
    """Listen to interrupts, and to the end of a terminal: a process in the background may have been told not to."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


READ = """
import json, resource, sys
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import policies_for
from tests.workbench.replay.conversations import setup_of
from tests.workbench.replay.test_parallel import large

outcome = replay(setup_of(*policies_for([], ["nothing"]), stories=3), large(int(sys.argv[1])), jobs=2)
print(json.dumps([outcome.conversations, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def large(count: int) -> Iterator[Recording]:
    """Conversations of 20,000 bytes."""
    for number in range(count):
        yield recording(conversation(user(f"{number} ".ljust(20_000, "x")), *[user("q")] * 40, assistant("a")))


@linux
def test_memory_does_not_grow_with_the_input() -> None:
    """Of 20 MB, read by the first process and given to others, nothing is kept."""

    def peak_kilobytes(count: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", READ, str(count)], capture_output=True, text=True, cwd=ROOT, check=True, timeout=300
        )
        conversations, peak = json.loads(done.stdout)
        assert conversations == count
        assert isinstance(peak, int)
        return peak

    assert peak_kilobytes(1_000) - peak_kilobytes(100) < 8_000
