"""Calibration: what the providers' reports teach, and what they must not."""

from __future__ import annotations

import math
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import CharCounter, TableCounter
from chatstack.stack.services import SharedServices
from chatstack.tokens.calibration import Anchor, Calibration

CHARS = CharCounter()


def taught(*reports: tuple[int, int]) -> float:
    calibration = Calibration()
    for estimated, reported in reports:
        calibration.learn("m", CHARS, estimated, reported)
    return calibration.factor("m", CHARS)


def test_one_serves_a_whole_stack() -> None:
    resolve = SharedServices().behind(None)
    assert isinstance(resolve(Calibration), Calibration)
    assert resolve(Calibration) is resolve(Calibration)


def test_while_nothing_is_known_estimates_stand() -> None:
    assert Calibration().factor("m", CHARS) == 1.0


def test_estimates_too_low_are_raised_and_those_too_high_lowered() -> None:
    assert taught(*[(10_000, 15_000)] * 10) == pytest.approx(1.5, rel=0.05)
    assert taught(*[(10_000, 6_000)] * 10) == pytest.approx(0.6, rel=0.05)


def test_one_report_is_believed_by_its_size() -> None:
    assert taught((4_000, 8_000)) == pytest.approx(math.sqrt(2))
    assert taught((6_000, 12_000)) == pytest.approx(2 ** (2 / 3))
    assert taught((600_000, 1_200_000)) == pytest.approx(2 ** (2 / 3))


def test_more_reports_are_believed_more() -> None:
    factors = [taught(*[(5_000, 7_500)] * number) for number in range(6)]
    assert factors == sorted(factors)
    assert 1.0 == factors[0] < factors[1] < factors[5] < 1.5


def test_short_requests_teach_nothing() -> None:
    """Five hundred tokens of tools that an estimate cannot know would look like a text of twice the tokens."""
    assert taught(*[(500, 1_000)] * 20) == 1.0
    assert taught(*[(2_000, 2_500)] * 20) == 1.0


def test_an_outlier_moves_nothing() -> None:
    steady = [(10_000, 12_000)] * 6
    for outlier in ((900_000, 3_000_000), (10_000, 2_501), (10_000, 39_999)):
        assert taught(*steady, outlier) == pytest.approx(taught(*steady), rel=0.02)


def test_two_camps_of_the_same_weight_meet_in_the_middle() -> None:
    assert taught(*[(50_000, 50_000), (50_000, 100_000)] * 5) == pytest.approx(math.sqrt(2), rel=0.05)


@pytest.mark.parametrize(
    ("estimated", "reported"),
    [(10_000, 0), (10_000, -3), (0, 10_000), (-5, 10_000), (-5_000, -5_000), (10_000, 2_499), (10_000, 40_001)],
)
def test_reports_that_cannot_be_true_are_ignored(estimated: int, reported: int) -> None:
    assert taught((estimated, reported)) == 1.0
    assert taught((10_000, 12_000), (estimated, reported)) == taught((10_000, 12_000))


def test_a_report_just_within_reason_counts() -> None:
    assert taught((10_000, 2_500)) < 1.0 < taught((10_000, 40_000))


def test_a_model_that_changes_is_followed() -> None:
    before, after = [(10_000, 10_000)] * 50, [(10_000, 13_000)] * 15
    assert taught(*before, *after) == pytest.approx(1.3, rel=0.02)


def test_models_and_counters_learn_apart() -> None:
    calibration = Calibration()
    calibration.learn("a", CHARS, 10_000, 20_000)
    assert calibration.factor("a", CHARS) > 1.0
    assert calibration.factor("b", CHARS) == 1.0
    assert calibration.factor("a", CharCounter(3)) == 1.0
    assert calibration.factor("a", TableCounter()) == 1.0


def test_counters_with_the_same_options_learn_together() -> None:
    calibration = Calibration()
    calibration.learn("a", CharCounter(3), 10_000, 20_000)
    assert calibration.factor("a", CharCounter(3)) > 1.0


def test_memory_is_bounded_and_the_least_used_goes_first() -> None:
    calibration = Calibration()
    for number in range(1_000):
        calibration.learn(f"m{number}", CHARS, 10_000, 20_000)
        assert calibration.factor("m0", CHARS) > 1.0  # asked for all the time, so kept
    assert repr(calibration) == "Calibration(256 learnt)"
    assert calibration.factor("m1", CHARS) == 1.0
    assert calibration.factor("m999", CHARS) > 1.0


@given(st.lists(st.tuples(st.integers(-9, 10**9), st.integers(-9, 10**9)), max_size=40))
def test_a_factor_is_always_between_a_quarter_and_four(reports: list[tuple[int, int]]) -> None:
    assert 0.25 - 1e-9 <= taught(*reports) <= 4 + 1e-9


@given(st.permutations([(9_000 + 500 * n, 9_000 + 700 * n) for n in range(7)]))
def test_the_order_of_reports_does_not_matter(reports: list[tuple[int, int]]) -> None:
    assert taught(*reports) == pytest.approx(taught(*sorted(reports)))


def test_many_threads_may_teach_at_once() -> None:
    calibration = Calibration()
    failed: list[BaseException] = []

    def teach(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(500):
                model = f"m{rng.randrange(400)}"
                calibration.learn(model, CHARS, 10_000, 12_000)
                assert 1.0 <= calibration.factor(model, CHARS) <= 1.2
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=teach, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert repr(calibration) == "Calibration(256 learnt)"


# Anchors


def test_the_same_request_again_is_what_was_reported() -> None:
    assert Anchor(1_000, 1_700).corrected(1_000, 3.0) == 1_700


def test_only_the_tail_is_estimated() -> None:
    assert Anchor(1_000, 1_700).corrected(1_200, 1.0) == 1_900
    assert Anchor(1_000, 1_700).corrected(1_200, 1.5) == 2_000
    assert Anchor(1_000, 700).corrected(1_200, 0.5) == 800


def test_a_request_that_shrank_does_not_start_with_the_anchor() -> None:
    assert Anchor(1_000, 1_700).corrected(999, 1.0) == 999
    assert Anchor(1_000, 1_700).corrected(800, 1.25) == 1_000


@given(st.integers(), st.integers(), st.integers(), st.floats(0.25, 4))
def test_a_size_is_never_negative_and_a_tail_never_takes_away(
    estimated: int, reported: int, now: int, factor: float
) -> None:
    bounded = [max(-(10**12), min(10**12, each)) for each in (estimated, reported, now)]
    size = Anchor(bounded[0], bounded[1]).corrected(bounded[2], factor)
    assert size >= 0
    if bounded[2] >= bounded[0]:
        assert size >= bounded[1]


def test_anchors_are_values() -> None:
    assert Anchor(1, 2) == Anchor(1, 2)
    with pytest.raises(AttributeError):
        Anchor(1, 2).reported = 3  # type: ignore[misc]
