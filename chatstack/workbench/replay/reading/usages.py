"""Usage that recordings hold: what the provider reported for a call, in the fields of any API.

Anthropic counts cache reads and writes beside ``input_tokens``, the others within; Codex and ATIF have names of their
own. Counts that are no such numbers are taken for 0.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import cast

import msgspec

from chatstack.providers.anthropic.wire import service_tier
from chatstack.providers.extras import object_or_empty
from chatstack.providers.openai.usages import whole_output
from chatstack.values.responses import Usage

_MOST_TOKENS = 10**12
_ANTHROPIC = ("cache_read_input_tokens", "cache_creation_input_tokens")
_CACHED = ("cached_input_tokens", "cached_tokens", "prompt_cache_hit_tokens")
"""Names of the tokens read from the cache, where they stand beside the input: Codex's, Moonshot's, DeepSeek's."""


class RecordedCall(msgspec.Struct, frozen=True):
    """A recorded call: its usage, None if that was not recorded.

    ``model`` is "" for that of the recording. ``output_is_partial`` means that the answer's tokens were written down
    before it had ended, ``tells_writes`` that the recording has a place for cache writes; ``id`` is that of the answer,
    and ``tier`` the service tier that it was served by, where a log tells them.
    """

    usage: Usage | None = None
    output_is_partial: bool = False
    tells_writes: bool = True
    model: str = ""
    id: str = ""
    tier: str = ""

    def joined_with(self, other: RecordedCall) -> RecordedCall:
        """Return the call as told by two lines of the same answer: the larger counts, as counts grow in a stream."""
        mine, theirs = self.usage or Usage(), other.usage or Usage()
        counts = {name: max(getattr(mine, name), getattr(theirs, name)) for name in Usage.__struct_fields__}
        return RecordedCall(
            None if self.usage is None and other.usage is None else Usage(**counts),
            self.output_is_partial and other.output_is_partial,
            self.tells_writes and other.tells_writes,
            self.model or other.model,
            self.id or other.id,
            self.tier or other.tier,
        )


class CallIndex:
    """The recorded calls of all recordings, by the prefix hash up to their answers.

    Files repeat one another: a log has a line for each call, a resumed or forked session begins with a copy. Each call
    is given to one recording alone; in the others that hold its answer it is copied. Some hundreds of bytes are held
    for each recorded call.
    """

    def __init__(self) -> None:
        self._calls: dict[int, list[tuple[int, RecordedCall]]] = {}
        self._lines: dict[int, int] = {}
        """The number of lines of logs that end with that answer."""
        self._ids: set[tuple[int, str]] = set()
        self._again: dict[int, int] = {}
        """By the prefix hash of a logged request: how often it was made beyond once for each of its answers."""
        self._answers: set[int] = set()
        """Prefix hashes of the answers that were taken off there."""
        self._takers: dict[int, dict[int, int]] = {}
        """The recordings that the calls with an answer were given to, each with its place among them."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def note(self, number: int, calls: Sequence[RecordedCall | None], answers: Sequence[int]) -> None:
        """Note the calls of the recording of that number; ``answers`` are the prefix hashes of their answers."""
        for call, link in zip(calls, answers, strict=False):
            if call is not None:
                self._calls.setdefault(link, []).append((number, call))

    def note_line(self, number: int, call: RecordedCall, link: int) -> None:
        """Note the call that a line of a log ends with. Where the id of the answer comes again, it is the same call."""
        if (link, call.id) not in self._ids:
            if call.id:
                self._ids.add((link, call.id))
            self._lines[link] = self._lines.get(link, 0) + 1
            self.note(number, [call], [link])

    def note_request(self, request: int, latest: tuple[int, int] | None, *, is_answered: bool) -> None:
        """Note the request of a line of a log, and whether the line has its answer.

        ``latest`` are the prefix hashes before and up to the latest answer in it, which an earlier request got.
        """
        self._again[request] = self._again.get(request, 0) + (not is_answered)
        if latest is not None and latest[1] not in self._answers:
            before, answer = latest
            self._answers.add(answer)
            self._again[before] = self._again.get(before, 0) - 1

    def of(
        self,
        number: int,
        calls: Sequence[RecordedCall | None] | None,
        answers: Sequence[tuple[int, int]],
        joined: Container[int],
    ) -> tuple[RecordedCall | None, ...] | None:
        """Return the calls of a recording, each in one recording alone; None if nothing is known of them.

        ``answers`` are prefix hashes before and up to the answers. ``joined`` are the recordings that are left out as
        they are the beginning of another: their calls are calls of the first that goes on.
        """
        if calls is None:
            found = tuple(self._given(number, before, link) for before, link in answers)
            return found if any(call is None or call.usage is not None for call in found) else None
        if len(calls) != len(answers):
            return None
        return tuple(self._own(number, call, link, joined) for call, (_, link) in zip(calls, answers, strict=True))

    def equal_lines(self) -> tuple[int, int]:
        """Return how many calls of logs no recording was given, as their lines equal others; and their input tokens."""
        left = [
            call.usage or Usage()
            for link, takers in self._takers.items()
            for _, call in self._calls.get(link, ())[len(takers) : self._lines.get(link, 0)]
        ]
        return len(left), sum(usage.input_tokens for usage in left)

    def _given(self, number: int, before: int, link: int) -> RecordedCall | None:
        """Return the call of an answer in a log, None if as many recordings as there are calls have it already.

        Where no line ends with the answer, the logged requests for it tell how many there are.
        """
        lines = self._lines.get(link, 0)
        if not lines and (link in self._calls or before not in self._again):
            return self._told(link) or RecordedCall()
        takers = self._takers.setdefault(link, {})
        if number not in takers:
            if len(takers) >= max(1, lines):
                if lines or self._again[before] <= 0:
                    return None
                self._again[before] -= 1
            takers[number] = len(takers)
        return self._calls[link][takers[number]][1] if lines else RecordedCall()

    def _told(self, link: int) -> RecordedCall | None:
        return next((call for _, call in self._calls.get(link, ()) if call.usage is not None), None)

    def _own(self, number: int, call: RecordedCall | None, link: int, joined: Container[int]) -> RecordedCall | None:
        """Return the call with its usage, None if it is one of another recording.

        The same answer to the same messages with the same usage is the same call.
        """
        noted = self._calls.get(link, ())
        if call is None:
            given = next((each for owner, each in noted if owner in joined), None)
            if given is None:
                return None
            takers = self._takers.setdefault(link, {})
            return given if takers.setdefault(number, len(takers)) == 0 else None
        if call.usage is None:
            return self._told(link) or call
        owners = (owner for owner, each in noted if each == call and owner not in joined)
        return call if next(owners, number) == number else None


def recorded_call(
    usage: object, *, model: str = "", tier: str = "", output_is_partial: bool = False
) -> RecordedCall | None:
    """Return the call for a reported usage, by the names of its fields; None if nothing was reported. ``tier`` is the
    service tier, where that stands beside the usage, as OpenAI has it."""
    if not isinstance(usage, Mapping):
        return None
    fields = cast("Mapping[str, object]", usage)
    found = _usage(fields)
    if found == Usage():
        return None
    return RecordedCall(found, output_is_partial, model=model, tier=tier or service_tier(fields))


def atif_call(metrics: object, *, model: str = "", is_sum: bool = False) -> RecordedCall | None:
    """Return the call for the ``metrics`` of an ATIF step; None if they tell no tokens, or those of several calls.

    Cache writes have no field there; some writers put them among the extra ones.
    """
    fields = object_or_empty(metrics)
    beside = object_or_empty(fields.get("extra"))
    written = _count(beside, "cache_creation_input_tokens")
    read, given = _count(fields, "cached_tokens"), _count(fields, "prompt_tokens")
    found = Usage(max(given, read), _count(fields, "completion_tokens"), read, min(written, max(0, given - read)))
    if found == Usage() or is_sum:
        return None
    return RecordedCall(found, tells_writes="cache_creation_input_tokens" in beside, model=model)


def _usage(fields: Mapping[str, object]) -> Usage:
    prompt = "prompt_tokens" if "prompt_tokens" in fields else "input_tokens"
    output = "completion_tokens" if "prompt_tokens" in fields else "output_tokens"
    given, said = _count(fields, prompt), _count(fields, output)
    if any(name in fields for name in _ANTHROPIC):
        read, written = (_count(fields, name) for name in _ANTHROPIC)
        hour = _count(object_or_empty(fields.get("cache_creation")), "ephemeral_1h_input_tokens")
        return Usage(given + read + written, said, read, written, hour_write_tokens=min(hour, written))
    details = object_or_empty(fields.get(f"{prompt}_details"))
    read = max(_count(details, "cached_tokens"), *(_count(fields, name) for name in _CACHED))
    written = _count(details, "cache_write_tokens")
    spent = object_or_empty(fields.get(f"{output}_details"))
    thought = max(_count(spent, "reasoning_tokens"), _count(fields, "reasoning_output_tokens"))
    said = whole_output(given, said, _count(fields, "total_tokens"), (read, read + written))
    return Usage(max(given, read), said, read, min(written, max(0, given - read)), thought)


def _count(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS else 0
