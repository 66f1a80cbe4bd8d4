"""Estimated token counts of a text, without a tokenizer.

A tokenizer of today cuts a text where its kind of character changes (a word with the space before it, up to three
digits, a run of punctuation, an indentation), and gives a common piece one token. So the estimate goes by neighbours:
every character has one of sixteen classes, and a table says what a character of one class costs behind another. A few
figures for runs go on top: of long words, long numbers, capitals, gaps, escapes. Scripts that are not Latin cost so
many tokens per character.

The figures are fitted to o200k, OpenAI's vocabulary. Sums over each kind of text, of sources and documents of installed
packages, message catalogues of Django, names of the CLDR, and generated data, come out so beside it:

- English, code, JSON, markup, logs, numbers: 6 % too low to 8 % too high; hex digits up to 6 % too high, capital ones
  27 %; base64 14 % too low. JSON within JSON, at any depth: 17 % too low to 11 % too high.
- Languages of Europe in Latin script: 30 % too low (Basque, Welsh) to 13 % too high (Spanish); half of them are within
  13 %. Vietnamese: 19 % too high. African and Austronesian ones: up to 30 % too low, and single sentences of Swahili,
  Zulu or Finnish 43 %: their vowels and common endings look like those of words that are one token.
- Other scripts: 16 % too low to 18 % too high in prose (Kurdish 20 % and Ossetian 40 % too low), lists of names lower.
  Those that the vocabulary does not have (Cherokee, Braille, Lao, Gothic, ...): within 12 %. Bars of random heights
  cost half of what they should; Unicode mathematics, classical Chinese, and Arabic with vowel signs are 30 to 40 % too
  low.
- Sequences: DNA, proteins and random letters 10 to 20 % too low, lower-case base32 36 %, names of species 43 %, names
  of users without vowels 55 %.
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

LONG_WORD: Final = 0.4
"""Tokens of each lower-case letter from the tenth of a run on: what is that long is no common word."""
FOURTH_DIGIT: Final = 1.0
DIGIT: Final = 1 / 3
"""Tokens of the fourth digit of a number, and of each from the seventh on: three digits are a token."""
CAPITAL: Final = -0.2
"""Tokens of each capital from the fourth on: less than the table says, where a word is in capitals."""
LONG_CAPITALS: Final = 0.4
"""Tokens of each capital from the tenth on: no word, but a sequence or a code."""
GAP: Final = 1.2
"""Tokens of each run of two spaces or more."""
ESCAPE: Final = 0.92
"""Tokens of an ESC, which begins a terminal's colours, beside its cost as a character."""
ESCAPED: Final = 0.4
"""Tokens of each backslash or quote that is escaped, as in JSON within JSON, beside their costs as characters."""

_SCRIPTS = (
    (0x0000, 0.0),  # ASCII and Latin-1: their classes are priced above
    (0x0100, 1.4),  # accents of Central Europe and Turkey break words up
    (0x0280, 2.0),  # phonetic letters
    (0x0300, 1.4),  # marks that combine
    (0x0380, 0.45),  # Greek
    (0x0400, 0.33),  # Cyrillic: 0.27 in Russian prose, 0.38 in others
    (0x0480, 1.0),  # letters of Kazakh, Tatar and Mongolian
    (0x0500, 0.4),  # Armenian
    (0x0580, 0.45),  # Hebrew
    (0x0600, 0.38),  # Arabic
    (0x0680, 0.7),  # letters of Persian, Urdu and Kurdish
    (0x0700, 2.1),  # Syriac, Thaana, N'Ko
    (0x0900, 0.43),  # Devanagari, Bengali
    (0x0A00, 0.62),  # Gurmukhi
    (0x0A80, 0.47),  # Gujarati
    (0x0B00, 1.0),  # Oriya
    (0x0B80, 0.43),  # Tamil
    (0x0C00, 0.47),  # Telugu, Kannada
    (0x0D00, 0.43),  # Malayalam
    (0x0D80, 0.68),  # Sinhala
    (0x0E00, 0.43),  # Thai
    (0x0E80, 1.9),  # Lao
    (0x0F00, 1.6),  # Tibetan
    (0x1000, 0.55),  # Burmese
    (0x1080, 0.43),  # Georgian
    (0x1100, 2.2),  # Ethiopic
    (0x1380, 3.0),  # Cherokee, syllabics of Canada
    (0x1780, 0.63),  # Khmer
    (0x1800, 3.0),  # not in the vocabulary: a token is a byte of UTF-8
    (0x1E00, 0.0),  # Vietnamese: what is around them is enough
    (0x1F00, 1.0),  # Greek of old
    (0x2000, 0.6),  # quotes, dashes, joiners of emoji
    (0x2100, 1.0),  # arrows
    (0x2200, 1.4),
    (0x2500, 0.5),  # boxes, mostly in runs
    (0x2580, 1.0),  # bars
    (0x2800, 3.0),  # Braille
    (0x3000, 0.67),  # kana
    (0x3100, 2.0),
    (0x3400, 3.0),  # rare Han
    (0x4E00, 0.8),  # Han: 0.7 simplified, 0.9 traditional
    (0xA000, 3.0),
    (0xAC00, 0.7),  # Hangul
    (0xD800, 1.0),  # surrogates, half of a character beyond the first 65,536: emoji are two tokens
    (0xE000, 2.0),
    (0xFE00, 1.0),
    (0xFF00, 0.8),
)
"""The tokens per UTF-16 unit by o200k, from that unit on. Scripts begin at multiples of 128."""
MOST: Final = 2.8
"""Maximum tokens of a character, which is up to three bytes of UTF-8, as neighbours and scripts are counted apart."""
BYTES: Final = 4
"""Bytes of a character beyond the first 65,536: it takes no more tokens, by any tokenizer."""
BEYOND: Final = 2
MATHEMATICS: Final = -1
"""Tokens of a character beyond the first 65,536 on top of those of its two units: of emoji the vocabulary has three of
the four bytes as one token, of most others none, so that each byte is one; of mathematical letters and notes, two."""
SCRIPT_UNITS: Final = 21
"""Costs by script are in 21sts of a token, so that the dearest is below 64."""


def script_cost(unit: int) -> int:
    """Return the cost of a UTF-16 unit by its script."""
    return round(SCRIPT_UNITS * next(tokens for first, tokens in reversed(_SCRIPTS) if first <= unit))


_HALVES: Final = [(script_cost(first), script_cost(first + 0x80)) for first in range(0, 0x10000, 0x100)]
"""Costs in both halves of each block of 256 units."""
_WHOLE = bytes(block for block, (first, second) in enumerate(_HALVES) if first == second)
_COSTS_OF_WHOLE = bytes(first for first, _ in _HALVES)
_DISTINCT = sorted(set(_HALVES))
_HALVES_OF_BLOCK = bytes(map(_DISTINCT.index, _HALVES))
_COSTS_OF_HALVES = b"".join(bytes(each).ljust(128, b"\0") for each in zip(*_DISTINCT, strict=True)).ljust(256, b"\0")
"""Cost by the number of a pair of halves, and 128 more for its second half."""


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
_SECOND_HALF = _everywhere(0x80) | _everywhere(0x80) << 8 * SLICE_CHARACTERS
_LOWERS, _DIGITS, _UPPERS, _SPACES = map(_everywhere, (_LOWER, _DIGIT, _UPPER, _SPACE))


def estimated_tokens(text: str, single_digits: float = 0.0, most: float = BYTES) -> float:
    """Return about how many tokens of o200k a text is; 0 for an empty one. Accepts any text, with lone surrogates too.

    ``single_digits`` goes from 0.0, where three digits are a token, to 1.0, where each is one; ``most`` is the maximum
    for a character. Takes about 8 µs per 1,000 characters of English, 14 of Russian, 11 of Chinese. Of more than
    200,000 characters it counts fifty evenly spaced slices of 2,000, always the same ones.
    """
    length = len(text)
    if length <= SLICE_CHARACTERS:
        return _count(text, single_digits, most)
    if length <= _MOST_CHARACTERS:
        starts, share = list(range(0, length, SLICE_CHARACTERS)), 1.0
    else:
        step = (length - SLICE_CHARACTERS) / (_SLICES - 1)
        starts, share = [int(number * step) for number in range(_SLICES)], length / (_SLICES * SLICE_CHARACTERS)
    return share * sum(_count(text[start : start + SLICE_CHARACTERS], single_digits, most) for start in starts)


def _count(text: str, single_digits: float, most: float) -> float:
    """Return the tokens of at most one slice."""
    if text.isascii():
        return max(0.0, _neighbours(text.encode().translate(_ASCII), single_digits) + _escapes(text))
    # In Latin-1 a question mark stands for every other character, so those of the text become their neighbour in class.
    latin = text.replace("?", "!").encode("latin-1", "replace")
    tokens = max(0.0, _neighbours(latin.translate(_LATIN), single_digits) + _escapes(text))
    if b"?" not in latin:
        return min(tokens, MOST * len(text))
    units = text.encode("utf-16-be", "surrogatepass")
    tokens = min(tokens + _scripts(units), MOST * len(text))
    beyond = len(units) // 2 - len(text)
    return min(tokens + _beyond(text, beyond), most * len(text)) if beyond else tokens


def _beyond(text: str, count: int) -> int:
    """Return the tokens of so many characters of four bytes of UTF-8 whose second one tells that they are no emoji."""
    encoded = text.encode("utf-8", "surrogatepass")
    others = count - encoded.count(b"\xf0\x9f")
    return BEYOND * others + MATHEMATICS * encoded.count(b"\xf0\x9d") if others else 0


def _escapes(text: str) -> float:
    """Return the tokens of what begins with ESC or a backslash."""
    escapes = ESCAPE * text.count("\x1b")
    return escapes + ESCAPED * (text.count("\\\\") + text.count('\\"')) if "\\" in text else escapes


def _scripts(units: bytes) -> float:
    """Return the tokens of UTF-16 units by their scripts; quicker where no block has two prices."""
    blocks = units[::2]
    beyond = blocks.translate(None, b"\0")
    if beyond.translate(None, _WHOLE):
        halves = int.from_bytes(blocks.translate(_HALVES_OF_BLOCK), "little")
        seconds = int.from_bytes(units[1::2], "little") & _SECOND_HALF
        costs = (halves | seconds).to_bytes(len(blocks), "little").translate(_COSTS_OF_HALVES)
    else:
        costs = beyond.translate(_COSTS_OF_WHOLE)
    return (_sum(costs[:SLICE_CHARACTERS]) + _sum(costs[SLICE_CHARACTERS:])) / SCRIPT_UNITS


def _neighbours(classes: bytes, single_digits: float) -> float:
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
    digits = (
        FOURTH_DIGIT * (fourths & ~(fourths << 8) & _DIGITS).bit_count()
        + DIGIT * (fourths & fourths << 24 & _DIGITS).bit_count()
    )
    if single_digits:
        digits += single_digits * ((seconds & _DIGITS).bit_count() - digits)
    return (
        _sum(costs) / UNITS
        + digits
        + LONG_WORD * (tenths & _LOWERS).bit_count()
        + CAPITAL * (fourths & _UPPERS).bit_count()
        + LONG_CAPITALS * (tenths & _UPPERS).bit_count()
        + GAP * (seconds & ~(seconds << 8) & _SPACES).bit_count()
    )


def _sum(costs: bytes) -> int:
    """Return the sum of at most one slice's costs: the low half of a checksum that is made in C is one more than it."""
    first, last = costs[:_MOST_SUMMED], costs[_MOST_SUMMED:]
    return (adler32(first) & 0xFFFF) + (adler32(last) & 0xFFFF) - 2
