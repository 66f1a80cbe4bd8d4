"""Several processes of one gateway: what each of them tells is shared by files, so that any of them can tell it all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

from chatstack_gateway.activity import LATEST, Activity
from chatstack_gateway.measuring import exposition

TELLING_SECONDS = 2.0
"""Time between two tellings."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (.*)$")


class Notices:
    """What this process and the others have to tell."""

    def __init__(self, folder: Path | None, activity: Activity) -> None:
        self._activity = activity
        self._figures = Notice(folder, "activity")
        self._metrics = Notice(folder, "metrics")
        self._has_others = folder is not None

    def write(self) -> None:
        """Tell the others."""
        self._figures.write(lambda: json.dumps(self._activity.told()))
        self._metrics.write(exposition)

    def activity(self) -> dict[str, object]:
        """Return the figures of all processes."""
        others = [figures for _, text in self._figures.of_others() if (figures := _read(text)) is not None]
        return merged_activity([self._activity.told(), *others])

    def metrics(self) -> str:
        """Return the metrics of all processes, each sample with its process as a label if there may be several."""
        if not self._has_others:
            return exposition()
        return merged_metrics([(str(os.getpid()), exposition()), *self._metrics.of_others()])


class Notice:
    """A file of this process in the gateway's folder, and those of the others. Without a folder there are no others."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._folder = folder
        self._name = name

    def write(self, text: Callable[[], str]) -> None:
        """Write what this process has to tell."""
        if self._folder is None:
            return
        path = self._folder / f"{self._name}-{os.getpid()}"
        part = path.with_suffix(".part")
        part.write_text(text())
        part.replace(path)

    def of_others(self) -> Iterator[tuple[str, str]]:
        """Yield the number of each other process, and what it told last."""
        if self._folder is None:
            return
        for path in sorted(self._folder.glob(f"{self._name}-*")):
            number = path.name.rpartition("-")[2]
            if number.isdigit() and int(number) != os.getpid():
                try:
                    yield number, path.read_text()
                except OSError:  # removed meanwhile
                    continue


def merged_metrics(texts: Iterable[tuple[str, str]]) -> str:
    """Return expositions of several processes as one: each family once, each sample with its process as a label."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, text in texts:
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head and len(head) < 2:
                    head.append(line)
            elif found := _SAMPLE.match(line):
                name, labels, value = found.groups()
                both = f'worker="{worker}"' + (f",{labels}" if labels else "")
                samples.setdefault(family, []).append(f"{name}{{{both}}} {value}")
    return "".join(f"{line}\n" for family, head in heads.items() for line in (*head, *samples.get(family, ())))


def merged_activity(told: Iterable[dict[str, object]]) -> dict[str, object]:
    """Return the figures of several processes as one."""
    first, *rest = told
    total = dict(first)
    for other in rest:
        for name, value in other.items():
            total[name] = _sum(total.get(name), value)
    total["started"] = min(cast("float", each["started"]) for each in (first, *rest))
    latest = cast("list[dict[str, float]]", total["latest"])
    total["latest"] = sorted(latest, key=lambda each: each["at"])[-LATEST:]
    return total


def _sum(one: object, other: object) -> object:
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast("dict[str, float]", one), cast("dict[str, float]", other)
        return {name: ours.get(name, 0) + theirs.get(name, 0) for name in {**ours, **theirs}}
    return one + other  # type: ignore[operator]  # numbers, or lists


def _read(text: str) -> dict[str, object] | None:
    """Return the figures in a file; None if it holds none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) and "latest" in found else None
