"""A long text of a tool is made shorter by what it is: what matters stays, word for word."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack.context.shapes.rows import fewer_rows
from chatstack.context.shapes.shapes import shape
from tests.histories import PROPERTY

MARKS = re.compile(
    r"""\[(?:\+[\d,]+\ rows:\ )?[\d,]+\ of\ [\d,]+\ bytes\ left\ out[^\n\]]*\]|\[\.\.\.\]   # a line of ours
    |\[[\d,]+\ more\ lines\ like\ the\ one\ above\]
    |"\+\d+\ rows"|"\+":\ "\d+\ members"|\[\+[\d,]+\ bytes\]""",
    re.VERBOSE,
)
HINT = "; handle 0123456789"
LONGEST_MARK = len(f"[+1,000,000 rows: 1,000,000 of 1,000,000 bytes left out{HINT}; what looks like errors in it:]\n\n")
WORDS = st.sampled_from(
    [
        "sun",
        "日本",
        "😀",
        "\x1b[31mred\x1b[0m",
        'a "quote"',
        "back\\slash",
        "\\n",
        "Error: no",
        "1,2,3",
        "| a | b |",
        "\r",
    ]
)
LINES = st.lists(WORDS, max_size=6).map(" ".join)
TEXTS = st.builds(
    lambda lines, times, end: end.join(lines * times),
    st.lists(LINES, min_size=1, max_size=12),
    st.integers(1, 12),
    st.sampled_from(["\n", "\n", "\r\n", "\n\n", " "]),
)
VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), TEXTS, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=12),
        st.dictionaries(WORDS, inner, max_size=6),
        st.builds(lambda row, times: [row] * times, inner, st.integers(1, 60)),
    ),
    max_leaves=12,
)
JSON = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    VALUES,
    st.sampled_from([None, 1]),
    st.booleans(),
)
BOUNDS = st.sampled_from([1, 60, 150, 400, 1_000])


def size(text: str) -> int:
    return len(text.encode())


def body(shaped: str) -> str:
    """JSON without the line behind it."""
    return shaped[: shaped.rindex("\n")]


def assert_word_for_word(shaped: str, text: str) -> None:
    """Each piece between marks stands in the text, in order; at its ends, white space may be ours."""
    at = 0
    for piece in MARKS.split(shaped):
        word = piece.strip(" \r\n\t,")
        word = word.removesuffix("\\n").removeprefix("\\n") if word not in text[at:] else word
        found = text.find(word, at)
        assert found >= 0, (word, text[at : at + 200])
        at = found + len(word)


@PROPERTY
@given(text=st.one_of(TEXTS, JSON), most=BOUNDS, tail_first=st.booleans())
def test_every_text_gets_smaller_than_its_bound_and_keeps_what_it_keeps_word_for_word(
    text: str, most: int, tail_first: bool
) -> None:
    shaped = shape(text, most, hint=HINT, tail_first=tail_first)
    assert size(shaped) <= size(text)
    if size(text) * 3 <= most * 4:
        assert shaped is text
    elif shaped != text:
        assert size(shaped) <= max(most, LONGEST_MARK)
        assert len(re.findall(r"bytes left out; handle 0123456789", shaped)) == 1
        assert_word_for_word(shaped, text)
    else:
        assert size(text) <= max(most, LONGEST_MARK)


@PROPERTY
@given(text=JSON, most=BOUNDS)
def test_shortened_json_is_json_still(text: str, most: int) -> None:
    shorter = fewer_rows(text.encode(), most)
    if shorter is not None:
        json.loads(shorter.json)
        assert len(shorter.json) <= most
        assert shorter.kept <= len(text.encode())


@PROPERTY
@given(text=TEXTS, most=BOUNDS)
def test_no_escape_sequence_is_split(text: str, most: int) -> None:
    whole = json.dumps({"out": text})
    for shaped in (shape(text, most), shape(whole, most)):
        for opened in re.finditer(r"\x1b|\\u001b", shaped):
            assert re.match(r"\[(31|0)m", shaped[opened.end() :]), shaped


def test_what_exceeds_its_bound_by_less_than_a_third_stays() -> None:
    text = "a line of it\n" * 400
    assert shape(text, 3_900) is text
    assert size(shape(text, 3_899)) <= 3_899


def test_two_thirds_are_the_first_lines_and_one_third_the_last() -> None:
    lines = [f"line {number} of the log" for number in range(2_000)]
    head, tail = re.split(r"\n\[.*bytes left out\]\n", shape("\n".join(lines), 4_000))
    assert head.split("\n") == lines[: head.count("\n") + 1]
    assert tail.split("\n") == lines[-tail.count("\n") - 1 :]
    assert 1.8 < len(head) / len(tail) < 2.2


def test_of_an_error_the_end_is_what_matters() -> None:
    lines = [f"line {number} of the log" for number in range(2_000)]
    head, tail = re.split(r"\n\[.*bytes left out\]\n", shape("\n".join(lines), 4_000, tail_first=True))
    assert 1.8 < len(tail) / len(head) < 2.2


def test_lines_between_that_look_like_errors_stay() -> None:
    lines = [f"line {number} of the log" for number in range(2_000)]
    lines[700] = "E   AssertionError: 1 == 2"
    lines[900:902] = ["Traceback (most recent call last):", "ValueError: no such page"]
    shaped = shape("\n".join(lines), 4_000)
    assert "bytes left out; what looks like errors in it:]\nE   AssertionError: 1 == 2\n[...]\nTraceback" in shaped
    assert "ValueError: no such page\n[...]\n" in shaped
    assert size(shaped) <= 4_000


def test_errors_take_up_to_a_tenth_of_the_room() -> None:
    lines = [f"ERROR number {number} of many" for number in range(2_000)]
    between = re.search(r"errors in it:\]\n(.*)\n\[\.\.\.\]", shape("\n".join(lines), 4_000), re.DOTALL)
    assert between is not None
    assert 300 < len(between[1]) <= 400
    assert between[1].split("\n")[-1] > "ERROR number 1000"  # the last ones


def test_repeated_lines_stand_once_with_how_often_they_came() -> None:
    lines = ["starting", *[f"2026-11-23 10:00:{at % 60:02},123 waiting for the lock" for at in range(500)], "done"]
    shaped = shape("\n".join(lines), 600, hint=HINT)
    assert shaped.split("\n") == [
        "starting",
        lines[1],
        "[499 more lines like the one above]",
        "done",
        f"[22,455 of 22,513 bytes left out{HINT}]",
    ]


def test_numbers_are_no_repetition() -> None:
    assert "more lines like" not in shape("\n".join(f"10:{at:02}" for at in range(60)) * 20, 300)


def test_json_keeps_its_first_and_last_rows_and_says_how_many_are_gone() -> None:
    rows = [{"id": number, "name": f"row {number}", "price": 1.50} for number in range(300)]
    text = json.dumps(rows).replace("1.5", "1.50")
    shaped = shape(text, 1_000, hint=HINT)
    shown = json.loads(body(shaped))
    gone = next(each for each in shown if isinstance(each, str))
    at = shown.index(gone)
    assert shown == [*rows[:at], gone, *rows[at - len(shown) + 1 :]]
    assert gone == f"+{300 - len(shown) + 1} rows"
    assert "1.50" in shaped  # never encoded anew
    assert shaped.endswith(f" of {len(text):,} bytes left out{HINT}]")


def test_the_rows_within_an_object_are_shortened_and_its_other_members_stay() -> None:
    text = json.dumps({"total": 300, "rows": [{"id": n} for n in range(300)], "next": "page 2"}, indent=2)
    shown = json.loads(body(shape(text, 700)))
    assert (shown["total"], shown["next"]) == (300, "page 2")
    assert shown["rows"][0] == {"id": 0}
    assert shown["rows"][-1] == {"id": 299}


def test_an_object_of_many_members_keeps_the_first_and_the_last() -> None:
    shown = json.loads(body(shape(json.dumps({f"key {n}": n for n in range(500)}), 700)))
    assert (shown["key 0"], shown["key 499"]) == (0, 499)
    assert shown["+"] == f"{500 - len(shown) + 1} members"


def test_long_texts_within_json_keep_their_beginning_and_their_end() -> None:
    out = "\n".join(f'line {n} "quoted"' for n in range(500))
    shown = json.loads(body(shape(json.dumps({"code": 1, "out": out}), 900)))
    assert shown["code"] == 1
    assert shown["out"].startswith('line 0 "quoted"\nline 1 "quoted"\n')
    assert shown["out"].endswith('\nline 499 "quoted"')


def test_a_few_long_rows_are_all_shortened() -> None:
    shown = json.loads(body(shape(json.dumps([{"page": n, "text": f"{n} " * 3_000} for n in range(5)]), 4_000)))
    assert [each["page"] for each in shown] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": ' + "2" * 900 + "}", "[" * 5_000 + "]" * 5_000, "[" + "1" * 5_000 + "]"]
)
def test_json_that_cannot_be_had_smaller_is_cut_as_text(text: str) -> None:
    shaped = shape(text, 400)
    assert size(shaped) <= 400
    assert_word_for_word(shaped, text)


def test_a_csv_keeps_whole_rows_even_where_a_cell_has_several_lines() -> None:
    made = io.StringIO()
    csv.writer(made).writerows([["id", "note", "size"], *([n, f"first\nsecond, {n}", n * n] for n in range(200))])
    head, gone, tail = re.split(r"\n?\[\+(\d+) rows: .* bytes left out\]\n", shape(made.getvalue(), 900))
    shown = [*csv.reader(io.StringIO(head)), *csv.reader(io.StringIO(tail))]
    assert shown[:2] == [["id", "note", "size"], ["0", "first\nsecond, 0", "0"]]
    assert shown[-1] == ["199", "first\nsecond, 199", "39601"]
    assert len(shown) + int(gone) == 201
    assert {len(row) for row in shown} == {3}


def test_a_markdown_table_keeps_its_header() -> None:
    rows = [f"| {n} | name {n} | ERROR |" for n in range(300)]
    shaped = shape("\n".join(["| id | name | state |", "|---|---|---|", *rows]), 900)
    assert shaped.startswith("| id | name | state |\n|---|---|---|\n| 0 | name 0 |")
    assert "rows: " in shaped
    assert "looks like errors" not in shaped


def test_one_long_line_is_cut_between_code_points() -> None:
    shaped = shape("日本" * 2_000, 500)
    assert set(MARKS.sub("", shaped)) == {"日", "本", "\n"}


@pytest.mark.slow
def test_work_is_linear_in_the_length() -> None:
    text = '"' + "a,b,c\n" * 200_000  # a quote that never ends
    assert size(shape(text, 4_000)) <= 4_000
    assert size(shape("[" + ",".join(["{}"] * 300_000) + "]", 4_000)) <= 4_000
    assert size(shape('{"out": "' + "\\\\n" * 300_000 + '"}', 4_000)) <= 4_000
    assert size(shape("| a |\n" + "-" * 300_000 + "x\n" * 20, 4_000)) <= 4_000
    assert size(shape("12:00 " * 300_000, 4_000)) <= 4_000
    assert size(shape("\x1b[" * 300_000, 4_000)) <= 4_000
