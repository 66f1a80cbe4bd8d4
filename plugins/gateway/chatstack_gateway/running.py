"""A request on its way through the stack: with the edits if that can be done, as it came if not."""

from __future__ import annotations

import logging
import os
import traceback

from chatstack import ChatResponse, ChatStream
from chatstack.errors import ChatStackError, RequestRefusedError
from chatstack_gateway.converting import UnsayableError
from chatstack_gateway.exchange import Exchange, Outcome
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.positions import UneditableError
from chatstack_gateway.refusals import is_deliberate
from chatstack_gateway.upstream import UpstreamRefusalError

logger = logging.getLogger("chatstack.gateway")

_OF_THE_REQUEST = frozenset({400, 409, 413, 422})
"""Statuses by which an API refuses what is in a request."""


async def answered(gateway: Gateway, exchange: Exchange) -> ChatResponse:
    """Send the request through its stack, and read the copy of the answer to its end.

    Raises what a layer refuses deliberately, and what upstream refused. Any other failure of a layer, and a refusal of
    what upstream might take unedited, sends the request once more, as it came.
    """
    async with await opened(gateway, exchange) as stream:
        if exchange.request.stream:
            async for _ in stream:  # one by one, as a caller would: layers and metrics tell the time of each
                pass
        return await stream.response()


async def opened(gateway: Gateway, exchange: Exchange) -> ChatStream:
    """Send the request through its stack, and return the stream of its answer. Raises as ``answered`` does."""
    bare = gateway.stacks.bare[exchange.form]
    if exchange.is_bypassed:
        return await bare.send(exchange.request)
    try:
        return await gateway.stacks.edited[exchange.form].send(exchange.request)
    except Exception as error:
        if exchange.is_answering:
            raise
        refusal = UpstreamRefusalError.of(error)
        if isinstance(error, UnsayableError):
            raise
        if isinstance(error, UneditableError):
            _bypass(exchange, "not editable", str(error))
        elif refusal is not None:
            if not exchange.is_edited or not _is_about_the_edit(error, refusal):
                raise
            _bypass(exchange, "undone", f"upstream refused the edited request with {refusal.status}")
        elif is_deliberate(error):
            raise
        else:
            _bypass(exchange, "failed open", f"a layer failed: {_told(error)}")
    stream = await bare.send(exchange.request)
    if exchange.outcome == "undone":  # and what came is taken: so the edits were the reason
        gateway.refused_edits.add(exchange)
    return stream


def _is_about_the_edit(error: Exception, refusal: UpstreamRefusalError) -> bool:
    """Return True for a refusal of what is in the request. Too long is no such thing: as it came it is longer."""
    return isinstance(error, RequestRefusedError) and (refusal.status in _OF_THE_REQUEST or refusal.status < 400)


def _told(error: Exception) -> str:
    """Return a failure of a layer in a few words. What a stranger's exception says may quote the request."""
    if isinstance(error, ChatStackError):
        return str(error)
    *_, frame = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {os.path.basename(frame.filename)}:{frame.lineno}"


def _bypass(exchange: Exchange, outcome: Outcome, reason: str) -> None:
    exchange.is_bypassed, exchange.is_edited = True, False
    exchange.outcome, exchange.reason = outcome, reason
    logger.warning("sent as it came: %s", reason)
