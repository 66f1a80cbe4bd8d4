"""A provider of a made-up API that keeps the contract, by the adapter that the documentation shows."""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import openai

from chatstack import (
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatStream,
    ChatUpdate,
    InputError,
    Message,
    ProviderItem,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from chatstack.client.closing import Closing
from chatstack.client.protocol import ProviderInfo
from chatstack.errors import BrokenStreamError, ProviderError, ServerError
from chatstack.providers.assembly import MessageAssembly
from chatstack.providers.extras import extra_fields
from chatstack.providers.failures import failure, transport_failure
from chatstack.providers.overflow import Overflow
from chatstack.providers.received import readable
from chatstack.providers.sending import sendable
from chatstack.testing import ProviderContract, provider_contract
from chatstack.values.requests import ToolDeclaration

http = importlib.import_module("httpx" if openai.__version__.startswith("2.") else "httpx2")

NOT_SENT = ("stop", "seed", "top_p", "reasoning_effort", "parallel_tool_calls")


class ParleyClient(Closing, ChatFronts):
    """Speaks Parley. Subclasses in the tests break one thing each."""

    def __init__(
        self, model: str, *, base_url: str, api_key: str, timeout_seconds: float, window_tokens: int | None = None
    ) -> None:
        at = urlsplit(base_url)
        self.info = ProviderInfo(
            name="parley",
            model=model,
            server_address=at.hostname or "",
            server_port=at.port,
            window_tokens=window_tokens,
        )
        self.key = api_key
        headers = {"authorization": f"Bearer {api_key}"}
        self.http: Any = http.AsyncClient(base_url=base_url, headers=headers, timeout=timeout_seconds, verify=False)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self.updates(request))

    async def aclose(self) -> None:
        await self.http.aclose()

    async def updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        body = sendable(request, lambda: self.body(request))
        assembly, end = MessageAssembly("parley"), dict[str, Any]()
        began, calls = False, 0
        try:
            async with aclosing(self.events(body)) as events:
                async for event in events:
                    if "error" in event:
                        raise ServerError("parley: failed in the middle of the answer", provider="parley")
                    began = True
                    if event.get("says"):
                        assembly.add_text(event["says"])
                        yield ChatUpdate(text=event["says"])
                    for each in event.get("uses", ()):
                        yield ChatUpdate(call_delta=self.call(assembly, calls, each))
                        calls += 1
                    if "end" in event:
                        end = event
        except Exception as error:
            found = None if isinstance(error, ProviderError) else self.failure(error, began)
            if found is None:
                raise
            raise found from error
        if not end:
            raise BrokenStreamError("parley: no end", provider="parley")
        assembly.add_extra({name: each for name, each in end.items() if name not in ("says", "uses", "end", "tokens")})
        for update in self.last(assembly.finish(), end):
            yield update

    def call(self, assembly: MessageAssembly, index: int, use: dict[str, Any]) -> Any:
        return assembly.add_call(index, id=use["id"], name=use["tool"], arguments=use["with"])

    def last(self, message: Message, end: dict[str, Any]) -> list[ChatUpdate]:
        return [
            *(ChatUpdate(part=call) for call in message.calls),
            ChatUpdate(message_done=message, usage=self.usage(end["tokens"]), finish_reason=end["end"]),
        ]

    def usage(self, tokens: dict[str, int]) -> Usage | None:
        return Usage(tokens["in"], tokens["out"], tokens["cached"])

    def failure(self, error: Exception, began: bool) -> ProviderError | None:
        return transport_failure("parley", error, streaming=began)

    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        told = Overflow(said["tokens"], said["most"]) if status == 413 else None
        return failure("parley", status=status, headers=headers, overflow=told)

    async def events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with self.http.stream("POST", "/talk", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                raise self.refusal(response.status_code, json.loads(response.content), dict(response.headers))
            if not body["stream"]:
                yield self.read(await response.aread())
                return
            async for line in self.lines(response):
                if line.startswith("data: "):
                    yield self.read(line.removeprefix("data: "))

    def read(self, text: str | bytes) -> dict[str, Any]:
        return readable(json.loads(text))

    async def lines(self, response: Any) -> AsyncIterator[str]:
        rest = b""  # aiter_lines would end a line at U+2028, too
        async for piece in response.aiter_bytes():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode()

    def body(self, request: ChatRequest) -> dict[str, Any]:
        options = request.options
        for name in NOT_SENT:
            if getattr(options, name) not in (None, ()):
                raise InputError(f"options.{name}: Parley has no such thing")
        return {
            "model": options.model or self.info.model,
            "turns": [self.turn(message) for message in request.messages],
            "stream": request.stream,
            **self.settings(options),
            **options.extra,
        }

    def settings(self, options: ChatOptions) -> dict[str, Any]:
        tools = [each for each in options.tools if isinstance(each, ToolDeclaration)]
        return {
            "instructions": options.instructions,
            "tools": [{"name": each.name, "does": each.description, "with": each.parameters} for each in tools],
            "tool_choice": options.tool_choice,
            "most": options.max_tokens,
            "temperature": options.temperature,
            "shape": options.output_schema and options.output_schema.schema,
        }

    def turn(self, message: Message) -> dict[str, Any]:
        parts = [part for part in (self.part(each) for each in message.parts) if part is not None]
        return {"by": message.role, "parts": parts, **extra_fields(message.extra_json, "parley", "messages")}

    def part(self, part: object) -> object:
        match part:
            case Text(text):
                return text
            case ToolCall(id, name, arguments):
                return {"id": id, "tool": name, "with": arguments}
            case ToolResult():
                return {"of": part.call_id, "says": part.text}
            case Reasoning() | ProviderItem():
                return None
            case _:
                raise InputError(f"Parley has no {type(part).__name__}")


def suite_of(client: type[ParleyClient], *, patience_seconds: float = 5.0) -> type[ProviderContract]:
    """The suite that the documentation shows, for that client."""
    assert provider_contract.__doc__ is not None
    code = provider_contract.__doc__.split("::\n", 1)[1].rsplit("\n\nA stream of JSON lines", 1)[0]
    names: dict[str, Any] = {"ParleyClient": client}
    exec(compile(textwrap.dedent(code), "example", "exec"), names)
    suite: type[ProviderContract] = names["TestParleyClient"]
    assert issubclass(suite, ProviderContract)
    suite.patience_seconds = patience_seconds
    return suite


def checks_of(suite: type[ProviderContract]) -> list[str]:
    return [name for name in dir(suite) if name.startswith("test_")]


def failing_checks(suite: type[ProviderContract]) -> dict[str, str]:
    """The checks of that suite that fail, and what each of them says."""
    found = dict[str, str]()
    for check in checks_of(suite):
        try:
            getattr(suite(), check)()
        except Exception as error:  # noqa: BLE001 - a check may end by anything
            found[check] = str(error)
    return found
