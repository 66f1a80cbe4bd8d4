"""The figures of a benchmark run as JSON, with the commit, the machine and the versions that they belong to.

``Run`` reads the options that all benchmarks share, takes their figures, and writes the file: one record for the run,
and for each figure its unit and its values, one for each round. Times are seconds; ``exact`` figures depend on the code
and its input alone, so that one value is enough.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chatstack

TIMED = ("layers", "telemetry", "counting", "clearing", "summarizing", "pauses")
VERSION = 1
LIBRARIES = (
    "msgspec",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "openai",
    "langchain",
    "langchain-core",
    "agent-framework-core",
    "bpe-openai",
)


class Run:
    """One run of one benchmark, or of several after one another."""

    def __init__(self, benchmark: str, *, rounds: int, json: Path | None) -> None:
        self.benchmark = benchmark
        self.rounds = rounds
        self.json = json
        self.about = about()
        self.figures: dict[str, dict[str, Any]] = {}

    @classmethod
    def from_command_line(cls, benchmark: str, description: str | None, *, rounds: int) -> Run:
        """Read ``--rounds`` and ``--json``."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        add_options(parser, rounds=rounds)
        given = parser.parse_args()
        return cls(benchmark, rounds=given.rounds, json=given.json)

    def seconds(self, name: str, values: Sequence[float], *, is_ours: bool = True) -> None:
        """Note what a subject took in each round. What is not ours shows how much the machine itself has changed."""
        self.add(name, {"unit": "seconds", "is_ours": is_ours, "values": list(values)})

    def exact(self, name: str, value: float | None) -> None:
        self.add(name, {"unit": "exact", "is_ours": True, "values": [value]})

    def add(self, name: str, figure: dict[str, Any]) -> None:
        key = f"{self.benchmark}: {name}"
        if key in self.figures:
            raise ValueError(f"two figures are called {key!r}")
        self.figures[key] = figure

    def write(self) -> None:
        """Write the file, if one was asked for."""
        if self.json is not None:
            after = [round(load, 1) for load in os.getloadavg()]
            write(self.json, {**self.about, "load_after": after, "figures": self.figures})


def add_options(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    parser.add_argument("--rounds", type=positive, default=rounds, help=f"how often each is timed ({rounds})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, for compare.py")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def about() -> dict[str, Any]:
    """Describe what the figures belong to: the code, the machine, the versions."""
    root = Path(chatstack.__file__).resolve().parents[1]
    return {
        "version": VERSION,
        "checkout": str(root),
        "commit": commit_of(root),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": {name: version for name in LIBRARIES if (version := version_of(name))},
        "load_before": [round(load, 1) for load in os.getloadavg()],
    }


def commit_of(root: Path) -> str | None:
    """The commit of a checkout, with a plus behind it if the package has been changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip() + ("+" if git("status", "--porcelain", "chatstack") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


# files


def write(path: Path, results: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    results = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(results, dict) or results.get("version") != VERSION:
        raise ValueError(f"{path} holds no results of version {VERSION}")
    return results


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several results of one checkout as one: more figures, or more rounds of the same ones."""
    first, last = parts[0], parts[-1]
    figures: dict[str, dict[str, Any]] = {}
    for part in parts:
        if (part["checkout"], part["commit"]) != (first["checkout"], first["commit"]):
            raise ValueError(f"{part['checkout']} at {part['commit']} is not {first['checkout']} at {first['commit']}")
        for name, figure in part["figures"].items():
            known = figures.setdefault(name, {**figure, "values": []})
            known["values"] += figure["values"]
    return {**first, "load_after": last["load_after"], "figures": figures}
