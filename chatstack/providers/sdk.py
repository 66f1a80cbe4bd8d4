"""Common handling of the official SDKs: making a client, calling it, and reading its errors.

An SDK is imported when a client is made; no HTTP library is imported here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from chatstack.client.protocol import ProviderInfo
from chatstack.errors import BrokenStreamError, ChatStackError, ServerError, WiringError
from chatstack.providers.asking import translating
from chatstack.providers.extras import WireObject
from chatstack.providers.failures import failure, misshapen, transport_failure
from chatstack.providers.received import readable
from chatstack.providers.sdk_streams import Body, SdkStream, close_stream, guarded, read_to_end
from chatstack.providers.settings import check_base_url, check_choice, check_key

if TYPE_CHECKING:

    class _ApiError(Exception):
        message: str
        body: object

    class _StatusError(_ApiError):
        status_code: int
        response: _Response

    class _Response(Protocol):
        @property
        def headers(self) -> Mapping[str, str]: ...

    class _Errors(Protocol):
        """The errors of an SDK: both SDKs have them under the same names."""

        APIError: type[_ApiError]
        APIStatusError: type[_StatusError]
        APIConnectionError: type[Exception]
        APITimeoutError: type[Exception]
        APIResponseValidationError: type[Exception]


class SdkClient(Protocol):
    """The common attributes of all SDKs' clients."""

    @property
    def base_url(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=SdkClient)


class Sdk(Generic[C]):
    """One SDK: its names, and its peculiarities in the methods that a subclass overrides.

    ``name`` is our extra and the GenAI name of the provider. ``module`` is where its client and its errors are imported
    from: by default the module that is called ``name``, for an API without an SDK a small client module of our own.
    ``resource`` is the attribute, besides ``base_url``, by which a client of another make can stand in for the SDK's.
    ``clouds`` are the names of its asynchronous clients for other clouds.
    """

    name: ClassVar[str]
    module: ClassVar[str] = ""
    client_name: ClassVar[str]
    key_error: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    resource: ClassVar[str]
    default_url: ClassVar[str]
    default_max_tokens: ClassVar[int] = 0
    clouds: ClassVar[Mapping[str, str]] = MappingProxyType({})
    dict_options: ClassVar[Mapping[str, object]]

    def client(self, owner: str, client: object | None, asked: Mapping[str, object], cloud: str | None = None) -> C:
        """Return the given client, or a new one, for that cloud. Raises ``WiringError``, naming ``owner`` and the
        remedy."""
        try:
            sdk = self._imported()
        except ModuleNotFoundError as error:
            missing = error.name or ""
            is_part = "." in missing and not f"{self.module or self.name}.".startswith(f"{missing}.")
            if not missing or is_part or missing == "chatstack":  # a fault in what is installed
                raise
            what = f"the {missing} SDK" if missing == self.name else f"the package {missing}"
            told = f"{what} is missing; pip install 'chatstack-core[{self.name}]'"
            raise WiringError(f"{owner}: {told}") from error
        options = {name: value for name, value in asked.items() if value is not None}
        check_key(owner, asked["api_key"])
        if cloud is not None:
            return self._on_cloud(owner, sdk, cloud, client, options)
        if client is None:
            return self._made(owner, sdk, options)
        if options:
            raise WiringError(f"{owner}: pass client, or {', '.join(options)}, not both", parameter="client")
        return self._checked(owner, sdk, client)

    def _imported(self) -> ModuleType:
        return importlib.import_module(self.module or self.name)

    def _checked(self, owner: str, sdk: ModuleType, client: object) -> C:
        """Return the given client, if it is one of the SDK's, or can stand in for it."""
        kind: type[C] = getattr(sdk, f"Async{self.client_name}")
        wanted = f"{self.module or self.name}.Async{self.client_name}(...)"
        if isinstance(client, getattr(sdk, self.client_name)):
            raise WiringError(f"{owner}: client is synchronous; pass {wanted}", parameter="client")
        if not isinstance(client, kind) and not (hasattr(client, "base_url") and hasattr(client, self.resource)):
            told = f"client must be an {wanted}, not {type(client).__name__}"
            raise WiringError(f"{owner}: {told}", parameter="client")
        return self._with_key(owner, cast("C", client))

    def _made(self, owner: str, sdk: ModuleType, options: Mapping[str, object]) -> C:
        """Return a new client of the SDK's, which has a key."""
        kind: type[C] = getattr(sdk, f"Async{self.client_name}")
        prefix = self.name.upper()
        check_base_url(owner, options.get("base_url", os.environ.get(f"{prefix}_BASE_URL", self.default_url)))
        remedy = f"set {prefix}_API_KEY or pass api_key='...' (any text for a server that needs none)"
        keyless = WiringError(f"{owner}: no API key; {remedy}", parameter="api_key")
        try:
            made = kind(**options)
        except getattr(sdk, self.key_error) as error:
            raise keyless from error
        except (AttributeError, TypeError, ValueError) as error:
            if "http_client" not in options:
                raise
            told = f"{owner}: http_client is none that the SDK can use: {error}"
            raise WiringError(told, parameter="http_client") from error
        if not self.has_key(self._with_key(owner, made)):
            raise keyless
        return made

    def _on_cloud(
        self, owner: str, sdk: ModuleType, cloud: str, client: object | None, options: Mapping[str, object]
    ) -> C:
        """Return a new client for a cloud, which reads keys, regions and projects from the environment itself."""
        check_choice(owner, "cloud", cloud, self.clouds)
        for name, given in (("client", client), ("api_key", options.get("api_key"))):
            if given is not None:
                told = f"pass {name}, or cloud={cloud!r}, whose credentials come from the environment, not both"
                raise WiringError(f"{owner}: {told}", parameter=name)
        if "base_url" in options:
            check_base_url(owner, options["base_url"])
        try:
            made: C = getattr(sdk, self.clouds[cloud])(**options)
        except (getattr(sdk, f"{self.client_name}Error"), ValueError) as error:
            raise WiringError(f"{owner}: cloud={cloud!r}: {error}", parameter="cloud") from error
        return self._with_key(owner, made)

    def settled(self, client: C, asked: Mapping[str, object]) -> Mapping[str, object]:
        """Return the settings of a client that was made of ``asked``, to make another like it: what came from the
        environment may be gone by then."""
        key = asked["api_key"] or getattr(client, "api_key", None)
        url = asked["base_url"] or os.environ.get(f"{self.name.upper()}_BASE_URL")
        return {**asked, "api_key": key if isinstance(key, str) and key else None, "base_url": url or None}

    def has_key(self, client: C) -> bool:
        """Return True if a new client has a key; the SDK itself may check only with the first request."""
        return True

    def _with_key(self, owner: str, client: C) -> C:
        """Return the client, if its key, which may come from the environment, can go into a header."""
        for name in self.keys:
            check_key(owner, getattr(client, name, None) or None)
        return client

    def info(self, client: C, model: str, window_tokens: int | None) -> ProviderInfo:
        """Return the provider's info: name, model, and the server from the client's ``base_url``."""
        address = urlsplit(str(client.base_url))
        return ProviderInfo(
            name=self.name,
            model=model,
            server_address=address.hostname or "",
            server_port=address.port or {"https": 443, "http": 80}.get(address.scheme),
            window_tokens=window_tokens,
            default_max_tokens=self.default_max_tokens,
        )

    async def exchange(
        self, create: Callable[[], Awaitable[object]], *, streaming: bool, stall_seconds: float | None
    ) -> AsyncGenerator[tuple[WireObject, object], None]:
        """Make one call: yield the results of ``whole`` for a whole answer, or every event of the stream, each with the
        SDK's object. A whole answer may come where a stream was asked for: some servers tell errors so.

        Exceptions of the SDK become our errors, with the SDK's as their cause. The stream is always closed at the end.
        """
        stream: SdkStream | None = None
        try:
            with translating(lambda error: self.translated(error, streaming=stream is not None)):
                answer = await create()
                if not streaming:
                    for event in self.whole(answer):
                        yield event, answer
                    return
                stream = cast("SdkStream", answer)
                body = Body(getattr(stream, "response", None))
                async for each in guarded(stream, self.name, stall_seconds):
                    body.drop()
                    event = self.fields_of(each, streaming=True)
                    yield event, each
                    if self.is_last(event):
                        await read_to_end(stream)
                        return
                if body.is_page:
                    raise self._no_object()
                for found in body.objects():
                    for event in self.whole(found):
                        yield event, found
        finally:
            if stream is not None:
                await close_stream(stream)

    def whole(self, answer: object) -> Iterable[WireObject]:
        """Return the events of a whole answer."""
        return (self.fields_of(answer, streaming=False),)

    def is_last(self, event: Mapping[str, object]) -> bool:
        """Return True for an event behind which none comes, whether the server closes the stream or not."""
        return False

    def fields_of(self, event: object, *, streaming: bool) -> WireObject:
        """Return the JSON object of an answer, or of an event, in the SDK's own form."""
        if isinstance(event, Mapping):
            return readable(dict(cast("Mapping[str, object]", event)))
        to_dict: Any = getattr(event, "to_dict", None)
        if to_dict is not None:
            with misshapen(self.name, streaming=streaming):
                return readable(to_dict(**self.dict_options))
        if streaming:
            told = "an event of the stream is not a JSON object"
            raise BrokenStreamError(f"{self.name}: {told}", provider=self.name)
        raise self._no_object()  # the SDK returns text for a body that is not JSON

    def _no_object(self) -> ServerError:
        return ServerError(f"{self.name}: the answer is not a JSON object: check base_url", provider=self.name)

    def translated(self, error: Exception, *, streaming: bool = False) -> ChatStackError | None:
        """Return our error for an exception of the SDK, or of the layers below it; None for any other."""
        if isinstance(error, ChatStackError):
            return error
        errors = cast("_Errors", self._imported())
        if isinstance(error, errors.APIStatusError):
            return failure(
                self.name,
                status=error.status_code,
                body=error.body,
                code=getattr(error, "code", None) or "",
                text=error.message,
                headers=dict(error.response.headers),
                streaming=error.status_code < 400,  # some servers send an error within a stream as a status
            )
        if isinstance(error, errors.APIConnectionError):
            unsaid = TimeoutError() if isinstance(error, errors.APITimeoutError) else ConnectionError()
            known = transport_failure(self.name, error.__cause__ or unsaid, streaming=streaming)
            return known or transport_failure(self.name, unsaid, streaming=streaming)
        if isinstance(error, errors.APIResponseValidationError):
            told = "the answer is not what the API promises: check base_url"
            return ServerError(f"{self.name}: {told}", provider=self.name)
        if isinstance(error, errors.APIError):
            code = getattr(error, "code", None) or ""
            return failure(self.name, body=error.body, code=code, text=error.message, streaming=streaming)
        return transport_failure(self.name, error, streaming=streaming)
