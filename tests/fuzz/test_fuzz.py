"""Whatever comes from outside: a value or a documented error comes out, and no input takes long for its size."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from tests.fuzz.mutations import bad_inputs, nested_deeply
from tests.fuzz.targets import Target, targets

TARGETS = {target.name: target for target in targets()}
LONG = [(name, form) for name, target in TARGETS.items() for form in target.long]
FEW, MANY = 20_000, 160_000
MOST_TIMES = 28
"""Eight times as much takes eight times as long, where the time is linear, and 64 times, where it is not."""


def checked(target: Target, data: bytes) -> object:
    """Parse it. Raises whatever is not documented."""
    try:
        return target.parse(data)
    except target.errors as error:
        return type(error)


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_are_read(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        if not name.startswith("error"):
            target.parse(seed)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a failing input: it would hide the failure
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_comes_out_but_what_is_documented(name: str, record_property: Callable[[str, object], None]) -> None:
    target, tried = TARGETS[name], 0

    @given(bad_inputs(target.seeds))
    def test(data: bytes) -> None:
        nonlocal tried
        tried += 1
        checked(target, data)

    test()
    record_property("inputs", tried)
    assert tried >= settings().max_examples


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each == "recordings" else each for each in TARGETS]
)
def test_what_is_nested_deeply_is_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        for data in nested_deeply(seed):
            checked(target, data)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), LONG)
def test_time_does_not_grow_with_the_square(name: str, form: str) -> None:
    target = TARGETS[name]
    make = target.long[form]
    few, many = (make(size) for size in (FEW, MANY))
    checked(target, few)
    for _ in range(3):  # a pause of the machine is no verdict
        if seconds(lambda: checked(target, many)) < MOST_TIMES * max(seconds(lambda: checked(target, few)), 0.002):
            return
    raise AssertionError(f"{name}: {MANY:,} bytes of {form} take more than {MOST_TIMES} times as long as {FEW:,}")


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of CPU time of a call, the least of three."""
    found: list[float] = []
    for _ in range(3):
        started = time.thread_time()
        call()
        found.append(time.thread_time() - started)
    return min(found)
