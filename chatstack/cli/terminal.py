"""Terminal output: one way of making a console, and outside text without control sequences.

File names, model names, tool output and error texts come from outside. Printed as they are, they could move the cursor,
rename the window, write to the clipboard or show a line that is not there.
"""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING, TextIO

from chatstack.values.errors import ChatStackError

if TYPE_CHECKING:
    from rich.console import Console

_CSI = "(?:\x1b\\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours, cursor, erasing
_SEQUENCES = re.compile(
    # strings: OSC, DCS, SOS, PM, APC; with an end, payload and all, as a terminal would show none of it
    "(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])(?P<payload>[^\x07\x1b\x9c]*+)(?P<end>\x07|\x1b\\\\|\x9c)?"
    f"|{_CSI}"
    # any other escape of two or three characters, then an escape that leads nowhere
    "|\x1b[ -/]*+[0-~]"
)
_IN_PAYLOAD = re.compile(_CSI)
_LINE_BREAKS = re.compile("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f"  # C0, DEL and C1, save tab and line breaks
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # directions: they make text read as what it is not
    "\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"  # no width: text that nobody sees
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text that shows as what it is: no escape sequence, control character, bidi control or hidden text.

    Tabs become spaces. Line breaks do too, unless ``lines`` keeps them, as ``\\n``. Lone surrogates, as in file names
    that are not text, become U+FFFD, so that any stream can encode the rest.
    """
    text = _SEQUENCES.sub(_left_of, text)
    text = _LINE_BREAKS.sub("\n" if lines else " ", text).replace("\t", " ")
    return _SURROGATES.sub("\ufffd", _UNSEEN.sub("", text))


def counted(number: int, word: str) -> str:
    """Return a number with its noun in the singular or plural."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def own_version() -> str:
    """Return the version of chatstack; "of a bundle without metadata" where only its files are, as in a frozen app."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("chatstack-core")
    except PackageNotFoundError:
        return "of a bundle without metadata"


def _left_of(found: re.Match[str]) -> str:
    """Return the payload of a control string that has no terminator: it is text, after all.

    The payload is matched together with its opening, so it is not scanned again for each opening inside it. Those lack
    a terminator too, and there may be as many as characters.
    """
    return "" if found["end"] or not found["payload"] else _IN_PAYLOAD.sub("", found["payload"])


def make_console(*, stderr: bool = False) -> Console:
    """Return a rich console that takes text as text: no markup, no emoji codes, no guessed highlighting.

    If the stream is closed, the console prints nothing. Raises ``ChatStackError`` when the extra ``cli`` is not
    installed.
    """
    try:
        from rich.console import Console
    except ImportError as error:
        raise missing_extra("rich", "cli") from error
    stream: TextIO | None = sys.stderr if stderr else sys.stdout
    if stream is None:
        return Console(file=io.StringIO(), quiet=True)  # rich itself would fall back to the other stream
    reconfigure: object = getattr(stream, "reconfigure", None)
    if callable(reconfigure):
        # A terminal that cannot show a letter shows a question mark; it does not end the program.
        reconfigure(errors="replace")
    return Console(file=stream, markup=False, emoji=False, highlight=False)


def missing_extra(package: str, extra: str) -> ChatStackError:
    """Return the error that says how to install a missing package."""
    return ChatStackError(f"{package} is not installed: pip install 'chatstack-core[{extra}]'")
