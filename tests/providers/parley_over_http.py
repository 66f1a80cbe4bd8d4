"""A small client of an API without an SDK: the names that ``Sdk`` and its ``exchange`` look for, and nothing else."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator
from typing import Any

import openai

http = importlib.import_module("httpx" if openai.__version__.startswith("2.") else "httpx2")


class ParleyError(Exception):
    """No key."""


class APIError(Exception):
    body: object = None
    message = ""


class APIStatusError(APIError):
    def __init__(self, response: Any) -> None:
        super().__init__(f"status {response.status_code}")
        self.response, self.status_code = response, response.status_code
        try:
            self.body = json.loads(response.content)
        except ValueError:
            self.message = response.text


class APIConnectionError(APIError): ...


class APITimeoutError(APIConnectionError): ...


class APIResponseValidationError(APIError): ...


class Events:
    def __init__(self, response: Any) -> None:
        self.response = response
        self.events = self.read()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await anext(self.events)

    async def close(self) -> None:
        await self.response.aclose()

    async def read(self) -> AsyncIterator[Any]:
        rest = b""
        async for piece in self.response.aiter_bytes():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))


class Parley:
    """The synchronous client, of which there is none."""


class AsyncParley:
    def __init__(self, *, api_key: str = "", base_url: str = "", timeout: float = 60) -> None:
        if not api_key:
            raise ParleyError
        self.api_key, self.base_url = api_key, base_url
        headers = {"authorization": f"Bearer {api_key}"}
        self.http: Any = http.AsyncClient(base_url=base_url, headers=headers, timeout=timeout, verify=False)

    async def talk(self, body: dict[str, Any]) -> object:
        response = await self.http.send(self.http.build_request("POST", "/talk", json=body), stream=True)
        try:
            if response.status_code == 200 and body["stream"]:
                return Events(response)
            await response.aread()
        except BaseException:
            await response.aclose()
            raise
        if response.status_code != 200:
            raise APIStatusError(response)
        return json.loads(response.content)

    async def close(self) -> None:
        await self.http.aclose()
