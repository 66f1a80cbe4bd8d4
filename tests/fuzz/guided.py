"""Coverage-guided fuzzing of every parser of outside data, by atheris, which is installed for this alone::

    uv run --with atheris python -m tests.fuzz.guided --seconds 60 [TARGET ...]

Each target has a process of its own for so long. Told are the inputs that were tried, the slowest one, and what came
out that is not documented; then the exit code is 1, and the input is kept in a file. An input of a few kilobytes that
takes longer than a second is a fault, too. ``--plain`` tries made mutations instead, without atheris.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

MOST_SECONDS = 1.0
MOST_BYTES = 8_192
_DONE = re.compile(r"^Done (\d+) runs", re.MULTILINE)


class SlowInputError(Exception):
    """An input took too long for its size."""


def timed(target: Target) -> Callable[[bytes], None]:
    """Return a function that parses, and raises for what is not documented, or takes too long."""
    slowest = 0.0
    for seed in target.seeds:  # what is imported with the first input takes its time
        with suppress(*target.errors):
            target.parse(seed)

    def test(data: bytes) -> None:
        nonlocal slowest
        started = time.thread_time()
        try:
            target.parse(data)
        except target.errors:
            pass
        seconds = time.thread_time() - started
        if seconds > slowest * 1.5 + 0.005:
            slowest = seconds
            print(f"slowest so far: {seconds * 1_000:.0f} ms for {len(data):,} bytes", flush=True)
        if seconds > MOST_SECONDS:
            raise SlowInputError(f"{seconds:.1f} s for {len(data):,} bytes")

    return test


def fuzz(name: str, seconds: int, folder: str) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["chatstack"]):
        from tests.fuzz.targets import targets
    logging.getLogger("chatstack").addHandler(logging.NullHandler())
    (target,) = (each for each in targets() if each.name == name)
    corpus = Path(folder, "corpus")
    corpus.mkdir()
    for number, seed in enumerate(target.seeds):
        Path(corpus, str(number)).write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", f"-artifact_prefix={folder}/", "-timeout=30"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], timed(target))
    atheris.Fuzz()


def mutate(name: str, seconds: int, folder: str) -> None:
    """Try mutations of the seeds, not guided by anything."""
    from tests.fuzz.mutations import NASTY
    from tests.fuzz.targets import targets

    logging.getLogger("chatstack").addHandler(logging.NullHandler())
    (target,) = (each for each in targets() if each.name == name)
    test, drawn, runs, started = timed(target), random.Random(name), 0, time.monotonic()
    while time.monotonic() - started < seconds:
        data, other = drawn.choice(target.seeds), drawn.choice(target.seeds)
        for _ in range(drawn.randint(1, 5)):
            start, end = sorted((drawn.randint(0, len(data)), drawn.randint(0, len(data))))
            end = end if drawn.random() < 0.1 else min(end, start + drawn.randint(0, 12))
            at = drawn.randint(0, len(other))
            between = drawn.choice(
                (b"", drawn.choice(NASTY), other[at : at + 20], data[start:end] * 2, drawn.randbytes(2))
            )
            data = data[:start] + between + data[end:]
        try:
            test(data[:MOST_BYTES])
        except BaseException:
            Path(folder, "crash").write_bytes(data[:MOST_BYTES])
            raise
        runs += 1
    print(f"Done {runs} runs", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--plain", action="store_true", help="mutations, without atheris")
    parser.add_argument("--in-process", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.in_process:
        (mutate if asked.plain else fuzz)(asked.targets[0], asked.seconds, asked.in_process)
        return 0
    from tests.fuzz.targets import targets

    failed, total = [], 0
    for name in asked.targets or [each.name for each in targets()]:
        folder = tempfile.mkdtemp(prefix="fuzz-")
        plain = ["--plain"] if asked.plain else []
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.guided",
            name,
            f"--seconds={asked.seconds}",
            "--in-process",
            folder,
        ]
        run = subprocess.run([*command, *plain], capture_output=True, text=True, errors="replace")
        found = _DONE.search(run.stderr)
        runs = int(found[1]) if found else 0
        total += runs
        slowest = (run.stdout.strip().splitlines() or ["-"])[-1]
        print(f"{name}: {runs:,} inputs; {slowest}{'' if found else f'; FAILED, see {folder}'}", flush=True)
        if not found:
            failed.append(name)
            print("\n".join((run.stdout + run.stderr).splitlines()[-40:]), flush=True)
    print(f"{total:,} inputs; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
