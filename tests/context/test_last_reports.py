"""The last reports of a conversation, in one piece of memory."""

from __future__ import annotations

import sys

from chatstack.context.histories.last_reports import (
    NOTHING_REPORTED,
    LastReport,
    all_reports,
    last_reports,
    reports_until,
    with_report,
)


def test_the_last_two_reports_are_kept_under_what_they_depend_on() -> None:
    rows = NOTHING_REPORTED
    for length in (3, 5, 9):
        rows = with_report(rows, 7, LastReport(length * 10, length * 11, length))
    rows = with_report(rows, -8, LastReport(1, 2, 3))
    latest, before = LastReport(90, 99, 9), LastReport(50, 55, 5)
    assert last_reports(rows, 7, 11) == (latest, latest)
    assert last_reports(rows, 7, 9) == (before, latest)
    assert last_reports(rows, 7, 5) == (None, latest)
    assert last_reports(rows, -8, 3) == (None, LastReport(1, 2, 3))
    assert last_reports(rows, 1, 3) == (None, None)
    assert all_reports(rows) == [(7, latest), (-8, LastReport(1, 2, 3))]
    assert all_reports(NOTHING_REPORTED) == []


def test_what_was_reported_of_longer_requests_is_left_out() -> None:
    rows = NOTHING_REPORTED
    for length in (3, 5, 9):
        rows = with_report(rows, 7, LastReport(length * 10, length * 11, length))
    rows = with_report(rows, -8, LastReport(1, 2, 3))
    whole = reports_until(rows, 9)
    assert whole == rows
    assert whole is not rows
    assert all_reports(reports_until(rows, 8)) == [(7, LastReport(50, 55, 5)), (-8, LastReport(1, 2, 3))]
    assert all_reports(reports_until(rows, 4)) == [(-8, LastReport(1, 2, 3))]
    assert reports_until(NOTHING_REPORTED, 4) == NOTHING_REPORTED


def test_a_report_out_of_order_is_ignored_and_one_of_the_same_request_replaces_it() -> None:
    rows = with_report(with_report(NOTHING_REPORTED, 7, LastReport(50, 50, 5)), 7, LastReport(90, 90, 9))
    rows = with_report(rows, 7, LastReport(30, 30, 3))
    rows = with_report(rows, 7, LastReport(90, 99, 9))
    assert last_reports(rows, 7, 9) == (LastReport(50, 50, 5), LastReport(90, 99, 9))


def test_there_are_at_most_64_terms() -> None:
    rows = NOTHING_REPORTED
    for terms in range(1_000):
        rows = with_report(rows, terms, LastReport(terms, terms, terms))
        assert 0 < len(all_reports(rows)) <= 64
        assert all_reports(rows)[-1][0] == terms


def test_a_size_that_no_array_holds_is_not_kept() -> None:
    assert with_report(NOTHING_REPORTED, 7, LastReport(10**30, 10**30, 3)) is NOTHING_REPORTED


def test_hashes_of_both_signs_and_any_size_are_terms() -> None:
    for terms in (sys.maxsize, -sys.maxsize - 1, 0):
        assert last_reports(with_report(NOTHING_REPORTED, terms, LastReport(1, 2, 3)), terms, 4)[0] is not None


def test_a_row_takes_few_bytes() -> None:
    rows = NOTHING_REPORTED
    for terms in range(10):
        rows = with_report(rows, terms, LastReport(10**6, 10**6, 10**3))
    assert sys.getsizeof(rows) / 10 < 80
