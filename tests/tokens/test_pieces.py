"""The estimate of a text: the same numbers as a plain loop over its characters, at a counted cost."""

from __future__ import annotations

import array
import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import Message, ToolCall
from chatstack.tokens import pieces
from chatstack.tokens.estimating import EstimatingCounter
from chatstack.tokens.pieces import estimated_tokens
from tests.calls import calls_in

NAMES = list(pieces.CLASSES)
MESSAGES = 1_000


def class_of(character: str) -> str:
    for name, characters in pieces.CLASSES.items():
        if character in characters:
            return name
    if character > "\xff":
        return "beyond"
    return "accent" if character.isalpha() else "sign" if character > "\x7f" else "open"


def by_characters(text: str, single_digits: float = 0.0) -> float:
    """The same model, one character after the other."""
    classes = [class_of(character) for character in text]
    tokens = 0.0
    for before, own in itertools.pairwise(["newline", *classes]):
        tokens += pieces.COSTS[16 * NAMES.index(before) + NAMES.index(own)] / pieces.UNITS
    for name, run in itertools.groupby(classes):
        length = len(list(run))
        if name == "lower":
            tokens += pieces.LONG_WORD * max(0, length - 9)
        elif name == "digit":
            grouped = pieces.FOURTH_DIGIT * (length >= 4) + pieces.DIGIT * max(0, length - 6)
            tokens += (1 - single_digits) * grouped + single_digits * (length - 1)
        elif name == "upper":
            tokens += pieces.CAPITAL * max(0, length - 3) + pieces.LONG_CAPITALS * max(0, length - 9)
        elif name == "space":
            tokens += pieces.GAP * (length >= 2)
    escaped = text.count("\\\\") + text.count('\\"')
    tokens = max(0.0, tokens + pieces.ESCAPE * text.count("\x1b") + pieces.ESCAPED * escaped)
    units = array.array("H", text.encode("utf-16", "surrogatepass"))[1:]  # without the mark of the byte order
    tokens += sum(map(pieces.script_cost, units)) / pieces.SCRIPT_UNITS
    beyond = [character for character in text if character > "\uffff" and not "\U0001f000" <= character < "\U00020000"]
    mathematics = ["\U0001d000" <= character < "\U0001e000" for character in beyond]
    more = pieces.BEYOND * len(beyond) + pieces.MATHEMATICS * sum(mathematics)
    return min(min(tokens, pieces.MOST * len(text)) + more, pieces.BYTES * len(text))


ANY = st.characters(exclude_categories=())
TELLING = st.sampled_from(
    "aaabzAAZ0019  \t\n\r._('\"/-\\,:;=*#~+)]}><[{$@!?|&%^`\x00\x1b\x7f\x85©×éÀß÷ăếЖӘ好한አᎠ😀𝑥𠮷𐌰\ud83d\udc00"
)


@given(st.text(TELLING | ANY, max_size=300), st.sampled_from((0.0, 0.5, 1.0)))
def test_the_operations_on_large_numbers_count_what_a_loop_would(text: str, single_digits: float) -> None:
    assert estimated_tokens(text, single_digits) == pytest.approx(by_characters(text, single_digits), abs=1e-6)


@pytest.mark.parametrize(
    "piece",
    [*"aA1 \t\n._('/,=)<\x1b\xa7é好😀𝑥𠮷\ud83d?Ꭰ", "aA", "1a", "A.", "?é", "好a", " \n", "好?", "ᎠЖ", '\\"'],
    ids=ascii,
)
def test_long_runs_count_what_a_loop_would(piece: str) -> None:
    """A slice of the costliest neighbours does not exceed what the fast sum can hold."""
    text = (piece * pieces.SLICE_CHARACTERS)[: pieces.SLICE_CHARACTERS]
    assert estimated_tokens(text) == pytest.approx(by_characters(text), rel=1e-9)


def test_no_neighbours_cost_more_than_a_sum_can_hold() -> None:
    """The checksum that adds costs up starts again at 65,521."""
    assert len(pieces.COSTS) == 256
    dearest = max(*pieces.COSTS, *map(pieces.script_cost, range(0x10000)))
    assert dearest * pieces.SLICE_CHARACTERS / 2 + 1 < 65_521


@pytest.mark.parametrize("length", [1, 999, 1_000, 1_001, 1_999, 2_000])
def test_a_text_of_any_length_within_a_slice_is_counted_whole(length: int) -> None:
    text = ("The 1234 old_names (of) HTTP servers,  e.g. naïve 好.\n" * 50)[:length]
    assert estimated_tokens(text) == pytest.approx(by_characters(text), rel=1e-9)


def test_a_long_text_is_the_sum_of_its_slices() -> None:
    text = "A log line of 1,234 bytes.\n" * 1_000
    slices = [text[at : at + pieces.SLICE_CHARACTERS] for at in range(0, len(text), pieces.SLICE_CHARACTERS)]
    assert estimated_tokens(text) == pytest.approx(sum(map(by_characters, slices)), rel=1e-9)


# What it costs


def steps_of(messages: list[Message]) -> int:
    """Count the Python and C calls that it takes to count messages."""
    counter = EstimatingCounter("openai")
    return calls_in(lambda: [counter.count_message(message) for message in messages])


def rounds(line: str) -> Iterator[Message]:
    for number in itertools.count():
        yield Message.assistant("Let me look.", ToolCall(f"call-{number}", "read", json.dumps({"line": number})))
        yield Message.tool(f"call-{number}", line * 20, name="read")


@pytest.mark.parametrize(
    ("line", "most"), [("def act(self) -> int:  # 12 of 7\n", 80), ("naïve – 你好, \x1b[0mЖ\n", 90)], ids=ascii
)
def test_a_message_takes_few_calls_however_many_words_it_has(line: str, most: int) -> None:
    """Measured: 74 a message in ASCII, 81 in other scripts; a match or a call per piece would be hundreds."""
    messages = list(itertools.islice(rounds(line), MESSAGES))
    assert steps_of(messages) <= most * MESSAGES


def test_the_calls_do_not_grow_with_a_text_within_a_slice() -> None:
    short, long = (Message.user("def act(self): " * times) for times in (2, 120))
    assert steps_of([short]) == steps_of([long])
