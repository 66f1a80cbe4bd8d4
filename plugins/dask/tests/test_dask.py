"""Replays on Dask: the figures of a replay without it, whatever happens to its workers."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chatstack.cli import main
from chatstack.errors import ChatStackError, InputError
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import Policy, policies_for
from distributed import Client, LocalCluster
from recordings import COMPARED, deadly, figures_of, items, large, setup_of, talk

from chatstack_dask import DaskWorkers, workers

MEGABYTES_OF_A_WORKER = 400
"""What the README says."""
NOTHING = setup_of(*policies_for([], ["nothing"]))


@functools.cache
def alone() -> Outcome:
    return replay(COMPARED, items())


@pytest.fixture(scope="module")
def two() -> Iterator[DaskWorkers]:
    with workers(jobs=2) as opened:
        yield opened


def pids(client: Client) -> list[int]:
    return [pid for pid in client.run(os.getpid).values() if isinstance(pid, int)]


@pytest.mark.parametrize("jobs", [1, 4])
def test_the_figures_are_those_of_a_replay_without_it(jobs: int) -> None:
    told: list[int] = []
    with workers(jobs=jobs) as opened:
        assert opened.count() == jobs
        shared = replay(COMPARED, items(), workers=opened, on_progress=told.append)

    assert figures_of(shared) == figures_of(alone())
    assert told == sorted(told)
    assert told[-1] == shared.conversations == 12


def test_a_worker_that_is_killed_loses_nothing(two: DaskWorkers) -> None:
    alive, killed = pids(two.client), list[int]()

    def kill_one(_: int) -> None:
        if alive:
            killed.append(alive.pop())
            os.kill(killed[-1], signal.SIGKILL)

    shared = replay(COMPARED, items(), workers=two, on_progress=kill_one)

    assert len(set(killed)) == 2
    assert figures_of(shared) == figures_of(alone())


def test_several_replays_go_through_the_same_workers(two: DaskWorkers) -> None:
    """As those of ``tune``, each with its own stacks."""
    assert replay(NOTHING, items(4), workers=two).conversations == 4
    assert figures_of(replay(COMPARED, items(), workers=two)) == figures_of(alone())


@pytest.mark.slow
def test_what_kills_each_worker_ends_the_replay_in_one_line(two: DaskWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYED_BY", str(os.getpid()))

    with pytest.raises(ChatStackError, match="a worker failed: KilledWorker: "):
        replay(setup_of(Policy("deadly", deadly)), items(2), workers=two)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_memory_of_a_worker_does_not_grow_with_the_input() -> None:
    """Ten times as much, 20 MB in all: nothing of it stays."""

    def peak_kilobytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    with workers(jobs=2) as opened:
        peaks: list[int] = []
        for count in (200, 1_000):
            assert replay(NOTHING, large(count), workers=opened).conversations == count
            peaks.append(max(opened.client.run(peak_kilobytes).values()))

    assert peaks[1] - peaks[0] < 16_000
    assert peaks[1] < MEGABYTES_OF_A_WORKER * 1_024


def test_it_works_for_a_cluster_that_is_there(tmp_path: Path) -> None:
    with LocalCluster(n_workers=2, threads_per_worker=2, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        with workers(cluster.scheduler_address) as opened:
            assert opened.count() == 4
            shared = replay(COMPARED, items(), workers=opened)
        with pytest.raises(InputError, match=r"--jobs 2: the cluster at .* has its own number"):
            with workers(cluster.scheduler_address, 2):
                pass
    assert figures_of(shared) == figures_of(alone())


def test_a_scheduler_that_goes_ends_the_replay() -> None:
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")
    with cluster, workers(cluster.scheduler_address) as opened:
        with pytest.raises(ChatStackError, match=r"a worker failed: CancelledError|cannot be reached any more"):
            replay(COMPARED, items(100), workers=opened, on_progress=lambda _: cluster.close())


def test_without_a_worker_it_gives_up() -> None:
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        opened = DaskWorkers(client, without_workers_seconds=0.2)
        with pytest.raises(ChatStackError, match=r"for 0\.2 seconds there has been no worker"):
            replay(NOTHING, items(1), workers=opened)


def test_an_address_where_nobody_listens_is_one_line() -> None:
    with (
        pytest.raises(ChatStackError, match=r"Dask: no scheduler at tcp://127\.0\.0\.1:9"),
        workers("tcp://127.0.0.1:9"),
    ):
        pass


def test_nobody_else_on_this_machine_can_use_its_workers(two: DaskWorkers) -> None:
    """They run whatever they are sent: without this process' certificate nobody connects."""
    address = two.client.scheduler.address
    assert address.startswith("tls://127.0.0.1:")

    with pytest.raises((OSError, TypeError)):
        Client(address, timeout=1)


def lines(path: Path, count: int) -> Path:
    with path.open("w") as file:
        for item in items(count):
            if not hasattr(item, "body"):
                continue
            file.write(json.dumps({"id": item.id, "model": "gpt-4o", **item.body}) + "\n")
    return path


def report_at(path: Path) -> object:
    """The report without what a clock says."""
    return json.loads(path.read_text(), object_hook=lambda each: each | {"cpu_ms_per_call": 0})


def test_the_command_tells_the_same_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["replay", str(lines(tmp_path / "talks.jsonl", 5)), "--window", "1500", "--json"]

    assert main([*command, str(tmp_path / "alone.json"), "--jobs", "1"]) == 1
    said = capsys.readouterr()
    assert main([*command, str(tmp_path / "on.json"), "--on", "dask", "--jobs", "2"]) == 1

    assert report_at(tmp_path / "on.json") == report_at(tmp_path / "alone.json")
    assert "role: expected one of" in capsys.readouterr().err
    assert "role: expected one of" in said.err


@pytest.mark.slow
def test_tuning_finds_the_same_settings_and_figures_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "talks.jsonl"
    with path.open("w") as file:
        for number in range(14):
            messages = list(talk(number, 6 + number % 5).body["messages"])
            messages[1] = {"role": "user", "content": f"task {number}"}  # by which a half is chosen
            file.write(json.dumps({"id": f"talk-{number}", "model": "gpt-4o", "messages": messages}) + "\n")
    command = ["tune", str(path), "--window", "1500", "--trials", "4", "--grounding", "5"]

    for name, more in (("alone", ["--jobs", "1"]), ("on", ["--on", "dask", "--jobs", "2"])):
        written = ["--write", str(tmp_path / f"{name}.toml"), "--json", str(tmp_path / f"{name}.json")]
        assert main([*command, *written, *more]) == 0, capsys.readouterr().err

    assert (tmp_path / "on.toml").read_text() == (tmp_path / "alone.toml").read_text()
    assert report_at(tmp_path / "on.json") == report_at(tmp_path / "alone.json")


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
from chatstack.cli.interrupts import interrupts_kept
from chatstack.workbench.replay.parallel import replay
from chatstack_dask import workers
from recordings import COMPARED, talk

if __name__ == "__main__":
    with interrupts_kept(), workers(jobs=2) as opened:
        replay(COMPARED, itertools.repeat(talk(1, 10)), workers=opened, on_progress=lambda _: print("", flush=True))
"""


BLOCKED = """
import signal
from chatstack_dask import workers

if __name__ == "__main__":
    with workers(jobs=2) as opened:
        masks = opened.client.run(lambda: signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        print(*masks.values())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no masks of signals there")
def test_no_worker_is_interrupted_from_its_first_moment_on(tmp_path: Path) -> None:
    """In a process of its own, as the first one that ``multiprocessing`` starts in a process changes the mask."""
    program = tmp_path / "blocked.py"
    program.write_text(BLOCKED)
    said = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout == "True True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_however_it_is_ended_no_process_is_left(how: str, tmp_path: Path) -> None:
    """As a terminal interrupts it, with all that it started; or killed alone. Only the first process says that it was
    interrupted; Dask in it may log that a connection is gone."""
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            if how == "interrupted":
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.kill()
            _, said = process.communicate(timeout=60)
            assert process.returncode == -(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
            if how == "interrupted":
                assert said.endswith("KeyboardInterrupt\n")
                assert said.count("KeyboardInterrupt") == 1
            deadline = time.monotonic() + 60
            while alive_in(process.pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert alive_in(process.pid) == []
        finally:
            if alive_in(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
