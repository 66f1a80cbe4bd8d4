"""wrap: a request that a layer has edited is signed, retried and refused as one that none has."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import anthropic
import openai
import pytest

from chatstack import ChatClient, ChatFronts, ChatRequest, ChatStack, ChatStream, FunctionInvoker, Truncate, wrap
from chatstack.testing.provider_server import Delivery, ServerReply
from tests.providers.test_wrapping import ASKED, CALL, chunks, completion, history, message, serving, weather

EDITED = ChatStack().use(Truncate, max_tokens=400)
CUT = Delivery(None, then="cut")


@pytest.mark.parametrize("streams", [False, True])
def test_a_broken_connection_is_retried_by_the_sdk(streams: bool) -> None:
    async def run() -> None:
        async with serving(CUT, chunks({"content": "fine"}) if streams else completion("fine")) as served:
            client = wrap(served.openai.with_options(max_retries=1), EDITED).chat.completions
            raw = await client.with_raw_response.create(model="m", messages=history(8), stream=streams)
            assert raw.retries_taken == 1
            assert served.body(0) == served.body(1)
            assert len(served.body(0)["messages"]) < 17
        async with serving(CUT, ServerReply.json(message({"type": "text", "text": "fine"}))) as served:
            other = wrap(served.anthropic.with_options(max_retries=1), EDITED).messages
            raw = await other.with_raw_response.create(model="claude", max_tokens=9, messages=history(8))
            assert raw.retries_taken == 1

    asyncio.run(run())


def test_a_broken_connection_is_an_error_of_the_sdk_when_retries_are_over() -> None:
    async def run() -> None:
        async with serving(CUT, CUT) as served:
            with pytest.raises(openai.APIConnectionError):
                await wrap(served.openai, EDITED).chat.completions.create(model="m", messages=history(8))
            with pytest.raises(anthropic.APIConnectionError):
                await wrap(served.anthropic, EDITED).messages.create(model="claude", max_tokens=9, messages=history(8))

    asyncio.run(run())


@pytest.mark.parametrize("signed", [False, True], ids=["bearer", "signed"])
def test_credentials_that_a_cloud_owns_are_written_once(signed: bool) -> None:
    bedrock = pytest.importorskip("openai.providers", reason="this version has no providers").bedrock
    if signed:
        pytest.importorskip("botocore")
    own: dict[str, Any] = {"access_key_id": "a", "secret_access_key": "s"} if signed else {"api_key": "token"}

    async def run() -> None:
        async with serving(CUT, completion("fine"), completion(None, CALL), completion("Sunny.")) as served:
            cloud = bedrock(region="us-east-1", base_url=f"{served.server.base_url}/v1", **own)
            client: Any = openai.AsyncOpenAI(provider=cloud, max_retries=1)
            stack = ChatStack().use(FunctionInvoker, tools=[weather]).use(Truncate, max_tokens=400)
            await wrap(client, stack).chat.completions.create(model="m", messages=history(8))
            answer = await wrap(client, stack).chat.completions.create(model="m", messages=ASKED)
            await client.close()
            assert answer.choices[0].message.content == "Sunny."
            kind = "AWS4-HMAC-SHA256 " if signed else "Bearer token"
            assert all(each.headers["authorization"].startswith(kind) for each in served.server.requests)

    asyncio.run(run())


def sign(request: Any) -> None:
    request.headers["x-digest"] = hashlib.sha256(request.read()).hexdigest()


class SignsOpenAI(openai.AsyncOpenAI):
    async def _prepare_request(self, request: Any) -> None:
        sign(request)


class SignsAnthropic(anthropic.AsyncAnthropic):
    async def _prepare_request(self, request: Any) -> None:
        sign(request)


def test_a_client_that_signs_its_requests_signs_what_is_sent() -> None:
    async def run() -> None:
        whole = ServerReply.json(message({"type": "text", "text": "fine"}))
        async with serving(CUT, completion("fine"), CUT, whole) as served:
            base = served.server.base_url
            chat: Any = wrap(SignsOpenAI(api_key="k", base_url=f"{base}/v1", max_retries=1), EDITED)
            await chat.chat.completions.create(model="m", messages=history(8))
            other: Any = wrap(SignsAnthropic(api_key="k", base_url=base, max_retries=1), EDITED)
            await other.messages.create(model="claude", max_tokens=9, messages=history(8))
            for each in served.server.requests:
                assert each.headers["x-digest"] == hashlib.sha256(each.body).hexdigest()
            await chat.close()
            await other.close()

    asyncio.run(run())


class SignsByKey(anthropic.AsyncAnthropic):
    async def _prepare_request(self, request: Any) -> None:
        request.headers["x-signed-by"] = f"{self.api_key} for {self.base_url}"


@pytest.mark.parametrize("method", ["copy", "with_options"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_copy_of_a_wrapped_client_signs_by_its_own_credentials(method: str, twice: bool) -> None:
    used = message({"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Oslo"}})
    replies = [ServerReply.json(each) for each in (message({"type": "text", "text": "fine"}), used, message())]

    async def run() -> None:
        async with serving(*replies) as served:
            stack = ChatStack().use(FunctionInvoker, tools=[weather]).use(Truncate, max_tokens=400)
            client: Any = wrap(SignsByKey(api_key="old", base_url="http://127.0.0.1:9"), stack)
            client = wrap(client, ChatStack()) if twice else client
            copied = getattr(client, method)(api_key="new", base_url=served.server.base_url).with_options(timeout=9)
            await copied.messages.create(model="claude", max_tokens=9, messages=history(8))
            await copied.messages.create(model="claude", max_tokens=9, messages=[{"role": "user", "content": "?"}])
            signed_by = [each.headers["x-signed-by"] for each in served.server.requests]
            assert signed_by == [f"new for {served.server.base_url}"] * 3
            await copied.close()

    asyncio.run(run())


class CountsSent(ChatFronts):
    """A layer that counts what goes through it."""

    sent = 0

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        CountsSent.sent += 1
        return await self.inner.send(request)


def test_each_stack_around_a_client_answers_once_of_its_copies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountsSent, "sent", 0)

    async def run() -> None:
        async with serving(*[completion("fine")] * 2) as served:
            client: Any = wrap(wrap(served.openai, ChatStack().use(CountsSent)), ChatStack().use(CountsSent))
            await client.chat.completions.create(model="m", messages=ASKED)
            assert CountsSent.sent == 2
            await client.with_options(timeout=9).chat.completions.create(model="m", messages=ASKED)
            assert CountsSent.sent == 4

    asyncio.run(run())


def test_a_wrapped_client_validates_answers_as_strictly_as_the_one_that_was_given() -> None:
    async def run() -> None:
        async with serving(ServerReply.json({"id": 5, "object": "nothing"})) as served:
            client: Any = openai.AsyncOpenAI(
                api_key="k", base_url=f"{served.server.base_url}/v1", _strict_response_validation=True, max_retries=0
            )
            with pytest.raises(openai.APIResponseValidationError):
                await wrap(client, ChatStack()).chat.completions.create(model="m", messages=ASKED)

    asyncio.run(run())
