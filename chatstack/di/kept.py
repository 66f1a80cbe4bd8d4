"""What dependency-injector's providers keep is made anew when it was made with something else.

A singleton that has been made sees neither what is overridden below it later on, nor the end of that, nor that a
resource has been shut down. So whoever asks for a client, by a ``Watch``, has those reset first whose dependencies are
no longer what they were. As long as nothing changes, that is one walk through the providers that a client is made from.
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
"""In a provider and below it: what overrides each, and what each resource has opened, None while it is closed."""

_Seen: TypeAlias = "tuple[InForce, bool]"
"""What was in force below something, and whether a client had asked for it."""
_LOCAL = (providers.ThreadLocalSingleton, providers.ContextLocalSingleton)
_KEPT = (providers.BaseSingleton, providers.Resource, providers.AttributeGetter, providers.ItemGetter)


class Watch(providers.List):
    """A provider of clients, and what all that it is made from was made with."""

    def __init__(self, *made: Provider) -> None:  # of one; a copy of a container makes a copy without, and gives it
        super().__init__(*made)
        self._kept: list[_Kept] = []
        self._before: tuple[int, InForce] | None = None

    @property
    def related(self) -> Iterator[Provider]:
        """A container reads this when it is complete: what is overridden by then was so when singletons were made."""
        if self._before is None and self.args:
            with _nothing_else_changes():
                self._find_kept()
                for each in self._kept:
                    each.note(was_asked=False)
        yield from cast("tuple[Provider, ...]", self.args)

    def ask(self) -> Any:
        """What the provider gives, with everything that it is made from as it is now.

        Raises ``WiringError`` when a resource is open that was opened with something else.
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
    """In no other thread is a thread-safe singleton made, or a provider overridden: the library's own locks, in turn.

    A lock of ours would be a third one: whoever makes a singleton may ask for a client, and a client makes some.
    """
    with cast("Any", providers.ThreadSafeSingleton).storage_lock, cast("Any", providers.Provider).overriding_lock:
        yield


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
            to_visit.append(other)  # what it overrides is not asked
            continue
        to_visit.extend(each.related)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        if isinstance(each, providers.Resource):
            found[each] = each() if each.initialized else None
        elif isinstance(each, providers.ConfigurationOption):
            found[each] = _value_of(each)
    return found


def _value_of(option: providers.ConfigurationOption) -> object:
    """An option of the configuration, also one that is not set."""
    try:
        value: object = option()
    except errors.Error:  # of a strict one
        value = None
    return _NOT_SET if value is None else value


def _same(one: InForce, other: InForce) -> bool:
    return one.keys() == other.keys() and all(_settled(one[each]) is _settled(other[each]) for each in one)


def _has_changed(before: InForce, now: InForce) -> bool:
    """Whether something else is overridden, or what was open has been closed, or opened again."""
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
    """An asynchronous resource gives a future, each time another; its result tells whether it is the same."""
    if asyncio.isfuture(value) and value.done() and not value.cancelled() and value.exception() is None:
        return cast("object", value.result())
    return value


class _Kept:
    """Something that a provider keeps: what was in force when it was seen last, and whether a client had asked for it;
    of a singleton of a thread, or of a context, for each of these.

    All clients that depend on the provider share one, so that none resets what another one has just had made.
    """

    changes: ClassVar[int] = 0
    """How often something was found changed, by whichever client: the others then look again, too."""

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
        """Reset a singleton that was made with something else; raise ``WiringError`` for a resource."""
        if _overriding(self.provider) is not None:
            return
        before, was_asked = self._seen()
        now = _in_force(self.provider)
        has_changed = _has_changed(before, now)
        if isinstance(self.provider, providers.Resource):
            opened = _settled(now[self.provider])
            if has_changed and opened is not None and opened is _settled(before.get(self.provider)):
                raise _left_open(self.provider)
        # What had been made for somebody else may have been made with a resource that is closed by now.
        elif isinstance(self.provider, providers.BaseSingleton) and (
            has_changed or (not was_asked and any(value is None for value in now.values()))
        ):
            self.provider.reset()
        if has_changed:
            _Kept.changes += 1

    def note(self, *, was_asked: bool) -> None:
        """Take what is in force for what it was made with; before a client has asked for it, that is a guess."""
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
"""By the id of the provider, which a ``_Kept`` keeps alive. The watches hold them."""
