"""Ids and names of calls on a wire whose API is stricter than the server or the model that gave them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping

from chatstack.providers.extras import WireObject

_NAME = re.compile("[a-zA-Z0-9_-]+")
_NOT_IN_NAMES = re.compile("[^a-zA-Z0-9_-]")


def sendable_name(name: str, declared: Collection[str] | None, *, longest: int = 64) -> str:
    """Return the name of a call as it can be sent in a request that declares these tools: models make up some
    (``functions.look``), and with one of these in the history every later request would be refused. None: outside of a
    request, names stay as they are."""
    if declared is None or name in declared or (len(name) <= longest and _NAME.fullmatch(name)):
        return name
    return _NOT_IN_NAMES.sub("_", name)[:longest] or "_"


class CallIds:
    """Ids for the calls of a message and for their results, in the order in which they stand.

    An id that another call of the message has gets a number; in other messages an API takes it again, as a recorded
    request shows. An id that does not match ``allowed``, a pattern, is replaced. The same history always gets the same
    ids. ``calls`` and ``results`` are the fields that hold ids, by the type of an item; ``declared`` are the names of
    the request's tools, if there is one.
    """

    def __init__(
        self,
        calls: Mapping[str, str],
        results: Mapping[str, str],
        *,
        allowed: re.Pattern[str] | None = None,
        declared: Collection[str] | None = None,
        longest_name: int = 64,
    ) -> None:
        self._calls = calls
        self._results = results
        self._allowed = allowed
        self._declared = declared
        self._longest_name = longest_name
        self._used: dict[str, int] = {}
        self._waiting: dict[str, list[str]] = {}
        self._answered: dict[str, str] = {}

    def begin(self) -> None:
        """Go on to the next message that makes calls."""
        self._used.clear()
        self._waiting.clear()
        self._answered.clear()

    def rename(self, item: WireObject) -> None:
        """Give the next item its id, in place, if it is a call or a result, and a call a name that can be sent."""
        kind = str(item.get("type"))
        field = self._calls.get(kind) or self._results.get(kind, "")
        call_id = item.get(field)
        if not isinstance(call_id, str):
            return
        if kind not in self._calls:
            item[field] = self.of_result(call_id)
            return
        item[field] = self.of_call(call_id)
        item["name"] = sendable_name(str(item.get("name", "")), self._declared, longest=self._longest_name)

    def of_call(self, call_id: str) -> str:
        """Return the id of the next call."""
        found = written = self._written(call_id)
        while found in self._used:
            self._used[written] += 1
            found = f"{written}_{self._used[written]}"
        self._used[found] = 0
        self._waiting.setdefault(call_id, []).append(found)
        return found

    def of_result(self, call_id: str) -> str:
        """Return the id of the next result: that of the first call of its id without one."""
        waiting = self._waiting.get(call_id)
        if waiting:
            self._answered[call_id] = waiting.pop(0)
        return self._answered.get(call_id) or self._written(call_id)

    def _written(self, call_id: str) -> str:
        if self._allowed is None or self._allowed.fullmatch(call_id):
            return call_id
        digest = hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        return f"call_{digest}"
