"""How much fits into a model's context, where somebody has published it."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=256)
def window_of(model: str) -> int | None:
    """The window of a model in tokens, from the tables of ``genai-prices`` (the extra ``prices``).

    A vendor before a slash (``openai/gpt-4.1-mini``), as routers write it, is understood. None when the model is not
    in the tables, its window is not, or the extra is not installed.
    """
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    snapshot = get_snapshot()
    vendor, _, bare = model.rpartition("/")
    for name, provider_id in ((model, None), (bare, vendor), (bare, None)):
        try:
            _, found = snapshot.find_provider_model(name, None, provider_id or None, None)
        except LookupError:
            continue
        if found.context_window is not None:
            return found.context_window
    return None
