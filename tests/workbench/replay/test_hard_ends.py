"""However a replay ends, or whatever it is given: nothing is left behind, and what went wrong is said in a line."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStackError, ChatStream, InputError
from chatstack.cli import main
from chatstack.workbench.replay.arguments import write
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from tests.command_line import error_of
from tests.workbench.replay.conversations import assistant, conversation, recording, setup_of, talk, user, write_lines
from tests.workbench.replay.test_parallel import ENDLESS, alive_in, at_work, linux

pytestmark = pytest.mark.slow

NOTHING = policies_for([], ["nothing"])
ONE = conversation(user("hello"), assistant("hi"))
ALONE = ENDLESS.replace("jobs=2", "jobs=1")


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them_however_that_ends(number: signal.Signals) -> None:
    with at_work(ENDLESS) as process:
        assert len(alive_in(process.pid)) >= 3
        process.send_signal(number)
        process.wait(timeout=300)
        deadline = time.monotonic() + 300
        while alive_in(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive_in(process.pid) == []


@linux
def test_an_interrupt_does_not_wait_for_a_layer_that_blocks_in_this_process() -> None:
    with at_work(ALONE) as process:
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == -signal.SIGINT


def test_processes_that_cannot_be_started_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    told = r"a process of the replay cannot be started \(can't start new thread\); try fewer than 2 jobs"
    with pytest.raises(ChatStackError, match=told):
        replay(setup_of(*NOTHING), [recording(ONE)], jobs=2)
    for process in multiprocessing.active_children():  # it was told to end
        process.join(300)
        assert not process.is_alive()


def test_large_recordings_are_a_batch_each() -> None:
    """Whatever the number of their messages: what waits for a process is bounded in bytes."""
    read: list[int] = []
    done: list[int] = []

    def items() -> Iterator[Recording]:
        for number in range(12):
            read.append(number)
            yield sized(recording(conversation(user(f"{number}"), assistant("a"))), size_bytes=5_000_000)

    replay(setup_of(*NOTHING), items(), on_progress=lambda conversations: done.append(len(read)))

    assert done == list(range(1, 13))


def sized(item: Recording, *, size_bytes: int) -> Recording:
    return Recording(item.body, item.form, item.id, item.model, item.file, item.line, item.nth, size_bytes)


def test_the_size_of_a_recording_is_that_of_its_text(tmp_path: Path) -> None:
    big, small = conversation(user("x" * 10_000), assistant("a")), ONE
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([big, big]))
    with sources_from([write_lines(tmp_path / "a.jsonl", big, small), listed]) as sources:
        sizes = [item.size_bytes for item in read_recordings(sources) if isinstance(item, Recording)]

    assert [size // 10_000 for size in sizes] == [1, 0, 1, 1]


def test_a_recording_that_is_nested_too_deeply_to_be_sent_is_replayed_all_the_same() -> None:
    schema: object = {}
    for _ in range(900):
        schema = {"a": schema}
    deep = recording(conversation(user("q"), assistant("a")))
    deep.body["tools"] = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    items = [recording(talk(2)), deep, recording(talk(3))]

    alone, together = (replay(setup_of(*NOTHING), items, jobs=jobs) for jobs in (1, 2))

    assert together.conversations == alone.conversations
    assert together.everything.tokens_sent == alone.everything.tokens_sent


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Torn:
    """A layer with a mistake in it."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        raise KeyError("\x1b[31mnot there")


def torn(ceiling: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(Torn)


def never_made(ceiling: int, model: ChatClient) -> ChatStack:
    raise AttributeError("no such thing")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("stack", "said"), [(torn, "KeyError"), (never_made, "AttributeError: no such thing")])
def test_a_mistake_in_a_layer_is_told_with_its_policy(stack: object, said: str, jobs: int) -> None:
    policy = Policy("mine", stack)  # type: ignore[arg-type]

    with pytest.raises(ChatStackError, match=f"^policy mine: a layer raised {said}"):
        replay(setup_of(policy), [recording(ONE)], jobs=jobs)


def test_a_file_that_has_gone_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    first, second = (write_lines(tmp_path / name, ONE) for name in ("a.jsonl", "b.jsonl"))
    with sources_from([first, second]) as sources:
        first.unlink()
        items = list(read_recordings(sources))

    assert items[0] == BrokenLine(str(first), 1, "cannot be read: No such file or directory")
    assert isinstance(items[1], Recording)


def test_a_file_that_changes_between_two_passes_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ONE)
    with sources_from([path]) as (source,):
        source.check_unchanged()
        write_lines(path, ONE, ONE)
        with pytest.raises(InputError, match=r"a.jsonl: has changed since it was first read"):
            source.check_unchanged()
        path.unlink()
        with pytest.raises(InputError, match=r"a.jsonl: cannot be read"):
            source.check_unchanged()


def test_endless_empty_lines_are_given_up(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n" * 3_000_000)
    with sources_from([path]) as sources:
        (item,) = read_recordings(sources)

    assert item == BrokenLine(str(path), 100_001, "reading stopped here: more than 100,000 empty lines")


def test_a_gzip_file_that_unpacks_out_of_all_proportion_is_given_up(tmp_path: Path) -> None:
    """Its lines are none, and a small file can unpack to billions of bytes."""
    path = tmp_path / "a.jsonl.gz"
    with path.open("wb") as file:
        for piece in itertools.repeat(gzip.compress(b"0" * 2**26), 50):
            file.write(piece)
    with sources_from([path]) as sources:
        (item,) = read_recordings(sources)

    assert item == BrokenLine(str(path), 1, "reading stopped here: it unpacks to more than 250 times its size")


def test_a_line_that_has_no_end_is_given_up(tmp_path: Path) -> None:
    """It would be as long as a terabyte."""
    path = tmp_path / "a.jsonl"
    path.touch()
    os.truncate(path, 2**40)
    with sources_from([path]) as sources:
        (item,) = read_recordings(sources)

    told = "reading stopped here: more than 268,435,456 bytes are in lines that are too long"
    assert item == BrokenLine(str(path), 1, told)


def test_endless_lines_that_hold_nothing_are_given_up(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"7\n" * 300_000)
    with sources_from([path]) as sources:
        *_, last = items = list(read_recordings(sources))

    assert len(items) == 100_001
    assert last == BrokenLine(str(path), 100_001, "reading stopped here: more than 100,000 lines hold no conversation")


def test_half_characters_of_what_a_model_said_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "\\ud83d"}]}\n')
    target = tmp_path / "out.json"

    assert main(["replay", str(path), "--window", "1000", "--json", str(target), "--html", f"{target}.html"]) == 0
    assert json.loads(target.read_text())["conversations"] == 1


def test_what_cannot_be_written_costs_no_figures_and_no_older_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = write_lines(tmp_path / "a.jsonl", ONE), tmp_path / "out.html"
    target.write_text("older")
    monkeypatch.setattr(Path, "replace", full)

    assert main(["replay", str(path), "--window", "1000", "--html", str(target)]) == 2

    captured = capsys.readouterr()
    assert "1 conversation" in captured.out
    assert "No space left on device" in captured.err
    assert target.read_text() == "older"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def full(self: Path, target: Path) -> Path:
    raise OSError(28, "No space left on device")


def test_a_file_is_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("older")
    link = tmp_path / "link.txt"
    link.symlink_to("real.txt")

    write("--json", link, "newer")

    assert link.is_symlink()
    assert (tmp_path / "real.txt").read_text() == "newer"


@pytest.mark.parametrize("name", ["loop", "x" * 300])
def test_a_target_that_cannot_be_is_told_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "a.jsonl", ONE)
    (tmp_path / "loop").symlink_to("loop")

    told = error_of(capsys, "replay", path, "--window", "1000", "--html", tmp_path / name)

    assert "no file can be written there" in told
