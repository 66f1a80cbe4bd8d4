"""A replay's report as one HTML page that needs nothing else: no server, no network, no library.

Texts in it come from outside: recordings, file names, error texts. Text that is shown without a script is escaped here;
the script inserts its texts as text nodes, from a data block that its contents cannot close. The page's content
security policy allows, by their hashes, only its own script and style, and no request to anywhere.

Its pieces are the files beside this one: the frame, the styles, and the script by subject.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files

import msgspec

from chatstack.workbench.replay.page.columns import Figures
from chatstack.workbench.replay.page.sections import answer, facts, faults, notes, table, title

_STYLES = ("base.css", "figures.css", "stories.css", "print.css")
_SCRIPTS = (
    "basics.js",
    "policies.js",
    "scales.js",
    "scatter.js",
    "lines.js",
    "table.js",
    "states.js",
    "map.js",
    "messages.js",
    "pane.js",
    "stories.js",
    "start.js",
)
"""The pieces of the script, in order: code that runs on load needs the pieces before it."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def page_of(report: Mapping[str, object]) -> str:
    """Return the page of a report from ``with_stories``; it is valid UTF-8, whatever the report's texts hold.

    Fields may be absent or null: they show as a dash. Raises ``msgspec.ValidationError`` if a field that the page shows
    without a script is of another type, ``ValueError`` and ``TypeError`` for values that JSON cannot hold.
    """
    figures = msgspec.convert(dict(report), Figures)
    style = "\n".join(_asset(name) for name in _STYLES)
    script = '(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    filling = {
        "policy": _policy(style, script),
        "title": title(figures),
        "style": style,
        "facts": facts(figures),
        "answer": answer(figures),
        "table": table(figures),
        "faults": faults(figures),
        "notes": notes(figures),
        "data": embedded(report),
        "script": script,
    }
    return _PLACE.sub(lambda place: filling[place[1]], _asset("page.html"))


def embedded(report: Mapping[str, object]) -> str:
    """Return JSON for a script element, in ASCII and without ``<``, ``>`` and ``&``.

    So nothing in it ends the element or begins a comment; ``JSON.parse`` restores all of it, lone surrogates too.
    """
    text = json.dumps(dict(report), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str) -> str:
    """Return the content security policy: this script, this style, nothing else, and no element made from text."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return files("chatstack.workbench.replay.page").joinpath(name).read_text(encoding="utf-8")
