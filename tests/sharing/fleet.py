"""Several processes over one store, conversations that move between them on every call, and what came of it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Timer
from typing import Any, NamedTuple

from chatstack.context.memory.stored import VERSION
from tests.sharing.talks import CALLS

ROOT = Path(__file__).resolve().parents[2]
TALKS = int(os.environ.get("CHATSTACK_SHARED_TALKS", "16"))
"""How many conversations; 2,000 in ``.ci/full``."""
WORKERS = 4
TIMEOUT_SECONDS = 0.25
"""The stated bound of one query, as ``ContextMemory`` has it, where a store does not answer."""
REST_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""The bound where a store answers at once, so that no verdict depends on how fast the machine is."""
DRIVER_SECONDS = 3_600.0
"""The timeout of a store's own driver: a call that waited for that, and not for ours, would never end here."""
STOPPED_SECONDS = 1.0
BATCH = 8
OTHER_VERSIONS = [bytes([0x95, each, 0, 0x90, 0x90, 0x90]) for each in (1, VERSION + 1)]
"""The beginnings of records as version 0.1.0 and a later one write them; what follows is none of this release's."""


def nothing() -> None:
    """Do nothing, where something may go wrong."""


class Worker:
    """One process, told what to do and asked what came of it."""

    def __init__(self, who: int, store: dict[str, Any] | None) -> None:
        self.who = who
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sharing.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        self.told({"who": who, "store": store, "timeout": PATIENCE_SECONDS, "rest": REST_SECONDS})

    def told(self, order: dict[str, Any]) -> Any:
        """Give an order, and wait for the answer. Raises ``BrokenPipeError`` if the process is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise BrokenPipeError("the process is gone")
        return json.loads(answer)

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._end()

    def _end(self) -> None:
        self.process.wait(timeout=60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


@dataclass
class Round:
    """What came of one call of each conversation."""

    name: str
    hangs: bool = False
    calls: int = 0
    same: int = 0
    """Calls that began with exactly what the call before had sent, of ``latched``."""
    latched: int = 0
    """Calls in which one process alone edits nothing, so that the prefix has to stay."""
    again: int = 0
    """Calls that were lost with their process, and made again by another one."""
    slowest: float = 0.0
    waited: float = 0.0
    edits: Counter[str] = field(default_factory=Counter)
    written: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    """What the first message was that differs, of the calls that did not begin with what was sent before."""

    @property
    def share(self) -> float:
        return self.same / self.latched if self.latched else 1.0

    def __str__(self) -> str:
        warned = ", ".join(f"{name} {count}" for name, count in self.warnings.items()) or "none"
        changed = "".join(f", {what} {count}" for what, count in self.changed.items())
        return (
            f"{self.name:<44} {self.calls:>6} calls, same prefix {self.same}/{self.latched} ({self.share:.2%}), "
            f"slowest call {self.slowest * 1000:,.0f} ms, longest query {self.waited * 1000:,.0f} ms, "
            f"{self.edits.total()} edits, {self.written} summaries, {self.again} made again; "
            f"warnings: {warned}{changed}"
        )


class Alone(NamedTuple):
    """What one process without a store does with a conversation: with each of them the same.

    ``latched`` says of each call whether it begins with what the call before has sent.
    """

    latched: list[bool]
    written: int
    edits: Counter[str]

    @classmethod
    def of(cls, number: int) -> Alone:
        worker = Worker(0, None)
        try:
            told = [worker.told({"calls": [[number, at]]}) for at in range(CALLS)]
        finally:
            worker.close()
        sent = [each["calls"][0]["sent"] for each in told]
        latched = [True, *(_begins(after, before) for before, after in itertools.pairwise(sent))]
        edits = sum((Counter(each["edits"]) for each in told), Counter[str]())
        return cls(latched, sum(each["written"] for each in told), edits)


class Fleet:
    """The processes, the conversations, and everything that was told."""

    def __init__(self, store: dict[str, Any], *, talks: int = TALKS) -> None:
        self.store = store
        self.talks = range(talks)
        self.alone = Alone.of(0)
        assert len(self.alone.edits) == 3, "all three layers edit"
        self.rounds: list[Round] = []
        self.kept: dict[str, str] = {}
        """What the store said that it keeps, by owner and link."""
        self.lost: list[str] = []
        """Updates that were lost: of which processes were told different things."""
        self._sent: dict[int, list[str]] = {}
        self._next = self._shift = 0
        self._lock = Lock()
        with ThreadPoolExecutor(WORKERS) as threads:
            self.workers = [*threads.map(lambda who: Worker(who, store), range(WORKERS))]
        self._names = iter(range(WORKERS, 1_000))

    def play(
        self, name: str, *, halfway: Callable[[], object] = nothing, moves: bool = True, hangs: bool = False
    ) -> Round:
        """Make the next call of every conversation, each by another process than the last one if it ``moves``.
        ``halfway`` is done while the processes are at work; from then on the store may hang, and does so until the last
        call has ended."""
        at, self._next = self._next, self._next + 1
        self._shift += moves
        done = Round(name, hangs)
        self.each({"timeout": TIMEOUT_SECONDS if hangs else PATIENCE_SECONDS})
        orders: list[list[int]] = [[] for _ in self.workers]
        for number in self.talks:
            orders[(number + self._shift) % WORKERS].append(number)
        lost: list[int] = []
        with ThreadPoolExecutor(WORKERS) as threads:
            for third in range(3):  # before it goes wrong, while it does, and after that
                running = [threads.submit(self._play, who, orders[who][third::3], at, done) for who in range(WORKERS)]
                if third == 1:
                    halfway()
                lost += [number for each in running for number in each.result()]
        for who, worker in enumerate(self.workers):
            if worker.process.poll() is not None:  # another one in its place
                worker.kill()
                self.workers[who] = Worker(next(self._names), self.store)
        if lost:
            done.again = len(lost)
            assert not self._play(0, lost, at, done)
        self.rounds.append(done)
        print(done, flush=True)
        return done

    @property
    def goes_on(self) -> bool:
        """True while the conversations have calls left."""
        return self._next < CALLS

    def play_until_settled(self) -> None:
        """Go on until the next call is one that edits nothing, and there is something decided that it has to keep."""
        while not self.alone.latched[self._next] or all(self.alone.latched[: self._next]):
            self.play("nothing is wrong")

    def play_until_edited(self) -> None:
        """Go on until the next call is one that edits."""
        while self.alone.latched[self._next]:
            self.play("nothing is wrong")

    def play_to_the_end(self) -> None:
        """Make all calls that are left."""
        while self.goes_on:
            self.play("nothing is wrong")

    def other_version(self, which: int) -> bytes:
        """Return a record of another version, of an older and of a newer one in turn."""
        self.forgive()  # what is put there, on purpose
        return OTHER_VERSIONS[which % 2]

    def stop(self, who: int) -> None:
        """Stop a process for a while; it is woken behind its back."""
        process = self.workers[who].process
        process.send_signal(signal.SIGSTOP)
        Timer(STOPPED_SECONDS, lambda: process.send_signal(signal.SIGCONT)).start()

    def each(self, order: dict[str, Any]) -> None:
        """Give every process an order."""
        for worker in self.workers:
            worker.told(order)

    def rest(self) -> None:
        """Wait until every process uses the store again, after an outage; then one of its calls tries, and the others
        do not wait for that one."""
        for worker in self.workers:
            while not worker.told({"tried": True}):
                time.sleep(REST_SECONDS)

    def forget(self, numbers: Sequence[int]) -> None:
        """Have these conversations forgotten, by all processes, many at a time."""
        for who, worker in enumerate(self.workers):
            for start in range(who * BATCH, len(numbers), BATCH * WORKERS):
                assert worker.told({"forget": [*numbers[start : start + BATCH]]}) == "forgotten"

    def missing(self) -> list[str]:
        """Return what the store said that it keeps, and does not have."""
        there: dict[str, str] = self.workers[0].told({"look_up": [*self.kept]})
        return [key for key, kept in self.kept.items() if there.get(key) != kept]

    def forgive(self) -> None:
        """Note that the store was emptied on purpose."""
        self.kept.clear()
        self.each({"forgive": True})

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.close()
            else:
                worker.kill()

    def _play(self, who: int, numbers: Sequence[int], at: int, done: Round) -> list[int]:
        """Have calls made in batches; return those that were lost with the process."""
        worker = self.workers[who]
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start : start + BATCH]
            try:
                told = worker.told({"calls": [[number, at] for number in batch]})
            except (BrokenPipeError, ValueError):
                return [*numbers[start:]]
            with self._lock:
                self._note(told, at, done)
        return []

    def _note(self, told: dict[str, Any], at: int, done: Round) -> None:
        for call in told["calls"]:
            before, self._sent[call["talk"]] = self._sent.get(call["talk"], []), call["sent"]
            done.calls += 1
            done.slowest = max(done.slowest, call["took"])
            if call["error"]:
                done.errors.append(call["error"])
            if at and self.alone.latched[at]:
                done.latched += 1
                done.same += (same := _begins(call["sent"], before))
                if not same:
                    done.changed[_change(before, call["sent"])] += 1
        done.waited = max(done.waited, told["waited"])
        done.edits.update(told["edits"])
        done.written += told["written"]
        done.warnings.update(told["warnings"])
        done.failures.update(told["failures"])
        for key, kept in told["kept"].items():
            if self.kept.setdefault(key, kept) != kept:
                self.lost.append(f"{done.name}: {key}")


def checked(fleet: Fleet, *, but: Sequence[str] = ()) -> None:
    """Check what has to hold whatever was wrong, and in all rounds but those that each prefix is the one before."""
    print(summed(fleet.rounds))
    assert [error for each in fleet.rounds for error in each.errors] == []
    assert fleet.lost == []
    assert fleet.missing() == []
    assert [each.name for each in fleet.rounds if each.same < each.latched and each.name not in but] == []
    assert {each.name for each in fleet.rounds}.issuperset(but)
    # Whoever could not ask the store has written a summary of its own; all else is worked out alike in every process.
    assert {what for each in fleet.rounds for what in each.changed} <= {"summary to summary"}


def summed(rounds: Iterable[Round]) -> str:
    """One line about all of them."""
    rounds = [*rounds]
    same, latched = sum(each.same for each in rounds), sum(each.latched for each in rounds)
    calls, slowest = sum(each.calls for each in rounds), max(each.slowest for each in rounds)
    return f"{calls:,} calls, same prefix {same:,}/{latched:,} ({same / max(1, latched):.2%}), slowest {slowest:.2f} s"


def _change(before: list[str], sent: list[str]) -> str:
    """Say what the first message was that differs: its kind, before and after."""
    for old, new in zip(before, sent, strict=False):
        if old != new:
            return f"{old.split()[0]} to {new.split()[0]}"
    return "fewer messages"


def _begins(sent: list[str], before: list[str]) -> bool:
    return bool(before) and sent[: len(before)] == before
