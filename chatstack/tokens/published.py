"""What is published about models: the tables of ``genai-prices`` (the extra ``prices``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider


def published(model: str) -> Iterator[tuple[Provider, ModelInfo]]:
    """The entries of a model, the likeliest first; a vendor before a slash, as routers write it, is understood.

    None at all when the model is not in the tables, or the extra is not installed.
    """
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return
    snapshot = get_snapshot()
    vendor, _, bare = model.rpartition("/")
    for name, provider_id in ((model, None), (bare, vendor), (bare, None)):
        try:
            yield snapshot.find_provider_model(name, None, provider_id or None, None)
        except LookupError:
            continue
