"""Invalidation: dependency-injector's singletons are made anew when what they were made with has changed.

A singleton that has been made does not notice that a provider below it is overridden later, that the override ends, or
that a resource is shut down. So whoever asks for a client through a ``Watch`` first resets the singletons whose
dependencies have changed. As long as nothing changes, that costs one walk through the providers of a client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias, cast
from weakref import WeakValueDictionary

from dependency_injector import errors, providers

from chatstack.errors import WiringError
from chatstack.stack.recipe import ChatStack
from chatstack.stack.services import SharedServices

Provider: TypeAlias = "providers.Provider[Any]"
InForce: TypeAlias = "dict[Provider, object]"
"""Snapshot of a provider and those below it: each override, and the value of each resource, None while it is closed."""

_Seen: TypeAlias = "tuple[InForce, bool]"
"""A snapshot, and True if it was taken when a client was asked for."""
_LOCAL = (providers.ThreadLocalSingleton, providers.ContextLocalSingleton)
_KEPT = (providers.BaseSingleton, providers.Resource, providers.AttributeGetter, providers.ItemGetter)


class Watch(providers.List):
    """A provider of clients that checks the dependencies of each client before it gives one."""

    def __init__(self, *made: Provider) -> None:  # one; a container's copy is made with none, and given it later
        super().__init__(*made)
        self._kept: list[_Kept] = []
        self._before: tuple[int, InForce] | None = None

    @property
    def related(self) -> Iterator[Provider]:
        """Dependencies. A container reads this once complete: overrides set by then go into the first snapshot."""
        if self._before is None and self.args:
            with _nothing_else_changes():
                self._find_kept()
                for each in self._kept:
                    each.note(was_asked=False)
        yield from cast("tuple[Provider, ...]", self.args)

    def ask(self) -> Any:
        """Return the client, made from its dependencies as they are now.

        Raises ``WiringError`` for an open resource that was opened with dependencies that have changed since.
        """
        (made,) = cast("tuple[Provider]", self.args)
        if self._before is not None and self._before[0] == _Kept.changes and _same(self._before[1], _in_force(made)):
            return made()
        with _nothing_else_changes():
            self._find_kept()
            for each in self._kept:
                each.renew()
            try:
                return made()
            finally:
                for each in self._kept:
                    each.note(was_asked=True)
                is_local = any(isinstance(each.provider, _LOCAL) for each in self._kept)
                self._before = (-1 if is_local else _Kept.changes, _in_force(made))

    def _find_kept(self) -> None:
        those: Iterator[Provider] = cast("Any", providers).traverse(*self.args, types=_KEPT)
        self._kept = [_all_kept.get(id(each)) or _all_kept.setdefault(id(each), _Kept(each)) for each in those]


@contextmanager
def _nothing_else_changes() -> Generator[None]:
    """Hold the library's own locks: no thread-safe singleton is made and no provider overridden in another thread.

    A lock of ours would be a third one, and could deadlock: making a singleton may ask for a client, and a client makes
    singletons.
    """
    with cast("Any", providers.ThreadSafeSingleton).storage_lock, cast("Any", providers.Provider).overriding_lock:
        yield


def effective(provider: Provider) -> Provider:
    """Return the provider that answers in the end: an override, the default of a dependency, or the provider itself."""
    other = _overriding(provider)
    if other is None and isinstance(provider, providers.Dependency):
        other = provider.default
    return provider if other is None else effective(other)


def _overriding(provider: Provider) -> Provider | None:
    return provider.last_overriding  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def derived(provider: Provider, stack: ChatStack) -> ChatStack:
    """Return the stack with the services, memory included, of the first stack that its provider gave.

    If the stack names another memory, the recipe has been changed, and its own services count from then on.
    """
    provider = effective(provider)
    if isinstance(provider, providers.Selector) and provider.selector is not None:
        return derived(provider.providers[provider.selector()], stack)
    kept = _all_kept.get(id(provider))
    if kept is None:
        return stack
    if kept.shared is None or kept.shared[0] is not stack.memory:
        kept.shared = stack.memory, stack.services
    services = kept.shared[1]
    return stack if services is stack.services else replace(stack, services=services)


def _in_force(provider: Provider) -> InForce:
    found: InForce = {}
    seen, to_visit = set[Provider](), [provider]
    while to_visit:
        each = to_visit.pop()
        if each in seen:
            continue
        seen.add(each)
        other = _overriding(each)
        if other is not None:
            found[each] = other
            to_visit.append(other)  # the overridden provider is not called
            continue
        to_visit.extend(each.related)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        if isinstance(each, providers.Resource):
            found[each] = each() if each.initialized else None
        elif isinstance(each, providers.ConfigurationOption):
            found[each] = _value_of(each)
    return found


def _value_of(option: providers.ConfigurationOption) -> object:
    """Return an option of the configuration, even if it is not set."""
    try:
        value: object = option()
    except errors.Error:  # the option of a strict configuration
        value = None
    return _NOT_SET if value is None else value


def _same(one: InForce, other: InForce) -> bool:
    return one.keys() == other.keys() and all(_settled(one[each]) is _settled(other[each]) for each in one)


def _has_changed(before: InForce, now: InForce) -> bool:
    """Return True if an override has changed, or an open resource was closed or opened again."""
    for each in before.keys() | now.keys():
        was, there = _settled(before.get(each)), _settled(now.get(each))
        was_of_no_use = was is None and (
            (isinstance(each, providers.Resource) and not isinstance(there, providers.Provider))
            or (isinstance(each, providers.Dependency) and not each.default)
        )  # nothing can have been made with a resource before it was opened, nor with a dependency before it was given
        if was is not there and not was_of_no_use:
            return True
    return False


def _settled(value: object) -> object:
    """Return the result of a future that is done: asynchronous resources give a new future each time for one result."""
    if asyncio.isfuture(value) and value.done() and not value.cancelled() and value.exception() is None:
        return cast("object", value.result())
    return value


class _Kept:
    """A provider that keeps values: its last snapshot, and whether a client had asked for it by then.

    For a singleton per thread or per context, there is one snapshot for each. All clients that depend on the provider
    share one ``_Kept``, so that none resets what another one has just had made.
    """

    changes: ClassVar[int] = 0
    """Number of changes found, by any client: a higher count makes the other clients look again."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.shared: tuple[object, SharedServices] | None = None
        first: _Seen = _in_force(provider), False
        self._seen: Callable[[], _Seen]
        self._see: Callable[[_Seen], object]
        if isinstance(provider, providers.ContextLocalSingleton):
            seen = ContextVar[_Seen]("seen", default=first)
            self._seen, self._see = seen.get, seen.set
        else:
            place = threading.local() if isinstance(provider, providers.ThreadLocalSingleton) else SimpleNamespace()
            self._seen, self._see = partial(getattr, place, "seen", first), partial(setattr, place, "seen")

    def renew(self) -> None:
        """Reset a singleton whose dependencies have changed; raise ``WiringError`` for an open resource."""
        if _overriding(self.provider) is not None:
            return
        before, was_asked = self._seen()
        now = _in_force(self.provider)
        has_changed = _has_changed(before, now)
        if isinstance(self.provider, providers.Resource):
            opened = _settled(now[self.provider])
            if has_changed and opened is not None and opened is _settled(before.get(self.provider)):
                raise _left_open(self.provider)
        # A value made for another caller may have been made with a resource that is closed by now.
        elif isinstance(self.provider, providers.BaseSingleton) and (
            has_changed or (not was_asked and any(value is None for value in now.values()))
        ):
            self.provider.reset()
        if has_changed:
            _Kept.changes += 1

    def note(self, *, was_asked: bool) -> None:
        """Take a snapshot. Before a client has asked, it is only a guess at what the value was made with."""
        if _overriding(self.provider) is None and (was_asked or not self._seen()[1]):
            self._see((_in_force(self.provider), was_asked))


def _left_open(resource: providers.Resource[object]) -> WiringError:
    name = getattr(resource.provides, "__name__", type(resource.provides).__name__)
    return WiringError(
        f"the resource of {name} is open, and was opened before something that it depends on was overridden, or shut "
        "down, or while it was overridden; shut it down first, or override the resource itself"
    )


_NOT_SET = object()
_all_kept: WeakValueDictionary[int, _Kept] = WeakValueDictionary()
"""The kept providers by ``id``; a ``_Kept`` keeps its provider alive. The watches hold them."""
