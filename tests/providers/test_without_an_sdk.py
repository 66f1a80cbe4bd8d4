"""A provider over ``SdkProvider`` for an API without an SDK, as CONTRIBUTING.md says, keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from chatstack import ChatRequest, ChatUpdate, WiringError
from chatstack.errors import ChatStackError
from chatstack.providers.failures import failure
from chatstack.providers.overflow import Overflow
from chatstack.providers.sdk import Sdk
from chatstack.providers.sdk_provider import SdkProvider
from tests.providers import parley_over_http
from tests.testing.parley import ParleyClient, failing_checks, suite_of


class ParleySdk(Sdk[Any]):
    name = "parley"
    module = parley_over_http.__name__
    client_name = "Parley"
    key_error = "ParleyError"
    keys = ("api_key",)
    resource = "talk"
    default_url = "https://api.parley.invalid"
    dict_options: ClassVar[Mapping[str, object]] = MappingProxyType({})

    def translated(self, error: Exception, *, streaming: bool = False) -> ChatStackError | None:
        if isinstance(error, parley_over_http.APIStatusError) and error.status_code == 413:
            body: Any = error.body
            told = Overflow(body["tokens"], body["most"])
            return failure(self.name, status=413, body=body, overflow=told)
        return super().translated(error, streaming=streaming)


class ParleyProvider(SdkProvider[Any], ParleyClient):
    """Writes and reads as ``ParleyClient`` does; all that goes over the network is the SDK's part."""

    _sdk = ParleySdk()

    def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        return self.updates(request)

    async def events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        exchange = self._sdk.exchange(
            lambda: self._client.talk(body), streaming=body["stream"], stall_seconds=self.stall_seconds
        )
        async with aclosing(exchange) as found:
            async for event, _ in found:
                yield event


@pytest.mark.slow
def test_a_provider_with_a_small_client_of_its_own_keeps_the_contract() -> None:
    assert failing_checks(suite_of(ParleyProvider)) == {}


def test_a_key_is_asked_for_as_for_every_provider() -> None:
    with pytest.raises(WiringError, match=r"ParleyProvider: no API key; set PARLEY_API_KEY or pass api_key="):
        ParleyProvider("m", base_url="http://127.0.0.1:9")
