"""Estimated token counts of a text, without a tokenizer.

A tokenizer of today cuts a text where its kind of character changes (a word with the space before it, up to three
digits, a run of punctuation, an indentation), and gives a common piece one token. So the estimate goes by neighbours:
every character has one of sixteen classes, and a table says what a character of one class costs behind another. Five
figures for runs go on top: of long words, long numbers, capitals, gaps, escapes of a terminal. Scripts that are not
Latin cost a fraction of a token per character, by their Unicode block.

The figures are fitted to o200k, OpenAI's vocabulary. English, code, JSON, markup, logs, numbers and hex digits come
out within 6 % of it (capital hex digits 14 % too high), base64 14 % too low, Latin languages other than English 16 %
too low (Lithuanian, Swahili) to 10 % too high (Vietnamese 19 %), other scripts 13 % too low to 12 % too high. These
are sums over each kind of text, fitted to one half and measured on the other: sources and documents of installed
packages, the message catalogues of Django, and generated data.
"""

from __future__ import annotations

from typing import Final
from zlib import adler32

_MOST_CHARACTERS = 200_000
"""Maximum length of a text, in characters, that is counted whole; longer ones are sampled."""
_SLICES = 50
SLICE_CHARACTERS: Final = 2_000
"""Number of characters that are counted at a time. A slice begins like a line."""

CLASSES: Final = {
    "newline": "\n\r",  # the start of a text, too: its number must be 0
    "lower": "abcdefghijklmnopqrstuvwxyz",
    "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "digit": "0123456789",
    "space": " ",
    "tab": "\t",
    "dot": ".",
    "glue": "_(",
    "quote": "'\"",
    "slash": "/-\\",
    "comma": ",:;",
    "sign": "=*#~+",  # and the symbols of Latin-1
    "close": ")]}>",
    "open": "<[{$@!?|&%^`",  # and control characters
    "accent": "",  # letters of Latin-1
    "beyond": "",  # characters that are not in Latin-1
}
UNITS: Final = 32
"""The costs below are 32nds of a token."""
_COSTS = """
    newline  1 31 16 20  0 19 14 24 10 31 10 10 10 43 42 10
    lower   32  1 20 24 12  5 21  9  7 14 21 25 24 34  8  0
    upper   35 14 10 43 14 30 24  2 17 23 31 46 32 28 60  0
    digit   38 43 42  0 16 14 18 24 34 30 32 35 39 42 13  6
    space   14 18  3 46  0 13 15 21 36 20 14  8 11 24 28  0
    tab     15 18 33 51  2  1 10 29 44 48 22 56 63 42 13 13
    dot     13 19  2 44 18 13  3  3  0  1 10 36  0  0 13 12
    glue     0 30 20 42 17 13 16  2 31  8 41 41 13 46 14 19
    quote   14 24  3 10 18 15  6 12  0  0 13  1 13  0 14  0
    slash    3 32 35 35  9 13  3 58  0  1 37 23 13 20 10  0
    comma    9 29 37 36 16 11 18 12 19 21  8 24 56 23 13 14
    sign    17 34 10 36 21  7 33 24 12 16 29  1  4  0 14 14
    close   13 27 11 10 12 23  0 35  0  0  0  0  0  3 13 40
    open     0 25 25 25  6 21  3 35  5 21  0  8  7 13 13 63
    accent  17 28 13 13 25 13 22 13 25 11 17 11 13 15  0 10
    beyond   0  0  0 10  1 13  0 49 19 12  0 15 23 34  0  0
"""
"""A row for the class before, a column for the character's own, in the order of ``CLASSES``."""

LONG_WORD: Final = 0.04
"""Tokens of each lower-case letter from the tenth of a run on."""
FOURTH_DIGIT: Final = 1.0
DIGIT: Final = 1 / 3
"""Tokens of the fourth digit of a number, and of each from the seventh on: three digits are a token."""
CAPITAL: Final = -0.2
"""Tokens of each capital from the fourth on: less than the table says, where a word is in capitals."""
GAP: Final = 1.2
"""Tokens of each run of two spaces or more."""
ESCAPE: Final = 0.92
"""Tokens of an ESC, which begins a terminal's colours, beside its cost as a character."""

_BLOCKS = (
    (0x00, 0x00, 0.0),  # ASCII and Latin-1: their classes are priced above
    (0x01, 0x02, 1.4),  # accents of Central Europe and Turkey break words up
    (0x03, 0x03, 0.43),  # Greek
    (0x04, 0x04, 0.3),  # Cyrillic: 0.25 in Russian prose, 0.45 in Mongolian
    (0x05, 0x08, 0.38),  # Armenian, Hebrew, Arabic
    (0x09, 0x1D, 0.42),  # the alphabets of India, Thai, Georgian
    (0x1E, 0x1E, 0.0),  # Vietnamese: what is around them is enough
    (0x1F, 0x1F, 1.0),
    (0x20, 0x20, 0.6),  # quotes, dashes, joiners of emoji
    (0x21, 0x24, 1.0),
    (0x25, 0x25, 0.5),  # boxes, mostly in runs
    (0x26, 0x2F, 1.0),
    (0x30, 0x31, 0.66),  # kana
    (0x32, 0x33, 1.0),
    (0x34, 0x9F, 0.8),  # Han: 0.7 simplified, 0.9 traditional
    (0xA0, 0xAB, 1.0),
    (0xAC, 0xD7, 0.7),  # Hangul
    (0xD8, 0xDF, 1.0),  # surrogates, half of a character beyond the first 65,536: emoji are two tokens
    (0xE0, 0xF8, 2.0),
    (0xF9, 0xFE, 1.0),
    (0xFF, 0xFF, 0.8),
)
"""First and last block of 256 characters, and the tokens per UTF-16 unit in them, by o200k."""

TOKENS_OF_BLOCK = tuple(
    next(tokens for first, last, tokens in _BLOCKS if first <= block <= last) for block in range(256)
)


def _classes(beyond: str) -> bytes:
    """Return the table from a byte of Latin-1 to its class; ``beyond`` stands for what Latin-1 does not have.

    The class is in the low half of a byte. The high half has a bit for each class whose runs are counted.
    """
    numbers = {name: number for number, name in enumerate(CLASSES)}
    runs = {"lower": _LOWER, "digit": _DIGIT, "upper": _UPPER, "space": _SPACE}
    named = {character: name for name, characters in CLASSES.items() for character in characters} | {beyond: "beyond"}
    found = bytearray()
    for character in map(chr, range(256)):
        kind = "accent" if character.isalpha() else "sign" if character > "\x7f" else "open"
        name = named.get(character, kind)
        found.append(numbers[name] | runs.get(name, 0))
    return bytes(found)


def _everywhere(byte: int) -> int:
    return int.from_bytes(bytes([byte]) * SLICE_CHARACTERS, "little")


_LOWER, _DIGIT, _UPPER, _SPACE = 0x10, 0x20, 0x40, 0x80
_ASCII = _classes("")
_LATIN = _classes("?")
COSTS: Final = bytes(int(cost) for row in _COSTS.split("\n") for cost in row.split()[1:])
"""Cost of a character by the number of the class before it, times 16, and that of its own."""
_MOST_SUMMED = 1_000
"""Number of costs whose sum, at 64 each, stays below the modulus of a checksum."""

_CLASS, _RUNS = _everywhere(0x0F), _everywhere(0xF0)
_LOWERS, _DIGITS, _UPPERS, _SPACES = map(_everywhere, (_LOWER, _DIGIT, _UPPER, _SPACE))


def estimated_tokens(text: str) -> float:
    """Return about how many tokens of o200k a text is; 0 for an empty one. Accepts any text, with lone surrogates too.

    Takes about 9 µs per 1,000 characters of English, 18 of Russian, 29 of Chinese. Of more than 200,000 characters it
    counts fifty evenly spaced slices of 2,000, always the same ones.
    """
    length = len(text)
    if length <= SLICE_CHARACTERS:
        return _count(text)
    if length <= _MOST_CHARACTERS:
        return sum(_count(text[start : start + SLICE_CHARACTERS]) for start in range(0, length, SLICE_CHARACTERS))
    step = (length - SLICE_CHARACTERS) / (_SLICES - 1)
    starts = [int(number * step) for number in range(_SLICES)]
    counted = sum(_count(text[start : start + SLICE_CHARACTERS]) for start in starts)
    return counted * length / (_SLICES * SLICE_CHARACTERS)


def _count(text: str) -> float:
    """Return the tokens of at most one slice."""
    if text.isascii():
        return max(0.0, _neighbours(text.encode().translate(_ASCII)) + ESCAPE * text.count("\x1b"))
    # In Latin-1 a question mark stands for every other character, so those of the text become their neighbour in class.
    latin = text.replace("?", "!").encode("latin-1", "replace")
    tokens = max(0.0, _neighbours(latin.translate(_LATIN)) + ESCAPE * text.count("\x1b"))
    if b"?" in latin:
        units = text.encode("utf-16-be", "surrogatepass")[::2].translate(None, b"\x00")
        tokens += sum(TOKENS_OF_BLOCK[block] * units.count(block) for block in sorted(set(units)))
    return tokens


def _neighbours(classes: bytes) -> float:
    """Return the tokens by the table of costs, and by the runs.

    A slice is one large number, a byte for each character, so that a shift by a byte puts the class before beside each
    class, and ``runs & runs << 8`` has the second and later bytes of each run: a dozen operations in C, where one match
    of a pattern for each piece took three to five times as long (``tests/benchmarks/counting.py``).
    """
    length = len(classes)
    bits = int.from_bytes(classes, "little")
    own = bits & _CLASS
    costs = (own | own << 12).to_bytes(length + 1, "little")[:length].translate(COSTS)
    ones = bits & _RUNS
    seconds = ones & ones << 8
    fourths = seconds & seconds << 16
    tenths = fourths & fourths << 32 & seconds << 64
    return (
        _sum(costs) / UNITS
        + LONG_WORD * (tenths & _LOWERS).bit_count()
        + FOURTH_DIGIT * (fourths & ~(fourths << 8) & _DIGITS).bit_count()
        + DIGIT * (fourths & fourths << 24 & _DIGITS).bit_count()
        + CAPITAL * (fourths & _UPPERS).bit_count()
        + GAP * (seconds & ~(seconds << 8) & _SPACES).bit_count()
    )


def _sum(costs: bytes) -> int:
    """Return the sum of at most one slice's costs: the low half of a checksum that is made in C is one more than it."""
    first, last = costs[:_MOST_SUMMED], costs[_MOST_SUMMED:]
    return (adler32(first) & 0xFFFF) + (adler32(last) & 0xFFFF) - 2
