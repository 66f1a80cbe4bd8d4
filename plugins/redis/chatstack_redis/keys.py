"""How decisions lie in Redis: a hash for each link, with a field for each owner; the scripts that read and write it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import redis
from chatstack.errors import UnusableRecordError
from redis import exceptions

LINKS_AT_ONCE = 1_000
"""How many links one round trip asks for, or forgets."""
FRESH_SHARE = 0.9
"""A record that is used again gets its whole time again once a tenth of it is over: reading is hardly ever writing."""

# What a read-only replica answers to PEXPIRE does not matter: the record was found.
_FIND = """
for at = #KEYS, 1, -1 do
  local record = redis.pcall('HGET', KEYS[at], ARGV[1])
  if type(record) == 'table' then
    if string.sub(record.err, 1, 9) ~= 'WRONGTYPE' then
      return record
    end
    return {at}
  end
  if record then
    if redis.call('PTTL', KEYS[at]) < tonumber(ARGV[3]) then
      redis.pcall('PEXPIRE', KEYS[at], ARGV[2])
    end
    return {at, record}
  end
end
return false
"""
_PUT = """
local there = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(there) == 'table' then
  if string.sub(there.err, 1, 9) ~= 'WRONGTYPE' then
    return there
  end
  return {1}
end
if there and there ~= ARGV[2] and there ~= ARGV[4] then
  return there
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return false
"""
_FOREIGN = "another program's value lies under one of the keys; choose another prefix"


class Keys:
    """The keys under one prefix, and what is asked of them. Every method is as long as a round trip, or a few."""

    def __init__(self, prefix: str, ttl_seconds: float) -> None:
        self._start = f"{prefix}:".encode()
        # No ":" is in what follows the start, so keys under a longer prefix are none of these.
        self._is_ours = re.compile(re.escape(self._start) + rb"[0-9a-f]*", re.DOTALL).fullmatch
        self._pattern = re.sub(rb"([\\*?\[\]])", rb"\\\1", self._start) + b"*"
        self._ttl = max(1, round(ttl_seconds * 1_000))
        self._fresh = round(self._ttl * FRESH_SHARE)

    def find(self, client: redis.Redis, owner: bytes, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The last of these links that has a record of that owner, asked for from the newest end."""
        script = client.register_script(_FIND)
        for end in range(len(links), 0, -LINKS_AT_ONCE):
            chunk = links[max(0, end - LINKS_AT_ONCE) : end]
            answer = cast("Any", script)(keys=[*map(self.key, chunk)], args=[owner, self._ttl, self._fresh])
            if answer is not None:
                at, *record = cast("tuple[int, bytes]", answer)
                if not record:
                    raise UnusableRecordError(_FOREIGN, link=chunk[at - 1])
                return chunk[at - 1], record[0]
        return None

    def put(self, client: redis.Redis, owner: bytes, link: bytes, record: bytes, replaces: bytes | None) -> bytes:
        """Keep a record unless another one is there; what is there then."""
        script = cast("Any", client.register_script(_PUT))
        expected = [] if replaces is None else [replaces]
        there = cast(
            "bytes | list[int] | None", script(keys=[self.key(link)], args=[owner, record, self._ttl, *expected])
        )
        if isinstance(there, list):
            raise UnusableRecordError(_FOREIGN, link=link)
        return record if there is None else there

    def forget(self, client: redis.Redis, links: Sequence[bytes]) -> None:
        """Forget these links, by any owner."""
        self._unlink(client, map(self.key, links))

    def forget_all(self, client: redis.Redis) -> None:
        """Forget all keys under the prefix."""
        scan = cast("Any", client).scan_iter(match=self._pattern, count=LINKS_AT_ONCE)
        self._unlink(client, (key for key in cast("Iterator[bytes]", scan) if self._is_ours(key)))

    def key(self, link: bytes) -> bytes:
        """Where a link lies."""
        return self._start + link.hex().encode()

    def _unlink(self, client: redis.Redis, keys: Iterable[bytes]) -> None:
        chunk: list[bytes] = []
        for key in keys:
            chunk.append(key)
            if len(chunk) == LINKS_AT_ONCE:
                client.unlink(*chunk)
                chunk = []
        if chunk:
            client.unlink(*chunk)


_REASONS: tuple[tuple[type[redis.RedisError], str], ...] = (
    (redis.AuthenticationError, "it refuses the user or the password"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "it refuses the user or the password"),
    (exceptions.AuthorizationError, "its user may not do this"),
    (exceptions.NoPermissionError, "its user may not do this"),
    (redis.BusyLoadingError, "it is still loading its data"),
    (exceptions.OutOfMemoryError, "its memory is full"),
    (redis.ReadOnlyError, "it is a read-only replica"),
    (exceptions.ClusterError, "it is a cluster, and only single servers are supported"),
    (exceptions.MovedError, "it is a cluster, and only single servers are supported"),
    (redis.TimeoutError, "no answer in time"),
    (redis.ConnectionError, "it cannot be reached, or the connection was lost"),
)
_CODES = {
    "MISCONF": "it cannot save to its disk, and takes no writes",
    "OOM": "its memory is full",
    "BUSY": "it is busy with a script",
}


def reason(error: redis.RedisError) -> str:
    """What is wrong, for people. Nothing that the server or the driver said: it may quote keys or an address."""
    for kind, text in _REASONS:
        if isinstance(error, kind):
            return text
    said = str(error)
    for code, text in _CODES.items():
        if re.search(rf"\b{code}\b", said):
            return text
    return f"the driver says {type(error).__name__}"
