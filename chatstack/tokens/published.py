"""Published data about models: the tables of ``genai-prices`` (the extra ``prices``).

Importing them takes a second of CPU, which would block an event loop: there, await ``tables_loaded`` before a look-up.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chatstack.tokens.loading import is_on_a_loop, off_the_loop

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, Provider

_BEDROCK = "aws"
_ELSEWHERE = re.compile(r":(free$|\d[\d.]*[bm]\b)", re.IGNORECASE)
"""Tags of what is not the vendor's own service: a variant that costs nothing (OpenRouter), weights of some size that a
server of one's own loads (Ollama). The tables would take some for the vendor's model."""
_importing = threading.Lock()
_loaded = threading.Event()


async def tables_loaded() -> None:
    """Wait until the tables are in memory; the first caller starts a thread that imports them."""
    if not _loaded.is_set():
        await off_the_loop(load_tables)


def must_wait() -> bool:
    """Tell whether a look-up here and now would import the tables on a running event loop."""
    return not _loaded.is_set() and is_on_a_loop()


def published(model: str, provider: str = "") -> Iterator[tuple[Provider, ModelInfo]]:
    """Yield the entries of a model, the likeliest first: that of the ``provider`` that serves it, then those that its
    name tells. A vendor before a slash, as routers write it, is understood, and so is a name of Bedrock's
    (``us.anthropic.claude-...-v1:0``), which the tables have under its provider alone.

    Nothing when the model is not in the tables, or the extra is not installed.
    """
    load_tables()
    snapshot = _snapshot()
    if snapshot is None:
        return
    vendor, _, bare = model.rpartition("/")
    guesses = ((model, None), (bare, vendor), (bare, None), (bare, _BEDROCK))
    served = ((model, provider),) if provider else ()
    for name, provider_id in served + (() if _ELSEWHERE.search(model) else guesses):
        try:
            yield snapshot.find_provider_model(name, None, provider_id or None, None)
        except LookupError:
            continue


@functools.lru_cache(maxsize=256)
def provider_at(server: str) -> str:
    """Return the provider at a server's address, by its id in the tables; "" if it is in none."""
    load_tables()
    snapshot = _snapshot()
    if snapshot is None or not server:
        return ""
    try:
        return snapshot.find_provider(None, None, f"https://{server}/").id
    except LookupError:
        return ""


def load_tables() -> None:
    """Import the tables, once; other threads wait meanwhile."""
    with _importing:
        if _loaded.is_set():
            return
        _snapshot()
        _loaded.set()


def _snapshot() -> DataSnapshot | None:
    """Return the tables; None without the extra, or in a bundle without its metadata, which it reads itself."""
    try:
        from genai_prices.data_snapshot import get_snapshot

        return get_snapshot()  # imports the rest
    except ImportError:
        return None
