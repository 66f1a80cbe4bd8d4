"""Logs of OpenAI Responses whose requests name the response before (``previous_response_id``).

Each row is a request beside its response; what came before is in the rows before, of the same file. A response that
two requests name begins two conversations. Instructions and tools are those of the last request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from chatstack.errors import InputError
from chatstack.providers.converters import from_openai_responses
from chatstack.providers.extras import WireObject, text_in
from chatstack.workbench.replay.reading.codex import is_output
from chatstack.workbench.replay.reading.contexts import Context, Kept, Notes, values_of
from chatstack.workbench.replay.reading.exchanges import body_in
from chatstack.workbench.replay.reading.signs import form_of
from chatstack.workbench.replay.reading.trees import Path, Turn, TurnTree
from chatstack.workbench.replay.reading.usages import RecordedCall, recorded_call

_BEFORE = "previous_response_id"
_BESIDE = ("model", "instructions", "tools")


class ResponseChains:
    """Reads rows of requests to Responses beside their responses, which the server keeps."""

    def __init__(self, kept: Kept, notes: Notes) -> None:
        self._kept = kept
        self._tree = TurnTree()
        self._places: dict[str, int] = {}
        self._beside: dict[int, tuple[str, bytes]] = {}

    def take(self, row: WireObject, line: int) -> bool:
        """Take a row; False for one that neither names a response nor can be named. Raises ``InputError``."""
        request = body_in(row.get("request"), ("input",))
        if request is None or "messages" in row or "input" in row or "messages" in request:
            return False
        response = body_in(row.get("response"), ("output",)) or {}
        named, called = request.get(_BEFORE), text_in(response, "id")
        if not named and (not called or request.get("store") is False):
            return False
        if named and not (isinstance(named, str) and named in self._places):
            raise InputError(
                f"{_BEFORE}: the response before is in no earlier row of this file, and only the server has it; "
                "record whole conversations to replay them"
            )
        at = self._add(request, response, self._places[cast("str", named)] if named else -1, line)
        self._beside[at] = text_in(row, "id") or text_in(request, "id") or called, self._options(request)
        if called:
            self._places[called] = at
        return True

    def contexts(self) -> Iterator[Context | tuple[int, str]]:
        """Yield a context for each response that no request names."""
        for path in self._tree.paths():
            if isinstance(path, int):
                yield 1, f"{path:,} more branches than are read: together they would repeat too many items"
            else:
                yield self._context(path)

    def _add(self, request: WireObject, response: WireObject, before: int, line: int) -> int:
        given, said = request["input"], response.get("output")
        listed = [{"role": "user", "content": given}] if isinstance(given, str) else given
        form_of(listed, {name: value for name, value in request.items() if name not in (_BEFORE, "input")} | _INPUT)
        items = cast("list[object]", listed)
        output = cast("list[object]", said) if isinstance(said, list) else []
        from_openai_responses([*items, *output])  # so that an error names this line
        model = text_in(response, "model") or text_in(request, "model")
        call = recorded_call(response.get("usage"), model=model, tier=text_in(response, "service_tier"))
        turn = Turn(before, line, list(map(self._kept.json_of, items)), list(map(self._kept.json_of, output)))
        turn.call = call or RecordedCall(model=text_in(request, "model")) if output or before < 0 else None
        return self._tree.add(turn)

    def _options(self, request: Mapping[str, object]) -> bytes:
        return self._kept.json_of({name: request[name] for name in _BESIDE if request.get(name)})

    def _context(self, path: Path) -> Context:
        turns = [self._tree.turns[at] for at in path.turns]
        items: list[object] = []
        calls: list[RecordedCall | None] = []
        was_said = False
        for nth, turn in enumerate(turns):
            # The answers in a first request are those of earlier rows, which are joined with it.
            for item in values_of(turn.given):
                if is_output(cast("WireObject", item)) and not was_said:
                    calls.append(RecordedCall() if turn.before < 0 and nth >= path.copied else None)
                was_said = is_output(cast("WireObject", item))
                items.append(item)
            call = turn.call if nth >= path.copied else None
            for item in values_of(turn.said):
                if is_output(cast("WireObject", item)) and not was_said:
                    calls.append(call)
                    call = None
                was_said = is_output(cast("WireObject", item))
                items.append(item)
        called, options = self._beside[path.turns[-1]]
        beside = cast("WireObject", values_of([options])[0])
        body: WireObject = {"input": items, **{name: beside[name] for name in _BESIDE[1:] if name in beside}}
        size = sum(turn.size_bytes for turn in turns)
        model = text_in(beside, "model")
        return Context(body, "responses", called, model, turns[path.copied].line, tuple(calls), size)


_INPUT: WireObject = {"input": None}
"""Beside the items of a request, as ``form_of`` wants it."""
