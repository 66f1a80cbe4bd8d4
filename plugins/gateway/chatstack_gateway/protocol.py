"""HTTP/1.1 as callers send it: the head of a request within its bounds, and an ``Upgrade`` that is not taken up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MOST_HEAD_BYTES = 256 * 1024
"""Size of a request's head; some callers have large tokens in it."""
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with the parser below, and a limit on the time that a request's head takes.

    uvicorn limits the time between two requests alone: a connection on which nothing comes, or a byte a minute, would
    stay open for ever.
    """

    def __init__(self, *arguments: Any, head_seconds: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._own = Parser(self)
        self.parser = self._own  # type: ignore[assignment]
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn's timer between two requests ends with whatever comes: a part of a head, an empty line, or what is
        # left of the body of a request that was refused.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if self._head_timer is None and (cycle is None or cycle.response_complete):
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._own.close()

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self._refuse_slow_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_slow_head(self) -> None:
        if self._own.is_within_head and not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
        self.transport.close()


class Parser:
    """httptools' parser, but for two things.

    A request with a body that offers an upgrade (clients of Java offer h2c) is one of HTTP/1.1: httptools ends it
    behind its head, and takes the body for another protocol, or for the next request. And a head has a size.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self.on_body = protocol.on_body
        self._framing: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._is_in_head = True
        self._has_begun = False
        self._is_repeated = False
        self._use(httptools.HttpRequestParser(self))

    @property
    def is_within_head(self) -> bool:
        """True between a head's first byte and its end."""
        return self._is_in_head and self._has_begun

    def close(self) -> None:
        """Let go of the connection: the two hold each other."""
        del self._parser, self.get_method, self.get_http_version, self.should_keep_alive, self.should_upgrade

    def _use(self, parser: Any) -> None:
        with suppress(AttributeError):  # of earlier versions, which need not be told
            parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parser = parser
        self.get_method = parser.get_method
        self.get_http_version = parser.get_http_version
        self.should_keep_alive = parser.should_keep_alive
        self.should_upgrade = parser.should_upgrade

    def feed_data(self, data: bytes) -> None:
        """Parse what has come. Raises what httptools does."""
        if self._is_in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as end:
            self._resume(data[end.args[0] :])
        # What is left of the data may be of a body, and is at most as long as one read.
        if self._is_in_head and self._head_bytes > MOST_HEAD_BYTES + len(data):
            raise httptools.HttpParserError("the head of the request is too large")

    def _resume(self, rest: bytes) -> None:
        """Parse what follows a head with an upgrade, by another parser: its body, or the next request."""
        self._use(httptools.HttpRequestParser(self))
        if self._framing:
            head = b"".join(b"%b: %b\r\n" % each for each in self._framing)
            self._is_repeated = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % head)
            self._is_repeated = False
        if rest:
            self.feed_data(rest)

    def on_message_begin(self) -> None:
        """Begin a request."""
        if not self._is_repeated:
            self._framing, self._is_in_head, self._has_begun = [], True, True
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        if not self._is_repeated:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one behind the body is no header of the request, whatever its name."""
        if self._is_in_head and not self._is_repeated:
            if name.lower() in _FRAMING and value != b"0":
                self._framing.append((name, value))
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the head."""
        if not self._is_repeated:
            self._is_in_head, self._head_bytes = False, 0
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request, unless its body is still to be parsed."""
        if not (self.should_upgrade() and self._framing):
            self._is_in_head, self._has_begun = True, False
            self._protocol.on_message_complete()
