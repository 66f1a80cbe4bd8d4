"""wrap: a request that a layer has edited is signed, retried and refused as one that none has."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import anthropic
import openai
import pytest

from chatstack import ChatStack, FunctionInvoker, Truncate, wrap
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
