"""Pairs of provider items: a tool that runs at the provider, or at the caller for it, may have its call in one message
and its result in another, as after a pause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chatstack.values.items import fields_of
from chatstack.values.parts import ProviderItem


class ItemPairs:
    """An incremental pairing of provider items: calls, and results that name one of them before it."""

    __slots__ = ("_answered", "_calls", "_orphans", "joined", "waiting")

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        """The position of each call, by its id."""
        self._answered: set[str] = set()
        self._orphans: list[str] = []
        self.joined: list[tuple[int, int]] = []
        """The positions of a result and its call, where they stand in two messages."""
        self.waiting: dict[str, int] = {}
        """The position of each call whose result the caller has still to give, by its id."""

    def add(self, position: int, item: ProviderItem) -> None:
        """Add the next item."""
        fields = fields_of(item)
        if fields is None:
            return
        asked = fields.asked
        if asked:
            call = self._calls.get(asked)
            if call is None:
                self._orphans.append(asked)
            else:
                self._answered.add(asked)
                self.waiting.pop(asked, None)
                if call != position:
                    self.joined.append((position, call))
        if fields.own:
            self._calls[fields.own] = position
            if fields.is_callers:
                self.waiting[fields.own] = position

    def copy(self) -> ItemPairs:
        """Return a copy of its own."""
        made = ItemPairs()
        made._calls, made._answered = dict(self._calls), set(self._answered)
        made._orphans, made.joined, made.waiting = [*self._orphans], [*self.joined], dict(self.waiting)
        return made

    def leftovers(self) -> Iterator[str]:
        """Yield descriptions of results without a call, and of calls without a result."""
        for asked in self._orphans:
            yield f"provider's result without call: {asked}"
        for own in self._calls:
            if own not in self._answered:
                yield f"provider's call without result: {own}"


def waits_for_caller(items: Iterable[ProviderItem]) -> bool:
    """Return True if items of an answer hold a call that the caller runs, or a request for its approval, and no result
    of it. What runs at the provider is not waited for."""
    open_ids: set[str | None] = set()
    for fields in filter(None, map(fields_of, items)):
        if fields.is_callers:
            open_ids.add(fields.own)
        open_ids.discard(fields.asked)
    return bool(open_ids)


def is_linked(item: ProviderItem) -> bool:
    """Return True if an item may belong to another one."""
    fields = fields_of(item)
    return fields is not None and bool(fields.own or fields.asked)
