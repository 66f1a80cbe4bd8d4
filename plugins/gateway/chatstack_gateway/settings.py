"""What a gateway is told: where to forward to, what to allow, and how much."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from chatstack import WiringError
from chatstack.client.options import PositiveFloat, PositiveInt, check_options
from chatstack.providers.wires import Form

LARGE_BYTES = 256 * 1024
"""Size from which on a body is read and edited in a thread, so that other requests have the event loop."""
_VERSION = re.compile(r"/v[0-9]+[a-z0-9]*(/|$)")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The API's server. ``base_url`` is what an SDK would be given: with or without the version in its path."""

    base_url: str

    def __post_init__(self) -> None:
        if not isinstance(self.base_url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"upstream: the address is of type {type(self.base_url).__name__}, and no text")
        try:
            parts = urlsplit(self.base_url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # not shown: what stands in the place of a port may be a password
            raise WiringError("upstream: host or port of the address is none") from None
        if not is_address:
            raise WiringError(f"upstream: {_shown(self.base_url)!r} is no http or https address")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise WiringError("upstream: the address holds a user, a query or a fragment; name scheme, host and path")

    @property
    def host(self) -> str:
        """Name of the server."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def port(self) -> int | None:
        """Port, where the address names one."""
        return urlsplit(self.base_url).port

    def url(self, path: str, query: str) -> str:
        """Return the address for a path of the gateway's. The version stands in it once, whoever names it."""
        base = self.base_url.rstrip("/")
        if _VERSION.search(urlsplit(base).path):
            path = path.removeprefix("/v1")
        return f"{base}{path}{'?' if query else ''}{query}"


def _shown(url: str) -> str:
    """Return an address without what may be a secret in it."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds. ``head_seconds`` is how long a request's head may take, ``body_seconds`` how long a piece of its body;
    a body may take that long and a second more for each KiB of it. ``drain_seconds`` is how long open answers may take
    after SIGTERM."""

    _: KW_ONLY
    body_bytes: PositiveInt = 64 * 1024 * 1024
    open_requests: PositiveInt = 2_000
    head_seconds: PositiveFloat = 60
    body_seconds: PositiveFloat = 60
    connect_seconds: PositiveFloat = 10
    stall_seconds: PositiveFloat = 600
    drain_seconds: PositiveFloat = 30
    error_bytes: PositiveInt = 1024 * 1024

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a gateway is told.

    ``api`` is the one API that upstream speaks, if it does not speak all three: requests of the others are converted,
    and name ``model``, if it is given, in the place of their callers'. ``rewrite_answers`` hands on what the layers
    make of answers, in the place of upstream's bytes. ``key`` is the server's own, sent in the place of the caller's;
    ``token`` is what callers have to show, ``admin_token`` who turns editing on and off. None of these is ever shown.
    """

    upstream: Upstream
    _: KW_ONLY
    pipeline: str = ""
    api: Form | None = None
    model: str = ""
    rewrite_answers: bool = False
    observe: bool = False
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    record: Path | None = None
    state: Path | None = None
    key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    admin_token: str = field(default="", repr=False)
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.upstream, Upstream):  # pyright: ignore[reportUnnecessaryIsInstance]
            told = f"upstream is a {type(self.upstream).__name__}; write Upstream('https://...')"
            raise WiringError(f"Settings: {told}", parameter="upstream")
        if self.observe and self.rewrite_answers:
            raise WiringError("--observe forwards answers untouched; leave --rewrite-answers out")
        if not is_loopback(self.host) and not self.token:
            raise WiringError(
                f"--host {self.host} is reachable by others, so callers need a token: set CHATSTACK_GATEWAY_TOKEN"
            )


def is_loopback(host: str) -> bool:
    """Return True for a name or address of this machine alone."""
    host = host.strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
