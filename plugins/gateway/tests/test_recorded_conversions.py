"""Recorded exchanges in another wire's form: what can be said means the same there, and the rest is named."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from answers import PATHS
from recorded import DATA, FORMS, rows

from chatstack import (
    ChatRequest,
    ChatResponse,
    ChatUpdate,
    File,
    Message,
    ProviderItem,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from chatstack.errors import ProviderError
from chatstack.providers.wires import AnswerReader, read_request
from chatstack.values.parts import Part
from chatstack_gateway.answer_forms import writer_for
from chatstack_gateway.answer_terms import refusal_of
from chatstack_gateway.converting import UnsayableError, body_of, convertible
from chatstack_gateway.events import EventSplitter, decoded

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the recorded provider exchanges are not on this machine")
PAIRS = [(kind, api) for kind, form in FORMS.items() for api in PATHS if api != form]


def meaning(request: ChatRequest, *, in_texts: bool = False) -> list[object]:
    """What a model is told: texts by role, calls, results, files; reasoning apart, which only its provider reads. Where
    results are ``in_texts``, their pictures and files follow as a user's, and the text says so."""
    found: list[object] = [("system", request.options.instructions)] if request.options.instructions else []
    behind: list[object] = []
    for message in request.messages:
        if message.role != "tool":
            found, behind = [*found, *behind], []
        for part in message.parts:
            if isinstance(part, ToolCall):
                found.append(("call", part.id, part.name, json.loads(part.arguments or "{}")))
            elif isinstance(part, ToolResult):
                text = part.text.removeprefix("Error:").strip() if part.is_error else part.text.strip()
                media = [] if isinstance(part.output, str) else [each for each in part.output if type(each) is not Text]
                if in_texts and media:
                    text = f"{text}\n[Pictures and files of this result follow in the next user message.]".strip()
                    behind += [told("user", each) for each in media]
                found.append(("result", part.call_id, text))
            elif not isinstance(part, Reasoning):
                found.append(told(message.role, part))
    return [each for each in (*found, *behind) if each]


def told(role: str, part: Part) -> object:
    if isinstance(part, File):  # text goes as data where there is no form for it
        return role, part.name, part.url, part.data or base64.b64encode(part.text.encode()).decode()
    said = getattr(part, "text", "").strip()
    media = [getattr(part, name, "") for name in ("url", "data")]
    return (role, said, *media) if said or any(media) else None


def converted(form: Any, api: Any, body: dict[str, Any]) -> tuple[dict[str, object], str]:
    """The body for upstream, or the field that cannot be said."""
    try:
        return body_of(api, convertible(form, api, read_request(form, body), body)), ""
    except UnsayableError as error:
        return {}, error.field


@pytest.mark.parametrize(("kind", "api"), PAIRS)
def test_a_request_means_the_same_or_what_cannot_be_said_is_named(kind: str, api: Any) -> None:
    form: Any = FORMS[kind]
    outcomes: Counter[str] = Counter()
    for row in rows(kind):
        came = read_request(form, row["request"])
        body, field = converted(form, api, row["request"])
        if field:
            outcomes["not sayable"] += 1
            assert field.partition("[")[0].partition(".")[0] in row["request"], (row["id"], field)
            continue
        outcomes["said"] += 1
        again = read_request(api, json.loads(json.dumps(body)))
        words = [each for each in meaning(came, in_texts=api == "chat") if each[-1] or each[0] == "result"]  # type: ignore[index]
        there = [each for each in meaning(again) if each[-1] or each[0] == "result"]  # type: ignore[index]
        assert [each for each in there if each != ("user", "Begin.", "", "")] == words, row["id"]
        assert [each.name for each in again.options.tools if not isinstance(each, ProviderItem)] == [
            each.name for each in came.options.tools if not isinstance(each, ProviderItem)
        ]
        assert body.get("stream", False) is came.stream
    assert outcomes["said"] > outcomes["not sayable"], outcomes


def updates_of(form: Any, row: dict[str, Any]) -> list[ChatUpdate] | None:
    streamed = row.get("response_sse")
    reader = AnswerReader(form, streaming=bool(streamed))
    found: list[ChatUpdate] = []
    try:
        if streamed:
            split = EventSplitter()
            text = streamed if isinstance(streamed, str) else "".join(streamed)
            for data in (*split.feed(text.encode()), *split.end()):
                found += reader.add(decoded(data))
        else:
            found += reader.add(row["response"])
        return [*found, *reader.finish()]
    except (ProviderError, KeyError):
        return None


def whole(updates: Iterable[ChatUpdate]) -> ChatResponse:
    last = [each for each in updates if each.message_done is not None][-1]
    assert last.message_done is not None
    return ChatResponse(
        messages=(last.message_done,),
        usage=last.usage or ChatResponse(messages=()).usage,
        finish_reason=last.finish_reason,
    )


def said(response: ChatResponse) -> tuple[object, ...]:
    message: Message = response.messages[-1]
    calls = [(each.id, each.name, json.loads(each.arguments)) for each in message.calls]
    return message.text or refusal_of(response), calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "api"), PAIRS)
def test_an_answer_says_the_same_in_the_callers_wire(kind: str, api: Any, stream: bool) -> None:
    form: Any = FORMS[kind]
    count = 0
    for row in rows(kind):
        updates = updates_of(form, row)
        if updates is None:
            continue
        came = whole(updates)
        if any(isinstance(part, ProviderItem) and not refusal_of(came) for part in came.messages[-1].parts):
            continue  # of a tool at the provider, which no converted request declares
        count += 1
        writer = writer_for(api, "m", says_reasoning=True, tells_usage=True)
        again = AnswerReader(api, streaming=stream)
        if stream:
            text = b"".join(writer.add(each) for each in updates) + writer.finish(came)
            split = EventSplitter()
            read = [update for data in (*split.feed(text), *split.end()) for update in again.add(decoded(data))]
        else:
            read = again.add(json.loads(json.dumps(writer.whole(came))))
        there = whole([*read, *again.finish()])
        assert said(there) == said(came), row["id"]
        usage = ("input_tokens", "output_tokens", "cache_read_tokens")
        assert [getattr(there.usage, name) for name in usage] == [getattr(came.usage, name) for name in usage]
        alike = {"paused": "stop", "other": "stop"}
        finish = str(came.finish_reason)
        if api != "messages" and refusal_of(came):
            finish = "refused"
        assert there.finish_reason in (finish, alike.get(finish)), row["id"]
    assert count > 80
