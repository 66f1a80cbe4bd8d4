"""Queries to a server beside answers: the size of a model's context window, and the tokens of a request.

No standard has a field for the window, so every server has its own: Anthropic, vLLM, SGLang, OpenRouter, Groq, Mistral,
llama.cpp. OpenAI itself reports none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from chatstack.errors import ChatStackError, ProviderError, ServerError
from chatstack.providers.extras import field_of, objects_in

Card: TypeAlias = Mapping[str, object]
"""A server's description of one model, as it is on the wire."""

# The limit in force comes before the model's maximum.
_FIELDS = (
    "max_input_tokens",  # Anthropic
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio
    "context_window",  # Groq
    "context_length",  # OpenRouter, and many others
    "max_context_length",  # Mistral
)
_MOST_TOKENS = 10**12
_UNKNOWN_ADDRESS = (404, 405, 501)


async def told_window(
    retrieve: Callable[[], Awaitable[object]],
    listed: Callable[[], Awaitable[object]],
    model: str,
    translated: Callable[[Exception], ChatStackError | None],
) -> int | None:
    """Return the window of that model as the server reports it, in tokens; None if it reports none.

    ``retrieve`` asks for the one model; ``listed`` for all of them, where the server has only the list (llama.cpp).
    Their exceptions are translated by ``translated``.
    """
    try:
        with translating(translated):
            answer = await retrieve()
    except ProviderError as error:
        if error.status not in _UNKNOWN_ADDRESS:
            raise
    else:
        card = fields_of(answer)
        if isinstance(card.get("id"), str):
            return window_on(card)
    with translating(translated):
        found = card_of(model, await listed())
    return window_on(found) if found is not None else None


@contextmanager
def translating(translated: Callable[[Exception], ChatStackError | None]) -> Generator[None, None, None]:
    """Translate the exceptions of an SDK call into our errors, with the SDK's as their cause."""
    try:
        yield
    except Exception as error:
        found = translated(error)
        if found is None or found is error:
            raise
        raise found from error


def window_on(card: Card) -> int | None:
    """Return the window on a model's card, in tokens; None if it has none."""
    window = next((found for name in _FIELDS if (found := _window(card.get(name))) is not None), None)
    if window is None:  # llama.cpp; beside it stands what the model was trained for
        window = _window(field_of(card.get("meta"), "n_ctx"))
    # OpenRouter: the model's window, and the smaller one of who serves it
    served = _window(field_of(card.get("top_provider"), "context_length"))
    return min((each for each in (window, served) if each is not None), default=None)


def counted(tokens: object, provider: str) -> int:
    """Return the number from a count endpoint. Raises ``ServerError`` for an answer without one."""
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ServerError(f"{provider}: the answer holds no count of tokens: check base_url", provider=provider)
    return tokens


def card_of(model: str, listing: object) -> Card | None:
    """Return the card of that model in a server's list of them, by its id or an alias; None if it is not there."""
    cards = objects_in(field_of(listing, "data") or listing)
    for card in cards:
        aliases = card.get("aliases")
        if card.get("id") == model or (isinstance(aliases, list) and model in cast("list[object]", aliases)):
            return card
    # llama.cpp serves its one model under any name.
    return cards[0] if len(cards) == 1 and cards[0].get("owned_by") == "llamacpp" else None


def fields_of(answer: object) -> Card:
    """Return the answer's fields; none if the SDK hands on something other than a model (a list, a page) as it came."""
    if isinstance(answer, Mapping):
        return cast("Card", answer)
    to_dict: Any = getattr(answer, "to_dict", None)
    return {} if to_dict is None else to_dict(warnings=False)


def _window(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_TOKENS else None
