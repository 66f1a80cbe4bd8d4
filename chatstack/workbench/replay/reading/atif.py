"""Trajectories in ATIF, Harbor's agent trajectory interchange format, which many agents write.

A document has ``schema_version`` ``ATIF-v1...``, the ``agent`` and its ``steps``: of the system, the user, or the
agent, whose steps hold calls and, as ``observation``, what these gave. It is read as chat messages. Steps copied from
another trajectory are context, and no calls; nor are an agent's steps without a model (``llm_call_count`` 0). Embedded
trajectories of sub-agents are conversations of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

from chatstack.errors import InputError
from chatstack.providers.extras import WireObject, object_or_empty, text_in
from chatstack.workbench.replay.reading.contexts import MISSING, Context, object_in
from chatstack.workbench.replay.reading.usages import RecordedCall, atif_call

_VERSION = "ATIF-v"
_MOST_DEEP = 20
"""Maximum depth of sub-agents' trajectories within others."""


def is_trajectory(value: object) -> bool:
    """Return True for a document of ATIF."""
    fields = object_or_empty(value)
    return text_in(fields, "schema_version").startswith(_VERSION) and "steps" in fields


def trajectories(document: WireObject, line: int, size_bytes: int, *, deep: int = 0) -> Iterator[Context]:
    """Yield the conversation of a document, then those of its sub-agents. Raises ``InputError`` with the place."""
    agent = object_in(document, "agent", "") if document.get("agent") is not None else {}
    model = text_in(agent, "model_name")
    messages: list[object] = []
    calls: list[RecordedCall | None] = []
    missing: list[object] = []
    for where, step in _objects(document.get("steps"), "steps"):
        messages += missing
        missing = _add_step(step, where, model, messages, calls)
    if any(call is not None for call in calls):
        body: WireObject = {"messages": messages}
        if isinstance(agent.get("tool_definitions"), list):
            body["tools"] = agent["tool_definitions"]
        models = [call.model for call in calls if call is not None and call.model]
        called = text_in(document, "trajectory_id") or text_in(document, "session_id") or "trajectory"
        yield Context(body, "chat", called, model or next(iter(models), ""), line, tuple(calls), size_bytes)
    yield from _embedded(document, line, size_bytes, deep)


def _embedded(document: WireObject, line: int, size_bytes: int, deep: int) -> Iterator[Context]:
    embedded = document.get("subagent_trajectories")
    if not isinstance(embedded, list):
        return
    if deep >= _MOST_DEEP:
        raise InputError("subagent_trajectories: nested too deeply")
    share = size_bytes // max(1, len(cast("list[object]", embedded)))
    for _, each in _objects(cast("object", embedded), "subagent_trajectories"):
        yield from trajectories(each, line, share, deep=deep + 1)


def _add_step(
    step: WireObject, where: str, model: str, messages: list[object], calls: list[RecordedCall | None]
) -> list[object]:
    """Add the messages of a step. Return the results to add before the next step, of calls that have none."""
    source = step.get("source")
    content = _content(step.get("message"), f"{where}.message")
    if source == "agent":
        answer = _answer(step, where, content)
        if answer is not None:
            messages.append(answer)
            calls.append(_call(step, model))
        return _add_observed(step, where, answer or {}, messages)
    if source in ("system", "user"):
        if content:
            messages.append({"role": source, "content": content})
        for _, text in _observed(step, where):
            messages.append({"role": "user", "content": text})
        return []
    raise InputError(f"{where}.source: expected 'system', 'user' or 'agent'")


def _answer(step: WireObject, where: str, content: object) -> WireObject | None:
    tool_calls = _tool_calls(step, where)
    if not (content or tool_calls):
        return None
    answer: WireObject = {"role": "assistant", "content": _text_of(content)}
    return {**answer, "tool_calls": tool_calls} if tool_calls else answer


def _add_observed(step: WireObject, where: str, answer: WireObject, messages: list[object]) -> list[object]:
    """Add results of calls, and as the user's what was observed without one. Return results for the other calls.

    A client sends one for each call, or its next request would be refused. Where no result names its call, and there
    is one for each, they are in the order of the calls.
    """
    calls = [text_in(call, "id") for call in cast("list[WireObject]", answer.get("tool_calls", []))]
    observed = list(_observed(step, where))
    if len(observed) == len(calls) and all(called is None for called, _ in observed):
        observed = [(call, content) for call, (_, content) in zip(calls, observed, strict=True)]
    results: dict[str, object] = {}
    others: list[object] = []
    for called, content in observed:
        if called is not None and called in calls and called not in results:
            results[called] = _result(called, content)
        elif content:
            others.append({"role": "user", "content": content})
    missing = [_result(call, MISSING) for call in calls if call not in results]
    if others:
        messages += [*results.values(), *missing, *others]
        return []
    messages += results.values()
    return missing


def _result(called: str, content: object) -> object:
    return {"role": "tool", "tool_call_id": called, "content": content}


def _call(step: WireObject, model: str) -> RecordedCall | None:
    """Return the call that an agent's step was; None for a copied step, or one that no model answered."""
    number = step.get("llm_call_count")
    if step.get("is_copied_context") is True or number == 0:
        return None
    named = text_in(step, "model_name") or model
    is_sum = isinstance(number, int) and number > 1
    return atif_call(step.get("metrics"), model=named, is_sum=is_sum) or RecordedCall(model=named)


def _tool_calls(step: WireObject, where: str) -> list[WireObject]:
    found: list[WireObject] = []
    for place, call in _objects(step.get("tool_calls") or [], f"{where}.tool_calls"):
        name, arguments = text_in(call, "function_name"), call.get("arguments")
        if not name:
            raise InputError(f"{place}.function_name: expected text")
        text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
        called = text_in(call, "tool_call_id") or f"{where}.{len(found)}"
        found.append({"id": called, "type": "function", "function": {"name": name, "arguments": text}})
    return found


def _observed(step: WireObject, where: str) -> Iterator[tuple[str | None, object]]:
    """Yield what was observed, and the call that gave it; a result without content only where it answers a call."""
    if step.get("observation") is None:
        return
    results = object_in(step, "observation", f"{where}.").get("results")
    for place, result in _objects(results, f"{where}.observation.results"):
        called = text_in(result, "source_call_id") or None
        content = _content(result.get("content"), f"{place}.content")
        if content or called:
            yield called, content


def _content(given: object, where: str) -> object:
    """Return text, or the parts of a message in the form of chat completions."""
    if given is None or isinstance(given, str):
        return given or ""
    parts: list[WireObject] = []
    for _, each in _objects(given, where, "text or a list"):
        if isinstance(each.get("text"), str):
            parts.append({"type": "text", "text": each["text"]})
        else:  # a picture or a sound, by the path of its file
            path = text_in(object_or_empty(each.get("source")), "path")
            parts.append({"type": "image_url", "image_url": {"url": path or "unknown"}})
    return parts


def _objects(value: object, where: str, expected: str = "a list") -> Iterator[tuple[str, WireObject]]:
    """Yield the objects of a list, and the place of each. Raises ``InputError`` for what is none."""
    if not isinstance(value, list):
        raise InputError(f"{where}: expected {expected}")
    for position, each in enumerate(cast("list[object]", value)):
        if not isinstance(each, dict):
            raise InputError(f"{where}[{position}]: expected an object")
        yield f"{where}[{position}]", cast("WireObject", each)


def _text_of(content: object) -> str:
    """Return the text of an answer: chat completions have no pictures there."""
    if isinstance(content, str):
        return content
    return "\n".join(text_in(part, "text") for part in cast("list[WireObject]", content) if part.get("type") == "text")
