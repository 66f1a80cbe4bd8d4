"""Messages that are read anew are the objects that they were, and nothing keeps them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chatstack import (
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    InputError,
    Message,
    ToolCall,
    from_anthropic,
    from_json,
    from_openai_chat,
    from_openai_responses,
    to_anthropic,
    to_json,
    to_openai_chat,
    to_openai_responses,
)
from chatstack.providers import wires
from chatstack.testing import ScriptedClient
from chatstack.values import interning
from chatstack.values.messages import Annotation, annotated

Read = Callable[[], list[Message]]


def talk(number: int) -> list[Message]:
    return [
        Message.system(f"be brief, {number}"),
        Message.user("look"),
        Message.assistant("I look.", ToolCall("c", "look", "{}")),
        Message.tool("c", f"seen {number}", name="look"),
        Message.user("look"),
    ]


def readers(history: Sequence[Message]) -> dict[str, Read]:
    text, chat, items = to_json(history), to_openai_chat(history), to_openai_responses(history)
    anthropic: Any = to_anthropic(history)
    return {
        "JSON": lambda: from_json(text),
        "bytes": lambda: from_json(text.encode()),
        "chat completions": lambda: from_openai_chat(chat),
        "responses": lambda: from_openai_responses(items),
        "anthropic": lambda: from_anthropic(**anthropic),
        "a body": lambda: [*wires.read_request("chat", {"model": "any", "messages": chat}).messages],
        "items of a body": lambda: [*wires.read_messages("chat", chat)],
    }


FORMS = pytest.mark.parametrize("form", readers(talk(0)))


@FORMS
def test_what_is_read_again_is_the_same_objects_and_equal_ones_of_a_history_are_different_ones(form: str) -> None:
    read = readers(talk(1))[form]
    one, other = read(), read()
    repeated = next(at for at, each in enumerate(one) if each.role == "user")
    assert one[repeated] == one[-1]
    assert len({id(each) for each in one}) == len({id(each) for each in other}) == len(one)
    assert all(mine is theirs for mine, theirs in zip(one, other, strict=True))
    assert one == readers(talk(1))["JSON"]()


@FORMS
def test_a_history_that_has_changed_is_read_as_it_is(form: str) -> None:
    before = readers(talk(2))[form]()
    longer = [*talk(2)[:-2], Message.tool("c", "seen otherwise", name="look"), *talk(2)[-1:], Message.assistant("yes")]
    found = readers(longer)[form]()
    assert [each.text or each.results[0].text for each in found[-3:]] == ["seen otherwise", "look", "yes"]
    assert found[1] is before[1]


@FORMS
def test_nothing_is_kept_of_messages_that_nobody_has(form: str) -> None:
    memory, read = ContextMemory(), readers(talk(3))[form]
    gc.collect()
    before = len(interning._known)
    client = ChatStack(ScriptedClient(["yes"]), memory=memory).use(ContextWindowGuard, max_context_tokens=9_000).build()
    asyncio.run(client.get_response(read()))
    gc.collect()
    assert len(interning._known) > before
    memory.forget()
    del client
    gc.collect()
    assert len(interning._known) == before


def test_an_object_of_the_same_hash_is_not_taken_for_another() -> None:
    mine, other = Message.user("mine"), Message.user("other")
    interning._known[hash(mine)] = other
    assert interning.interned([mine]) == [mine]


def test_annotations_stay_with_the_history_that_has_them() -> None:
    noted = [Message.user("task"), annotated(Message.user("some"), Annotation("any", 7))]
    plain = [Message.user("task"), Message.user("some")]
    for history in (plain, noted, plain):
        found = from_json(to_json(history))
        assert [each.annotation for each in found] == [each.annotation for each in history]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"version":1,"messages":[{"role":"user","parts":[]},{"role":"boss","parts":[]}]}', "messages[1].role"),
        ('{"version":1,"messages":[{"role":"user","parts":[{"type":"text","text":1}]}]}', "messages[0].parts[0].text"),
        ('{"version":2,"messages":[]}', "version 2"),
        ('{"version":1,"messages":[{"role":"user"', "truncated"),
    ],
)
def test_errors_name_the_place_in_the_whole_history(text: str, place: str) -> None:
    with pytest.raises(InputError) as caught:
        from_json(text)
    assert place in str(caught.value)


def test_threads_that_read_at_once_get_what_they_read() -> None:
    histories = [talk(number % 5) for number in range(40)]
    texts, found = [to_json(each) for each in histories], dict[int, list[Message]]()
    start = threading.Barrier(8)

    def work(first: int) -> None:
        start.wait()
        for at in range(first, 40, 8):
            for _ in range(50):
                found[at] = from_json(texts[at])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [found[at] for at in range(40)] == histories
