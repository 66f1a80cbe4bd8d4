"""Generated conversations: what callers really send, and what they never should.

``histories`` are of any shape: parallel calls, ids used again, interleaved, late and missing results, orphans, steering
messages between calls and results, several system messages, empty content, pictures, reasoning. In ``paired_histories``
results may stand where no provider takes them. ``tidy_histories`` are those that every provider takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from chatstack import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.messages import Mark

PROPERTY = settings(
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
"""The same examples on every run and every machine; how many of them is the lane's to say (``tests/conftest.py``)."""

SOME = settings(PROPERTY, max_examples=PROPERTY.max_examples // 8)
"""For what takes long with each example: an eighth of them."""

_IDS = st.sampled_from(["a", "b", "c", "d"])
_TEXTS = st.builds(lambda word, times: word * times, st.sampled_from(["sun ", "rain ", "日", ""]), st.integers(0, 30))


def _said(text: str) -> list[Part]:
    return [Text(text)] if text else []


_USERS = st.builds(
    lambda text, pictures, pinned: Message("user", (Text(text or "go"), *pictures), pinned),
    _TEXTS,
    st.sampled_from([(), (), (Image(url="https://example.org/a.png"),)]),
    st.sampled_from([False, False, False, True]),
)
_SYSTEMS = _TEXTS.map(lambda text: Message.system(text or "be kind"))
_THOUGHTS: list[tuple[Part, ...]] = [(), (Reasoning("hm", '{"signature": "s"}', "scripted"),)]
_MARKS: list[Mark] = ["", "", "", "summary"]
_ASSISTANTS = st.builds(
    lambda thoughts, text, mark: Message("assistant", (*thoughts, *_said(text)), mark=mark),
    st.sampled_from(_THOUGHTS),
    _TEXTS,
    st.sampled_from(_MARKS),
)


def _round(ids: list[str], order: list[int], texts: list[str], said: str, together: bool) -> list[Message]:
    """An assistant message with calls, and all their results, in any order, maybe in one message."""
    calls = [ToolCall(each, "look", '{"at": "sky"}') for each in ids]
    answered = [calls[place] for place in order if place < len(calls)]
    parts = [ToolResult(call.id, call.name, text) for call, text in zip(answered, texts, strict=False)]
    results = [Message("tool", tuple(parts))] if together else [Message("tool", (part,)) for part in parts]
    return [Message("assistant", (*_said(said), *calls)), *results]


_ROUNDS = st.builds(
    _round,
    st.lists(_IDS, min_size=1, max_size=3, unique=True),
    st.permutations([0, 1, 2]),
    st.lists(_TEXTS, min_size=3, max_size=3),
    _TEXTS,
    st.booleans(),
)


def _late_round(order: list[int], texts: list[str], steering: Message) -> list[Message]:
    """Two rounds whose results come mixed, maybe with the user in between. Their ids are those of no other round."""
    first = Message("assistant", (ToolCall("late-1", "look"), ToolCall("late-2", "look")))
    second = Message("assistant", (ToolCall("late-3", "look"),))
    results = [Message.tool(f"late-{number}", text) for number, text in enumerate(texts, 1)]
    return [first, second, *([*results, steering][place] for place in order)]


def _two_rounds(order: list[int], texts: list[str], steering: Message) -> list[Message]:
    """The same two rounds, their results where they belong, in any order."""
    first = Message("assistant", (ToolCall("late-1", "look"), ToolCall("late-2", "look")))
    second = Message("assistant", (ToolCall("late-3", "look"),))
    results = [Message.tool(f"late-{number}", text) for number, text in enumerate(texts, 1)]
    of_first = [results[place] for place in order if place < 2]
    return [first, *of_first, second, results[2], steering]


_LATE_ROUNDS, _TWO_ROUNDS = (
    st.builds(made, st.permutations([0, 1, 2, 3]), st.lists(_TEXTS, min_size=3, max_size=3), _USERS)
    for made in (_late_round, _two_rounds)
)


def _split_round(order: list[int], steering: list[Message], more: int) -> list[Message]:
    """A round whose results come mixed with other words, some of them in a message of the user's."""
    asked = Message(
        "assistant", (ToolCall("split-1", "look"), ToolCall("split-2", "look"), ToolCall("split-3", "look"))
    )
    results = [
        Message.tool("split-1", "one"),
        Message("user", (Text("and?"), ToolResult("split-2", "look", "two"))),
        Message("tool", (ToolResult("split-3", "look", "three"),), pinned=True),
    ]
    return [asked, *([*results, *steering][place] for place in order), *(Message.user("go on") for _ in range(more))]


_SPLIT_ROUNDS = st.builds(
    _split_round,
    st.permutations([0, 1, 2, 3, 4]),
    st.lists(st.one_of(_USERS, _SYSTEMS, _ASSISTANTS), min_size=2, max_size=2),
    st.integers(0, 1),
)


def _alone(message: Message) -> list[Message]:
    return [message]


_TIDY_BLOCKS = st.one_of(*(each.map(_alone) for each in (_USERS, _USERS, _SYSTEMS, _ASSISTANTS)), _ROUNDS, _TWO_ROUNDS)
_BLOCKS = st.one_of(_TIDY_BLOCKS, _TIDY_BLOCKS, _LATE_ROUNDS, _SPLIT_ROUNDS)


def _joined(head: list[Message], task: Message, blocks: list[list[Message]]) -> list[Message]:
    return [*head, task, *(message for block in blocks for message in block)]


def tidy_histories(*, min_size: int = 1) -> st.SearchStrategy[list[Message]]:
    """Conversations where each call has its result right behind it, with a user message, system messages anywhere."""
    blocks = st.lists(_TIDY_BLOCKS, min_size=min_size, max_size=14)
    return st.builds(_joined, st.lists(_SYSTEMS, max_size=1), _USERS, blocks)


def paired_histories() -> st.SearchStrategy[list[Message]]:
    """Conversations whose calls and results all pair, wherever they stand."""
    blocks = st.lists(_BLOCKS, min_size=1, max_size=14)
    return st.builds(_joined, st.lists(_SYSTEMS, max_size=1), _USERS, blocks)


_STRAY = st.one_of(
    _IDS.map(lambda call_id: Message.tool(call_id, "nobody asked")),
    _IDS.map(lambda call_id: Message.assistant("asked in vain", ToolCall(call_id, "look"))),
    _IDS.map(lambda call_id: Message("user", (ToolResult(call_id, "look", "said by hand"), Text("and?")))),
)
_PLACES = st.integers(0, 60)


def _disturbed(
    messages: list[Message], stray: list[tuple[int, Message]], lost: list[int], moved: list[tuple[int, int]]
) -> list[Message]:
    for place, message in stray:
        messages.insert(place % (len(messages) + 1), message)
    for place in lost[: len(messages) - 1]:
        del messages[place % len(messages)]
    for place, other in moved:
        messages.insert(other % len(messages), messages.pop(place % len(messages)))
    return messages


def histories() -> st.SearchStrategy[list[Message]]:
    """Any list of messages: paired ones, of which some were taken or moved, and to which stray ones came."""
    return st.builds(
        _disturbed,
        paired_histories(),
        st.lists(st.tuples(_PLACES, _STRAY), max_size=2),
        st.lists(_PLACES, max_size=2),
        st.lists(st.tuples(_PLACES, _PLACES), max_size=1),
    )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Message]).decode


def decoded_again(messages: Sequence[Message]) -> list[Message]:
    """The same messages as fresh objects, as they come from a database or over the wire."""
    return _decode(_encode(list(messages)))
