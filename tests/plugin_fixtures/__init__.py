"""Little distributions, made on the fly: a folder on the path with modules and a ``.dist-info``, as pip leaves it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

LAYER = '''
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Redactor:
    """Takes out what is secret. Goes anywhere."""

    inner: object
    _: KW_ONLY
    words: tuple[str, ...] = ()

    async def send(self, request, /):
        return await self.inner.send(request)


class BadTaste:
    def __init__(self, inner, *, colour: str = "green"):
        raise RuntimeError(f"cannot abide {colour}")
'''
STRATEGY = """
from dataclasses import dataclass

from chatstack import Strategy


@dataclass(frozen=True)
class Halves(Strategy):
    share: float = 0.5
    name = "halves"

    def plan(self, context):
        return None
"""
COUNTER = """
from chatstack import TokenCounter


class Words(TokenCounter):
    def __init__(self, per_word: int = 1):
        self.per_word = per_word

    def count_text(self, text):
        return len(text.split()) * self.per_word

    def __repr__(self):
        return f"Words({self.per_word})"
"""
STORE = '''
class Shelf:
    """Holds nothing."""

    def __init__(self, url: str, *, ttl_seconds: float = 60):
        self.url, self.ttl_seconds = url, ttl_seconds

    async def find(self, owner, links):
        return None

    async def put(self, owner, link, record, *, replaces=None):
        return record

    async def forget(self, links=None):
        pass

    async def aclose(self):
        pass
'''
BROKEN = "import a_package_that_nobody_has\n"
PROVIDER = """
from chatstack.testing import ScriptedClient


def parrot(model):
    return ScriptedClient([model])
"""


class Shop:
    """Installs distributions into a folder of its own, and takes out again what was imported of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: set[str] = set()

    def install(
        self,
        name: str,
        points: Mapping[str, str] | str = "",
        modules: Mapping[str, str] | None = None,
        *,
        version: str = "1.0",
        folder: Path | None = None,
    ) -> None:
        """A distribution. ``points`` are ``{"group: name": "module:attribute"}``, or all of ``entry_points.txt``."""
        into = folder or self.folder
        info = into / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = points
        if not isinstance(points, str):
            lines = ""
            for place, target in points.items():
                group, _, point = place.partition(": ")
                lines += f"[chatstack.{group}]\n{point} = {target}\n"
        (info / "entry_points.txt").write_text(str(lines))
        for module, code in (modules or {}).items():
            (into / f"{module}.py").write_text(code)
            self._modules.add(module)
        importlib.invalidate_caches()

    def was_imported(self, module: str) -> bool:
        return module in sys.modules

    def forget(self) -> None:
        for module in self._modules:
            sys.modules.pop(module, None)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("CHATSTACK_PLUGINS", raising=False)
    made = Shop(folder)
    yield made
    made.forget()
