"""A store of decisions in one Redis server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar, cast

import redis
from chatstack.errors import StoreError, WiringError
from chatstack.stores.opening import OpenedOnce, Session
from chatstack.values.surrogates import lone_surrogate_in
from redis.backoff import NoBackoff
from redis.retry import Retry

from chatstack_redis.keys import Keys, reason

T = TypeVar("T")

LONGEST_TTL_SECONDS = 10 * 365 * 86_400
CLOSING_SECONDS = 1.0
"""How long closing waits for what is under way; then the connections are cut, as a server may have stopped."""


class RedisStore:
    """Decisions in a Redis server (or one that speaks as it does), for any number of processes of any machines.

    ``url`` is ``redis://``, ``rediss://`` or ``unix://``, as the redis package takes it. Keys begin with ``prefix``,
    and whatever begins with it and a colon is taken for a decision. What was neither put nor found for ``ttl_seconds``
    is gone; beyond that it is up to the server's own limit of memory. One round trip takes ``timeout_seconds`` at
    most; an idle connection that was lost is made again.

    Nothing is connected before it is needed. At most ``max_connections`` threads, each with one connection while it
    needs it, do what is asked for from any event loop or thread, and end with ``aclose``. Whoever is cancelled before
    its turn takes its question back; one that is under way is carried out. What is wrong is a ``StoreError`` each
    time; options that cannot be are a ``WiringError``. What layers wrote is in the server as it is, excerpts and
    summaries included.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "chatstack:decisions",
        ttl_seconds: float = 30 * 86_400,
        timeout_seconds: float = 5.0,
        max_connections: int = 4,
    ) -> None:
        if not isinstance(prefix, str) or not prefix or lone_surrogate_in(prefix) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            told = "must be text, not empty and without half characters"
            raise WiringError(f"RedisStore: prefix={prefix!r} {told}", parameter="prefix")
        for name, seconds in (("ttl_seconds", ttl_seconds), ("timeout_seconds", timeout_seconds)):
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
            if not is_number or not 0 < seconds <= LONGEST_TTL_SECONDS:
                raise WiringError(
                    f"RedisStore: {name}={seconds!r} must be a number above 0, at most {LONGEST_TTL_SECONDS:,}",
                    parameter=name,
                )
        if type(max_connections) is not int or max_connections < 1:
            raise WiringError(
                f"RedisStore: max_connections={max_connections!r} must be a whole number greater than 0",
                parameter="max_connections",
            )
        self.prefix = prefix
        self.ttl_seconds = ttl_seconds
        options = {"socket_timeout": timeout_seconds, "socket_connect_timeout": timeout_seconds}
        self._where = _address(_pool(url, options))
        self._keys = Keys(prefix, ttl_seconds)
        where = f"Redis at {self._where}"
        self._opened = OpenedOnce(where, partial(_Session, url, options, where, max_connections))

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The last of these links that has a record: link and record. See ``DecisionStore``."""
        asked, of = list(links), _encoded(owner)
        return await self._run(lambda client: self._keys.find(client, of, asked))

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        """Keep a record, unless another one is there than the one it replaces. See ``DecisionStore``."""
        of = _encoded(owner)
        return await self._run(lambda client: self._keys.put(client, of, link, record, replaces))

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Forget what is kept for these links, or everything under the prefix, of everybody."""
        if links is None:
            await self._run(self._keys.forget_all)
        else:
            given = list(links)
            await self._run(lambda client: self._keys.forget(client, given))

    async def aclose(self) -> None:
        """Wait for what is under way, a second at most, let go of connections and threads. The store cannot be used any
        more."""
        await self._opened.aclose()

    async def _run(self, job: Callable[[redis.Redis], T]) -> T:
        return await self._opened.get().run(job)

    def __repr__(self) -> str:
        return f"RedisStore({self._where!r}, prefix={self.prefix!r}, ttl_seconds={self.ttl_seconds:g})"


class _Session(Session):
    """A few threads, and the connections that they use."""

    def __init__(self, url: str, options: dict[str, float], where: str, max_threads: int) -> None:
        self._pool = _pool(url, options)
        self._client = redis.Redis(connection_pool=self._pool)
        self._where = where
        self._threads = ThreadPoolExecutor(max_threads, "chatstack-redis")
        self._under_way: set[Future[Any]] = set()
        self._is_closed = False

    async def run(self, job: Callable[[redis.Redis], T]) -> T:
        try:
            waiting = self._threads.submit(self._done, job)
        except RuntimeError as error:  # closed by another thread in this very moment, or the interpreter ends
            raise StoreError(f"{self._where}: it has been closed") from error
        self._under_way.add(waiting)
        waiting.add_done_callback(self._under_way.discard)
        return await asyncio.wrap_future(waiting)

    async def aclose(self) -> None:
        self._is_closed = True
        await asyncio.shield(asyncio.to_thread(self._closed))

    def _done(self, job: Callable[[redis.Redis], T]) -> T:
        if self._is_closed:
            raise StoreError(f"{self._where}: it has been closed")
        try:
            return job(self._client)
        except redis.RedisError as error:
            raise StoreError(f"{self._where}: {reason(error)}") from error
        except Exception as error:
            if self._is_closed:  # what the driver says where its socket was taken away
                raise StoreError(f"{self._where}: it has been closed") from error
            raise

    def _closed(self) -> None:
        if wait(self._under_way.copy(), CLOSING_SECONDS).not_done:
            self._pool.disconnect(inuse_connections=True)
        self._threads.shutdown()
        self._pool.disconnect()


def _pool(url: str, options: dict[str, float]) -> redis.ConnectionPool:
    """Where connections come from; none is made yet."""
    # Whatever the driver's defaults are: who calls has no time for more tries. Lost idle connections it makes again.
    retry = Retry(NoBackoff(), 0)
    try:
        pool = cast("Any", redis.ConnectionPool).from_url(url, retry=retry, **options)
        given = cast("dict[str, object]", pool.connection_kwargs)
        pool.connection_class(**given)  # which fails for what it does not know, and connects to nothing
    except (ValueError, TypeError, AttributeError):
        # Without the cause: it may quote the address, password and all.
        raise WiringError(
            "RedisStore: url must be redis://[user:password@]host[:port][/number], rediss://... or unix://path",
            parameter="url",
        ) from None
    if given.get("decode_responses"):
        raise WiringError("RedisStore: url must not ask for decode_responses; records are bytes", parameter="url")
    return cast("redis.ConnectionPool", pool)


def _address(pool: redis.ConnectionPool) -> str:
    """Where the server is, for people; neither user nor password."""
    given = cast("dict[str, object]", cast("Any", pool).connection_kwargs)
    server = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
    return f"{server}/{given.get('db', 0)}"


def _encoded(owner: str) -> bytes:
    return owner.encode("utf-8", "surrogatepass")
