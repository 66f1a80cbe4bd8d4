# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[openai,tokenizer,prices,peers]", "opentelemetry-sdk>=1.37"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""Every ratio that ``docs/figures.md`` states, in one run: ``uv run tests/benchmarks/all.py --data DIR``.

The peers are installed into an environment of its own. The benchmarks run one after the other, each in a process of its
own, as nothing else should run on the machine meanwhile. Without ``--data`` the recordings are left out; what DIR holds
is said in ``recordings.py``. ``--json`` writes all figures to one file, for ``compare.py``. Ends with 1 if one of them
failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results  # beside this file
from results import TIMED

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the recorded conversations")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to one file")
    given = parser.parse_args()
    data: Path | None = given.data
    recorded = [] if data is None else ["--data", str(data.resolve())]
    commands = [[name, *(recorded if name == "counting" else [])] for name in TIMED]
    commands += [["recordings", *recorded]] if recorded else []
    failed: list[str] = []
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for name, *arguments in commands:
            started = time.monotonic()
            out = Path(directory) / f"{name}.json"
            print(f"\n## {name}\n", flush=True)
            if subprocess.run([sys.executable, HERE / f"{name}.py", *arguments, "--json", out]).returncode:
                failed.append(name)
            else:
                found.append(results.read(out))
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if given.json is not None and found:
        results.write(given.json, results.joined(found))
    if data is None:
        print("\nrecordings: left out, as no --data says where they are", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
