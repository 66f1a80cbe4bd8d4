"""Plugins: layers, providers, counters, stores, strategies, commands, engines that other distributions offer by name.

A distribution offers something by an entry point in one of the ``GROUPS``:

    [project.entry-points."chatstack.stores"]
    redis = "chatstack_redis:RedisStore"

Installing one changes nothing: a plugin is imported when a config, or the command line, names it, and not before. The
environment variable ``CHATSTACK_PLUGINS`` restricts which distributions may be loaded at all: their names with commas
between them; empty, none may; where it is not set, any may that is named.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from chatstack.client.wiring import nearest
from chatstack.errors import WiringError

GROUPS = (
    *("chatstack.layers", "chatstack.providers", "chatstack.counters", "chatstack.stores", "chatstack.strategies"),
    *("chatstack.commands", "chatstack.engines"),
)
"""The kind of object that each group offers: a layer's factory; a callable from a model's name to a client; a callable
that gives a ``TokenCounter``; one that gives a ``DecisionStore``; a strategy's class; a module with the ``register`` of
a command; an ``Engine`` of ``chatstack.workbench.replay.engines``."""

ALLOWED = "CHATSTACK_PLUGINS"

_CAUSE_CHARS = 300


class Offer(NamedTuple):
    """Something that a distribution offers: ``target`` is where it is imported from."""

    group: str
    name: str
    distribution: str
    version: str
    target: str

    @property
    def source(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def may_load(self) -> bool:
        """Tell whether ``CHATSTACK_PLUGINS`` allows it."""
        given = os.environ.get(ALLOWED)
        return _may_load(self.distribution, None if given is None else given.split(","))


def available(group: str) -> tuple[Offer, ...]:
    """Return what the installed distributions offer in that group, by name; nothing is imported.

    What may not be loaded is among it: see ``Offer.may_load``. Raises ``WiringError`` for a group that there is not.
    """
    if group not in GROUPS:
        raise WiringError(f"{group!r} is no group of plugins; {nearest(group, GROUPS)}")
    return tuple(sorted(set(_offers((group,)))))


def find(groups: Sequence[str], name: str, *, allowed: Collection[str] | None = None) -> Offer | None:
    """The one offer of that name in these groups that may be loaded; None if nobody offers any. Imports nothing.

    ``allowed`` names the distributions that may, where fewer may than ``CHATSTACK_PLUGINS`` lets. Raises
    ``WiringError`` if none of those that offer it may be loaded, or if it is offered twice.
    """
    found = [offer for offer in _offers(groups) if offer.name == name]
    if not found:
        return None
    free = [offer for offer in found if offer.may_load]
    if not free:
        raise WiringError(
            f"{name!r} is offered by {_named(found)}, which may not be loaded: "
            f"{ALLOWED}={os.environ.get(ALLOWED, '')!r} does not name it"
        )
    free = [offer for offer in free if _may_load(offer.distribution, allowed)]
    if not free:
        raise WiringError(f"{name!r} is offered by {_named(found)}, which is not allowed in this config")
    if len({(offer.distribution, offer.target) for offer in free}) > 1:
        if len({offer.distribution for offer in free}) == 1:
            targets = " and ".join(dict.fromkeys(f"{offer.target} ({offer.group})" for offer in free))
            raise WiringError(f"{name!r} is offered twice by {free[0].source}: {targets}")
        raise WiringError(
            f"{name!r} is offered by {_named(free)}; uninstall all but one, or name in {ALLOWED} only those that "
            "may be loaded"
        )
    return free[0]


def load(offer: Offer) -> object:
    """Import what is offered. Raises ``WiringError`` with the distribution's name; what went wrong is its cause."""
    point = importlib.metadata.EntryPoint(offer.name, offer.target, offer.group)
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever a foreign module does when it is imported
        raise WiringError(f"{offer.name!r} of {offer.source} cannot be loaded: {told(error)}") from error


def names(groups: Sequence[str], *, allowed: Collection[str] | None = None) -> list[str]:
    """The names in these groups that may be loaded."""
    return sorted(
        {offer.name for offer in _offers(groups) if offer.may_load and _may_load(offer.distribution, allowed)}
    )


def told(error: BaseException, *, hidden: Callable[[str], str] = str) -> str:
    """An error of somebody else's code in one line: its type, and what it says, cut, without what ``hidden`` takes
    out of it."""
    try:
        said = " ".join(hidden(str(error)).split())
    except Exception:  # noqa: BLE001 - an error that cannot even be read: its type has to do
        said = ""
    if len(said) > _CAUSE_CHARS:
        said = f"{said[: _CAUSE_CHARS - 3]}..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _offers(groups: Collection[str]) -> Iterator[Offer]:
    """Every offer of every distribution in these groups.

    Distributions are read one by one, for one whose metadata cannot be read must not hide the others. Where a name is
    installed twice, Python imports the first on its path, so that one counts.
    """
    for distribution in importlib.metadata.distributions():
        try:
            if not any(point.group in groups for point in distribution.entry_points):
                continue
            name = distribution.metadata["Name"]
            first = importlib.metadata.distribution(name)
            points, version = list(first.entry_points), first.metadata["Version"]
        except Exception:  # noqa: BLE001 - broken metadata, of whatever kind: it offers nothing
            continue
        yield from (Offer(each.group, each.name, name, version, each.value) for each in points if each.group in groups)


def _may_load(distribution: str, allowed: Collection[str] | None) -> bool:
    return allowed is None or _plain(distribution) in set(map(_plain, allowed))


def _plain(distribution: str) -> str:
    """A distribution's name as indexes compare it: case, and which of ``-_.`` it has, make no difference."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def _named(offers: Sequence[Offer]) -> str:
    return " and ".join(dict.fromkeys(offer.source for offer in offers))
