"""What dependency-injector's providers keep is made anew when it was made with something else.

A singleton that has been made sees neither what is overridden below it later on, nor the end of that, nor that a
resource has been shut down. So whoever asks for a client, by a ``Watch``, has those reset first whose dependencies are
no longer what they were. As long as nothing changes, that is one walk through the providers that a client is made from.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeAlias, cast
from weakref import WeakValueDictionary

from dependency_injector import providers

from chatstack.client.services import SharedServices
from chatstack.client.stack import ChatStack
from chatstack.errors import WiringError

Provider: TypeAlias = "providers.Provider[Any]"


@contextmanager
def _nothing_else_changes() -> Generator[None]:
    """In no other thread is a thread-safe singleton made, or a provider overridden: the library's own locks, in turn.

    A lock of ours would be a third one: whoever makes a singleton may ask for a client, and a client makes some.
    """
    with cast("Any", providers.ThreadSafeSingleton).storage_lock, cast("Any", providers.Provider).overriding_lock:
        yield


_RESET = (
    providers.Singleton,
    providers.ThreadSafeSingleton,
    providers.ThreadLocalSingleton,
    providers.ContextLocalSingleton,
)
_LOCAL = (providers.ThreadLocalSingleton, providers.ContextLocalSingleton)
_KEPT = (*_RESET, providers.Resource, providers.AttributeGetter, providers.ItemGetter)


class Watch(providers.List):
    """A provider of clients, and what all that it is made from was made with."""

    def __init__(self, *made: Provider) -> None:
        super().__init__(*made)
        self._kept: list[_Kept] = []
        self._was_asked = False
        self._before: tuple[int, _Below] | None = None

    @property
    def related(self) -> Iterator[Provider]:
        """A container reads this when it is complete: what is overridden by then was so when singletons were made."""
        if not self._was_asked:
            with _nothing_else_changes():
                self._was_asked = True  # so long as it looks for itself
                self._kept = self._find_kept()
                for each in self._kept:
                    each.begin()
                self._was_asked = False
        yield from cast("tuple[Provider, ...]", self.args)

    def ask(self) -> Any:
        """What the provider gives, with everything that it is made from as it is now.

        Raises ``WiringError`` when a resource is open that was opened with something else.
        """
        (made,) = cast("tuple[Provider]", self.args)
        if self._before is not None and self._before[0] == _Kept.changes and self._before[1].is_same(_Below.of(made)):
            return made()
        with _nothing_else_changes():
            self._was_asked = True
            self._kept = self._find_kept()
            for each in self._kept:
                each.renew()
            try:
                return made()
            finally:
                for each in self._kept:
                    each.note()
                is_local = any(isinstance(each.provider, _LOCAL) for each in self._kept)
                self._before = None if is_local else (_Kept.changes, _Below.of(made))

    def _find_kept(self) -> list[_Kept]:
        those = cast("Iterator[Provider]", self.traverse(types=_KEPT))
        return [_all_kept.get(id(each)) or _all_kept.setdefault(id(each), _Kept(each)) for each in those]


def effective(provider: Provider) -> Provider:
    """What answers in the end: the provider itself, or what overrides it or is given for it."""
    other = _overriding(provider)
    if other is None and isinstance(provider, providers.Dependency):
        other = provider.default
    return provider if other is None else effective(other)


def _overriding(provider: Provider) -> Provider | None:
    return provider.last_overriding  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def derived(provider: Provider, stack: ChatStack) -> ChatStack:
    """What the provider of a stack has given, with the memory, and all that is shared, of the first that it gave.

    Unless its memory is another one: then that is what has been changed.
    """
    provider = effective(provider)
    if isinstance(provider, providers.Selector) and provider.selector is not None:
        return derived(provider.providers[provider.selector()], stack)
    kept = _all_kept.get(id(provider))
    if kept is None:
        return stack
    memory, services = kept.shared or (stack.memory, stack.services)
    if stack.memory is not memory:
        services = stack.services
    kept.shared = stack.memory, services
    return stack if services is stack.services else replace(stack, services=services)


@dataclass(frozen=True, slots=True, eq=False)
class _Below:
    """What is in force in a provider and below it: what overrides what, and what resources have opened, or None."""

    overriding: dict[Provider, Provider]
    opened: dict[Provider, object]

    @classmethod
    def of(cls, provider: Provider) -> _Below:
        below, seen, to_visit = cls({}, {}), set[Provider](), [provider]
        while to_visit:
            each = to_visit.pop()
            if each in seen:
                continue
            seen.add(each)
            other = _overriding(each)
            if other is None:
                to_visit.extend(each.related)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
                if isinstance(each, providers.Resource):
                    below.opened[each] = each() if each.initialized else None
                continue
            to_visit.append(other)  # what it overrides is not asked
            below.overriding[each] = other
        return below

    def is_same(self, now: _Below) -> bool:
        return (
            self.overriding == now.overriding
            and self.opened.keys() == now.opened.keys()
            and all(self.has_same(each, now) for each in self.opened)
        )

    def has_same(self, resource: Provider, now: _Below) -> bool:
        return _settled(self.opened[resource]) is _settled(now.opened.get(resource))

    def has_changed(self, now: _Below) -> bool:
        """Whether something else is overridden, or what was open has been closed, opened again or not."""
        for each in self.overriding.keys() | now.overriding.keys():
            # Nothing can have been made with a dependency before it was given.
            could_be_made = each in self.overriding or not isinstance(each, providers.Dependency) or each.default
            if could_be_made and self.overriding.get(each) is not now.overriding.get(each):
                return True
        return any(value is not None and not self.has_same(each, now) for each, value in self.opened.items())


def _settled(value: object) -> object:
    """An asynchronous resource gives a future, each time another; its result tells whether it is the same."""
    if asyncio.isfuture(value) and value.done() and not value.cancelled() and value.exception() is None:
        return cast("object", value.result())
    return value


_Seen: TypeAlias = "tuple[_Below, bool]"
"""What was in force below something, and whether a client had asked for it."""


class _Memo(Protocol):
    """Where something is remembered: for everybody, for a thread, or for a context."""

    def get(self) -> _Seen: ...

    def set(self, value: _Seen, /) -> object: ...


class _Everywhere:
    def __init__(self, value: _Seen) -> None:
        self._value = value

    def get(self) -> _Seen:
        return self._value

    def set(self, value: _Seen, /) -> None:
        self._value = value


class _InThread(_Everywhere, threading.local):
    """Begins in each thread with the same."""


class _Kept:
    """Something that a provider keeps: what was in force when it was seen last, and whether a client had asked for it.

    All clients that depend on the provider share one, so that none resets what another one has just had made.
    """

    changes: ClassVar[int] = 0
    """How often something was found changed, by whichever client: the others then look again, too."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.shared: tuple[object, SharedServices] | None = None
        seen: _Seen = _Below.of(provider), False
        self._seen: _Memo
        if isinstance(provider, providers.ContextLocalSingleton):
            self._seen = ContextVar[_Seen]("seen", default=seen)
        else:
            self._seen = (_InThread if isinstance(provider, providers.ThreadLocalSingleton) else _Everywhere)(seen)

    def begin(self) -> None:
        """Take what is in force for what it was made with, unless a client has asked for it."""
        if not self._seen.get()[1]:
            self._seen.set((_Below.of(self.provider), False))

    def renew(self) -> None:
        """Reset a singleton that was made with something else; raise ``WiringError`` for a resource."""
        if _overriding(self.provider) is not None:
            return
        before, was_asked = self._seen.get()
        now = _Below.of(self.provider)
        has_changed = before.has_changed(now)
        if isinstance(self.provider, providers.Resource):
            if has_changed and now.opened[self.provider] is not None and before.has_same(self.provider, now):
                raise _left_open(self.provider)
        # What had been made for somebody else may have been made with a resource that is closed by now.
        elif isinstance(self.provider, _RESET) and (has_changed or (not was_asked and None in now.opened.values())):
            self.provider.reset()
        if has_changed:
            _Kept.changes += 1

    def note(self) -> None:
        """Note what it has been made with."""
        if _overriding(self.provider) is None:
            self._seen.set((_Below.of(self.provider), True))


def _left_open(resource: providers.Resource[object]) -> WiringError:
    name = getattr(resource.provides, "__name__", type(resource.provides).__name__)
    return WiringError(
        f"the resource of {name} is open, and was opened before something that it depends on was overridden, or shut "
        "down, or while it was overridden; shut it down first, or override the resource itself"
    )


_all_kept: WeakValueDictionary[int, _Kept] = WeakValueDictionary()
"""By the id of the provider, which a ``_Kept`` keeps alive. The watches hold them."""
