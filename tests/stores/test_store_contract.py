"""The stores that come with the package keep the contract of stores, and the contract catches those that do not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from chatstack.context.memory.sharing import DecisionStore
from chatstack.errors import StoreError
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import StoreContract

CHECKS = [name for name in dir(StoreContract) if name.startswith("test_")]


class TestSQLiteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "decisions.db"

    def make(self) -> DecisionStore:
        return SQLiteStore(self.path)


class Place:
    """What several stores share, as a file or a server would hold it."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, bytes], bytes] = {}
        self.lock = threading.Lock()


class PlainStore:
    """A store in a dictionary that keeps the contract; each of those below breaks it in one way."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.is_closed = False

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        await self.opened()
        keys = ((link, self.key(owner, link)) for link in reversed(links))
        return next(((link, self.place.kept[key]) for link, key in keys if key in self.place.kept), None)

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        await self.opened()
        key = self.key(owner, link)
        with self.place.lock:
            there = self.place.kept.get(key)
            if there is None or there == replaces:
                self.place.kept[key] = record
            return self.place.kept[key]

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        await self.opened()
        with self.place.lock:
            for key in list(self.place.kept):
                if links is None or key[1] in links:
                    del self.place.kept[key]

    async def aclose(self) -> None:
        self.is_closed = True

    async def opened(self) -> None:
        if self.is_closed:
            raise StoreError("it has been closed")
        await asyncio.sleep(0)

    def key(self, owner: str, link: bytes) -> tuple[str, bytes]:
        return owner, link


class FirstFound(PlainStore):
    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        return await super().find(owner, links[::-1])


class FewLinks(PlainStore):
    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        return await super().find(owner, links[-1_000:])


class LastBorderLost(PlainStore):
    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        return await super().find(owner, [link for at, link in enumerate(links) if len(links) <= 500 or at != 500])


class Consumes(PlainStore):
    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        while links:
            assert isinstance(links, list)
            found = await super().find(owner, [links.pop()])
            if found is not None:
                return found
        return None


class LastWriterWins(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        await self.opened()
        self.place.kept[self.key(owner, link)] = record
        return record


class NeverReplaces(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        return await super().put(owner, link, record)


class ReplacesAnything(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        there = self.place.kept.get(self.key(owner, link))
        return await super().put(owner, link, record, replaces=None if replaces is None else there)


class OnlyReplaces(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        if replaces is not None and self.key(owner, link) not in self.place.kept:
            return replaces
        return await super().put(owner, link, record, replaces=replaces)


class InTwoSteps(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        await self.opened()
        there = self.place.kept.get(self.key(owner, link))
        await asyncio.sleep(0.001)
        if there is not None and there != replaces:
            return there
        self.place.kept[self.key(owner, link)] = record
        return record


class SaysItsOwn(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        await super().put(owner, link, record, replaces=replaces)
        return record


class ForItselfOnly(PlainStore):
    def __init__(self, place: Place) -> None:
        super().__init__(Place())


class NoOwners(PlainStore):
    def key(self, owner: str, link: bytes) -> tuple[str, bytes]:
        return "", link


class JoinedKeys(PlainStore):
    def key(self, owner: str, link: bytes) -> tuple[str, bytes]:
        return "", f"{owner}:".encode() + link


class CutAtZero(PlainStore):
    def key(self, owner: str, link: bytes) -> tuple[str, bytes]:
        return owner.split("\0")[0], link


class TextLinks(PlainStore):
    def key(self, owner: str, link: bytes) -> tuple[str, bytes]:
        return owner, link.decode("ascii", "ignore").encode()


class SmallRecords(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        return await super().put(owner, link, record[:65_536], replaces=replaces)


class GivesViews(PlainStore):
    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> Any:
        return bytearray(await super().put(owner, link, record, replaces=replaces))


class ForgetsNothing(PlainStore):
    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        await self.opened()


class ForgetsAllForNone(PlainStore):
    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        await super().forget(links or None)


class ForgetsOneOwner(PlainStore):
    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        await self.opened()
        for link in links or []:
            key = next((key for key in self.place.kept if key[1] == link), None)
            self.place.kept.pop(key or ("", b""), None)


class OneLoop(PlainStore):
    loop: asyncio.AbstractEventLoop | None = None

    async def opened(self) -> None:
        await super().opened()
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")


class StuckAfterCancelling(PlainStore):
    async def opened(self) -> None:
        try:
            await super().opened()
        except asyncio.CancelledError:
            self.is_closed = True
            raise


class ClosesOnce(PlainStore):
    async def aclose(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed twice")
        await super().aclose()


class OpensAgain(PlainStore):
    async def aclose(self) -> None:
        pass


class Strands(PlainStore):
    """Whoever waits while it is closed is cancelled."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.waiting: set[asyncio.Task[Any]] = set()

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self.waiting.add(task)
        await asyncio.sleep(0.01)
        self.waiting.discard(task)
        return await super().put(owner, link, record, replaces=replaces)

    async def aclose(self) -> None:
        await super().aclose()
        for task in self.waiting:
            task.cancel()


class StartsAThread(PlainStore):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.ended = threading.Event()
        threading.Thread(target=self.ended.wait, args=(30,), daemon=True).start()

    async def aclose(self) -> None:
        await super().aclose()
        self.ended.set()


class TellsItsPassword(PlainStore):
    def __repr__(self) -> str:
        return "TellsItsPassword('store://me:hunter2@host')"


CAUGHT: dict[type[PlainStore], str] = {
    FirstFound: "test_the_last_link_that_has_a_record_is_found",
    Consumes: "test_the_last_link_that_has_a_record_is_found",
    FewLinks: "test_it_is_found_among_thousands_of_links_wherever_it_is_and_forgotten_with_them",
    LastBorderLost: "test_it_is_found_among_thousands_of_links_wherever_it_is_and_forgotten_with_them",
    LastWriterWins: "test_the_first_record_stays_unless_it_is_the_one_that_is_replaced",
    NeverReplaces: "test_the_first_record_stays_unless_it_is_the_one_that_is_replaced",
    ReplacesAnything: "test_the_first_record_stays_unless_it_is_the_one_that_is_replaced",
    OnlyReplaces: "test_the_first_record_stays_unless_it_is_the_one_that_is_replaced",
    InTwoSteps: "test_of_puts_at_the_same_time_one_wins_and_all_are_told_which",
    SaysItsOwn: "test_of_puts_at_the_same_time_one_wins_and_all_are_told_which",
    ForItselfOnly: "test_another_store_finds_what_was_put",
    NoOwners: "test_the_last_link_that_has_a_record_is_found",
    JoinedKeys: "test_owners_links_and_records_are_any_bytes_and_none_is_taken_for_another",
    CutAtZero: "test_owners_links_and_records_are_any_bytes_and_none_is_taken_for_another",
    TextLinks: "test_owners_links_and_records_are_any_bytes_and_none_is_taken_for_another",
    SmallRecords: "test_records_of_every_size_come_back",
    GivesViews: "test_records_of_every_size_come_back",
    ForgetsNothing: "test_everything_is_forgotten_of_everybody",
    ForgetsAllForNone: "test_links_are_forgotten_for_every_owner_and_no_others_are",
    ForgetsOneOwner: "test_links_are_forgotten_for_every_owner_and_no_others_are",
    OneLoop: "test_one_store_works_in_one_event_loop_after_another",
    StuckAfterCancelling: "test_it_goes_on_after_calls_were_cancelled",
    ClosesOnce: "test_it_is_closed_again_and_again_and_refuses_calls_from_then_on",
    OpensAgain: "test_it_is_closed_again_and_again_and_refuses_calls_from_then_on",
    Strands: "test_calls_under_way_while_it_is_closed_are_answered_or_refused",
    StartsAThread: "test_making_one_starts_nothing_and_closing_it_leaves_nothing_behind",
    TellsItsPassword: "test_no_secret_is_in_its_repr",
}
"""Each store that breaks the contract, and a check that must say so."""


def suite_of(kind: Callable[[Place], DecisionStore]) -> StoreContract:
    class Suite(StoreContract):
        secrets: ClassVar[tuple[str, ...]] = ("hunter2",)

        def __init__(self) -> None:
            self.place = Place()

        def make(self) -> DecisionStore:
            return kind(self.place)

    return Suite()


@pytest.mark.parametrize("check", CHECKS)
def test_a_store_in_a_dictionary_passes(check: str) -> None:
    getattr(suite_of(PlainStore), check)()


@pytest.mark.parametrize("kind", CAUGHT, ids=lambda kind: kind.__name__)
def test_a_store_that_breaks_the_contract_is_caught(kind: type[PlainStore]) -> None:
    with pytest.raises((AssertionError, RuntimeError, StoreError)):
        getattr(suite_of(kind), CAUGHT[kind])()


class ClosedError(StoreError):
    """A store's own error."""


def test_a_closed_store_may_raise_an_error_of_its_own() -> None:
    class HasItsOwn(PlainStore):
        async def opened(self) -> None:
            if self.is_closed:
                raise ClosedError("it has been closed")

    suite_of(HasItsOwn).test_it_is_closed_again_and_again_and_refuses_calls_from_then_on()


def test_every_way_of_winning_alone_is_caught_where_replacements_race() -> None:
    with pytest.raises(AssertionError, match="how far they have counted"):
        suite_of(InTwoSteps).test_of_replacements_at_the_same_time_none_is_lost()


def test_a_suite_without_make_says_what_to_write() -> None:
    with pytest.raises(NotImplementedError, match=r"write make\(self\)"):
        StoreContract().make()
