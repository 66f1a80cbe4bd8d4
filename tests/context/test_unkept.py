"""Records that wait for a store are bounded, and forgotten with their history."""

from __future__ import annotations

from chatstack.context.memory.unkept import Entry, Unkept


def entry(number: int, size: int = 10, under: bytes = b"") -> Entry:
    return Entry("o", number.to_bytes(16, "big"), b"x" * size, under)


def taken(unkept: Unkept) -> list[int]:
    found: list[int] = []
    while (each := unkept.take()) is not None:
        found.append(int.from_bytes(each.link, "big"))
    return found


def test_they_come_back_in_order() -> None:
    unkept = Unkept()
    for number in (3, 1, 2):
        unkept.add(entry(number))
    assert (len(unkept), taken(unkept), len(unkept)) == (3, [3, 1, 2], 0)


def test_the_oldest_go_where_there_are_too_many_or_too_large_ones() -> None:
    unkept = Unkept()
    for number in range(12_000):
        unkept.add(entry(number))
    assert taken(unkept) == [*range(2_000, 12_000)]
    for number in range(20):
        unkept.add(entry(number, 999_000))
    assert taken(unkept) == [*range(12, 20)]
    unkept.add(entry(1, 9_000_000))
    assert taken(unkept) == []


def test_those_of_a_history_are_forgotten() -> None:
    unkept = Unkept()
    for number in range(4):
        unkept.add(entry(number, under=bytes([number % 2])))
    unkept.forget({b"\x01", (2).to_bytes(16, "big")})
    assert taken(unkept) == [0]
    unkept.add(entry(7))
    unkept.forget()
    assert taken(unkept) == []
