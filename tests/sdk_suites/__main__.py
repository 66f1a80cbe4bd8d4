"""Run the SDKs' own tests bare, around an empty stack, and around layers below every trigger, and say what differs.

    uv run --with-requirements tests/sdk_suites/requirements.txt python -m tests.sdk_suites openai anthropic

The source distribution of the installed SDK is taken from the package index into a directory that is removed at the
end, or is where ``--source`` says. Run bare are the files that have asynchronous clients and name one of the APIs that
a stack goes around; with a stack those of their tests that call such an API, as seen in the bare run. The tests talk to
mock transports of theirs, or to ``stand_in.py``. ``-k`` goes on to pytest. A test that differs, or a call that went
past the stack, is listed; the exit code is 1 unless ``EXPECTED`` and ``OTHERS`` name all of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PLACES = ("empty", "layers")
CLIENTS = {"openai": r"async_client|Async(Azure|Bedrock)?OpenAI", "anthropic": r"async_client|AsyncAnthropic\b"}
CALLS = {
    "openai": r"chat\.completions|\.responses\.|/chat/completions|\"/responses",
    "anthropic": r"messages\.(create|stream|parse|tool_runner|with_)|/v1/messages",
}
EXPECTED: dict[str, dict[str, str]] = {
    "anthropic": {
        # A body that the transport had read already is read by the stack as the SDK reads it, and so not closed before.
        "empty": r"test_async_stream_over_a_body_that_was_read_before_the_call_returned",
        # As above; the tracer's span stands between those of the SDK and of the transport, and asks OpenTelemetry for
        # its tracer; calls without a result, which the API would refuse, are repaired.
        "layers": r"test_async_stream_over_a_body_that_was_read_before_the_call_returned"
        r"|test_spans_that_start_during_the_call_are_children|test_false_keeps_a_span_that_the_sampler_dropped"
        r"|test_disabled_spans_call_nothing_of_opentelemetry"
        r"|test_runner_sends_the_history_the_loop_body_leaves\[.*(own_result_appended|reply_and_text_set)\]",
    },
    "openai": {"empty": r"(?!)", "layers": r"(?!)"},
}
"""What may differ, by the names of tests."""
OTHERS = {
    "anthropic": r"[Mm]antle|platform_client|disabled_spans|test_copy_|_Subclassed",
    "openai": r"test_continuation_idempotency_uses_effective_client_headers",
}
"""Tests with other clients beside those that can be wrapped: of clouds, and of classes of the tests' own."""


class Run(NamedTuple):
    """What came of one run: the outcome of each test, and the calls that it made."""

    outcomes: dict[str, str]
    calls: dict[str, dict[str, int]]

    def callers(self) -> list[str]:
        """Return the tests that called one of the APIs."""
        return [name for name, calls in self.calls.items() if name and (calls.get("past") or calls.get("through"))]

    def counts(self) -> str:
        """Return how many passed, failed and were skipped."""
        found = [f"{list(self.outcomes.values()).count(each)} {each}" for each in ("passed", "failed", "skipped")]
        return ", ".join(found)

    def number(self, of: str) -> int:
        """Return the number of calls of a kind."""
        return sum(each.get(of, 0) for each in self.calls.values())


def fetched(sdk: str, where: Path) -> Path:
    """Return the unpacked source distribution of the version that is installed."""
    version = importlib.metadata.version(sdk)
    asked = ["download", "-q", "--no-deps", "--no-binary", ":all:", f"{sdk}=={version}", "-d", str(where)]
    subprocess.run([sys.executable, "-m", "pip", *asked], check=True)
    (archive,) = where.glob(f"{sdk}-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(where, filter="data")
    return where / f"{sdk}-{version}"


def files_of(sdk: str, source: Path) -> list[str]:
    """Return the files of tests about asynchronous clients and these APIs."""
    found: list[str] = []
    for path in sorted(source.glob("tests/**/test_*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(CLIENTS[sdk], text) and re.search(CALLS[sdk], text):
            found.append(str(path.relative_to(source)))
    return found


def run(sdk: str, source: Path, place: str, tests: Iterable[str], more: Sequence[str]) -> Run:
    """Run these tests with that around their clients."""
    with tempfile.TemporaryDirectory() as work:
        chosen, told = Path(work, "tests"), Path(work, "outcomes.json")
        chosen.write_text("\n".join(tests), encoding="utf-8")
        ours = {"CHATSTACK_SDK": sdk, "CHATSTACK_IN_PLACE": place, "CHATSTACK_OUTCOMES": str(told)}
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        plain = ["-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=short", "--timeout=60"]
        plain += ["-p", "tests._alias_httpx"] if (source / "tests/_alias_httpx.py").exists() else []
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pytest", *plain, "-p", "in_place", *more, f"@{chosen}"],
            cwd=source,
            env={**environment, **ours, "PYTHONPATH": str(HERE)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not told.exists() or done.returncode not in (0, 1):
            raise RuntimeError(done.stdout[-4_000:] + done.stderr[-4_000:])
        found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return Run(found["outcomes"], found["calls"])


def compared(sdk: str, source: Path, more: Sequence[str]) -> bool:
    """Run an SDK's tests in all three ways and print what came of them; True if nothing differs that may not."""
    bare = run(sdk, source, "", files_of(sdk, source), more)
    callers = bare.callers()
    print(f"{sdk} {importlib.metadata.version(sdk)}, bare: {bare.counts()}; {len(callers)} call the API", flush=True)
    is_well = True
    for place in PLACES:
        found = run(sdk, source, place, callers, ())
        through = sum(1 for calls in found.calls.values() if calls.get("through"))
        print(
            f"  {place}: {found.counts()}; {through} with {found.number('through')} calls through the stack, "
            f"{found.number('past')} past it, {found.number('malformed')} of them malformed"
        )
        different = [name for name, outcome in found.outcomes.items() if bare.outcomes.get(name) != outcome]
        past = [name for name, calls in found.calls.items() if calls.get("past", 0) > calls.get("malformed", 0)]
        for what, names, known in (("differs", different, EXPECTED[sdk][place]), ("goes past", past, OTHERS[sdk])):
            for name in names:
                is_known = re.search(known, name) is not None
                is_well = is_well and is_known
                print(f"    {what}{', as expected' if is_known else ''}: {name}")
        is_well = is_well and found.number("sent") >= found.number("through") > 0
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(description="The SDKs' own tests, with a stack around their clients.")
    parser.add_argument("sdks", nargs="+", choices=list(CLIENTS))
    parser.add_argument("--source", type=Path, help="a directory with unpacked source distributions, openai-3.54.0")
    parser.add_argument("-k", dest="expression", default="", help="of the bare run")
    given = parser.parse_args()
    more = ["-k", given.expression] if given.expression else []
    results: list[bool] = []
    for sdk in given.sdks:
        with tempfile.TemporaryDirectory() as work:
            at = given.source / f"{sdk}-{importlib.metadata.version(sdk)}" if given.source else fetched(sdk, Path(work))
            results.append(compared(sdk, at.resolve(), more))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
