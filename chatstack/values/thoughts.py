"""Thinking that a model writes into its text, in tags, where the server does not tell it apart."""

from __future__ import annotations

import re

_TAGGED = re.compile(r"\s*<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)
_END = re.compile(r"^</think>[ \t]*$", re.MULTILINE)


def without_thought(text: str, *, is_json: bool = False) -> str:
    """Return the text without the thinking before it: nothing, if the model has come to no end of it.

    The first tag may be missing, as templates put it into the prompt. Then the last one has a line of its own, which
    only of JSON is certain to be no quotation.
    """
    found = _TAGGED.match(text) or (_END.search(text) if is_json else None)
    return text if found is None else text[found.end() :].lstrip()
