"""What is asked of a server beside answers: how much fits into a model's context, and how long a request is.

For the window no standard has a field, so every server has its own: Anthropic, vLLM, SGLang, OpenRouter, Groq,
Mistral, llama.cpp. OpenAI itself says nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeAlias, cast

from chatstack.errors import ChatStackError, ProviderError, ServerError

Card: TypeAlias = Mapping[str, object]
"""What a server says of one model, as it is on the wire."""

# What is in force comes before what the model could do at best.
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


class _SdkModel(Protocol):
    def to_dict(self, *, warnings: bool) -> dict[str, object]: ...


async def told_window(
    retrieve: Callable[[], Awaitable[object]],
    listed: Callable[[], Awaitable[object]],
    model: str,
    translated: Callable[[Exception], ChatStackError | None],
) -> int | None:
    """What the server says of that model's window, in tokens; None when it says nothing.

    ``retrieve`` asks for the one model; ``listed`` for all of them, where the server knows only the list (llama.cpp).
    What they raise comes out as ``translated`` makes of it.
    """
    try:
        with translating(translated):
            answer = await retrieve()
    except ProviderError as error:
        if error.status not in _UNKNOWN_ADDRESS:
            raise
    else:
        card = _fields_of(answer)
        if isinstance(card.get("id"), str):
            return window_on(card)
    with translating(translated):
        found = card_of(model, await listed())
    return window_on(found) if found is not None else None


@contextmanager
def translating(translated: Callable[[Exception], ChatStackError | None]) -> Generator[None, None, None]:
    """Around a call of an SDK: what it raises comes out as the error of the tree, with the SDK's as its cause."""
    try:
        yield
    except Exception as error:
        found = translated(error)
        if found is None or found is error:
            raise
        raise found from error


def window_on(card: Card) -> int | None:
    """The window that a model's card tells, in tokens; None when it tells none."""
    window = next((found for name in _FIELDS if (found := _window(card.get(name))) is not None), None)
    meta, provider = card.get("meta"), card.get("top_provider")
    if window is None and isinstance(meta, Mapping):  # llama.cpp; beside it stands what the model was trained for
        window = _window(cast("Card", meta).get("n_ctx"))
    if isinstance(provider, Mapping):  # OpenRouter: the model's window, and the smaller one of who serves it
        served = _window(cast("Card", provider).get("context_length"))
        window = min((each for each in (window, served) if each is not None), default=None)
    return window


def counted(tokens: object, provider: str) -> int:
    """The number that a count endpoint answered. Raises ``ServerError`` for an answer without one."""
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ServerError(f"{provider}: the answer holds no count of tokens: check base_url", provider=provider)
    return tokens


def card_of(model: str, listing: object) -> Card | None:
    """The card of that model in a server's list of them, by its id or an alias; None when it is not there."""
    rows = cast("Card", listing).get("data") if isinstance(listing, Mapping) else listing
    if not isinstance(rows, list):
        return None
    cards = [cast("Card", each) for each in cast("list[object]", rows) if isinstance(each, Mapping)]
    for card in cards:
        aliases = card.get("aliases")
        if card.get("id") == model or (isinstance(aliases, list) and model in cast("list[object]", aliases)):
            return card
    # llama.cpp serves its one model under whatever name it is asked for.
    return cards[0] if len(cards) == 1 and cards[0].get("owned_by") == "llamacpp" else None


def _fields_of(answer: object) -> Card:
    """The answer's fields; none where the SDK hands on what is no model (a list, a page) as it came."""
    if isinstance(answer, Mapping):
        return cast("Card", answer)
    return cast("_SdkModel", answer).to_dict(warnings=False) if hasattr(answer, "to_dict") else {}


def _window(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_TOKENS else None
