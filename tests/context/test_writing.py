"""Writing a summary: in one call or in pieces, with nothing cut off, and what happens when no summary comes of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack import (
    BrokenStreamError,
    CharCounter,
    ChatRequest,
    ChatUpdate,
    ContextOverflowError,
    Message,
    ProviderConnectionError,
    ProviderInfo,
    RateLimitError,
    RequestRefusedError,
    ServerError,
    Text,
    ToolCall,
    Usage,
    Windows,
)
from chatstack.client.stream import ChatStream
from chatstack.context.edits.summaries import OPENING, SUMMARY_PROMPT
from chatstack.context.edits.transcripts import Entry
from chatstack.context.summaries.writing import NotWrittenError, SummaryWriter, Writing, Written
from chatstack.testing import Answer, ScriptedClient
from tests.histories import PROPERTY

COUNTER = CharCounter()
PROMPT = "Sum it up."
TALK = [Entry("user", "plan a day"), Entry("assistant", "in Dubai?")]


def numbered(count: int) -> str:
    """A text of so many words, no two of them alike."""
    return " ".join(f"w{number}" for number in range(count))


def client_of(
    answers: Iterable[Answer] = ("in short",), *, window: int | None = None, delay: float | None = None
) -> ScriptedClient:
    info = ProviderInfo(name="scripted", model="script", window_tokens=window)
    return ScriptedClient(answers, info=info, delay_seconds=delay)


class Windowed(ScriptedClient):
    """Refuses what does not fit into its window, which nobody knows before; ``tells`` it then, or does not."""

    def __init__(self, window: int, *, tells: bool, answers: Iterable[Answer] = ("in short",)) -> None:
        super().__init__(answers)
        self.window, self.tells = window, tells
        self.refused: list[ChatRequest] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if needed(request) > self.window:
            self.refused.append(request)
            raise ContextOverflowError(needed(request), self.window if self.tells else None)
        return await super().send(request)


def needed(request: ChatRequest) -> int:
    """What a request needs of a window: the input, and the room for the answer."""
    input_tokens = COUNTER.count_options(request.options) + sum(map(COUNTER.count_message, request.messages))
    return input_tokens + (request.options.max_tokens or 0)


def writer_of(
    client: ScriptedClient, *, prompt: str = PROMPT, max_tokens: int = 100, seconds: float = 5
) -> SummaryWriter:
    return SummaryWriter(client, prompt, max_tokens, seconds, Windows(), COUNTER)


def write(
    writer: SummaryWriter, entries: Sequence[Entry] = TALK, previous: str = "", model: str | None = None
) -> Written:
    return asyncio.run(Writing(writer, previous, entries, model=model, conversation_id="c-42").answer())


def not_written(writer: SummaryWriter, entries: Sequence[Entry] = TALK) -> NotWrittenError:
    with pytest.raises(NotWrittenError) as caught:
        write(writer, entries)
    return caught.value


def entries_in(request: ChatRequest) -> list[Entry]:
    """What the model was shown."""
    text = request.messages[0].text
    found = re.search(r"\[([0-9a-f]+) end\]$", text)
    assert found is not None
    blocks = ("\n" + text).split(f"\n[{found[1]} ")[1:-1]
    return [Entry(*block.split("]\n", 1)) for block in blocks]


def shown(requests: Sequence[ChatRequest]) -> list[Entry]:
    """All entries that were shown, without the summaries so far; what has the same name in a row is one of them."""
    whole: list[Entry] = []
    for who, text in (each for request in requests for each in entries_in(request) if each.who != "summary so far"):
        name = who.removesuffix(", continued")
        if whole and whole[-1].who == name:
            whole[-1] = Entry(name, whole[-1].text + text)
        else:
            whole.append(Entry(name, text))
    return whole


def spent(client: ScriptedClient, requests: int | None = None) -> Usage:
    """What the client reports for its requests, answered by "in short"."""
    asked = client.requests[:requests]
    inputs = sum(needed(request) - (request.options.max_tokens or 0) for request in asked)
    return Usage(inputs, len(asked) * COUNTER.count_message(Message.assistant("in short")))


# In one call


@pytest.mark.parametrize("window", [None, 100_000])
def test_what_fits_is_written_in_one_call_and_so_is_what_goes_to_a_window_that_nobody_knows(window: int | None) -> None:
    client = client_of(window=window)
    entries = [Entry("user", numbered(10_000)), *TALK]
    assert write(writer_of(client), entries) == Written("in short", spent(client), "script")
    (request,) = client.requests
    assert entries_in(request) == entries
    assert request.options.instructions.startswith(PROMPT)
    assert request.options.max_tokens == 100
    assert request.conversation_id == "c-42"


def test_the_summary_before_goes_along() -> None:
    client = client_of()
    write(writer_of(client), TALK, "the door is blue")
    assert entries_in(client.requests[0]) == [Entry("summary so far", "the door is blue"), *TALK]


def test_the_model_is_the_one_that_is_asked_for() -> None:
    client = client_of()
    assert write(writer_of(client), model="other").model == "other"
    assert client.requests[0].options.model == "other"
    assert write(writer_of(client)).model == "script"
    assert client.requests[1].options.model is None


def test_an_opening_line_that_the_model_writes_is_not_part_of_the_text() -> None:
    assert write(writer_of(client_of([f"{OPENING}\nthe door is blue"]))).text == "the door is blue"


def test_nothing_new_can_be_told_with_a_summary_alone() -> None:
    client = client_of(window=3_000)
    assert write(writer_of(client), [], "the door is blue").text == "in short"
    assert entries_in(client.requests[0]) == [Entry("summary so far", "the door is blue")]


# In pieces


@pytest.mark.parametrize("prompt", [PROMPT, SUMMARY_PROMPT])
@pytest.mark.parametrize("window", [1_500, 3_000])
def test_what_does_not_fit_is_folded_in_piece_by_piece_and_nothing_is_cut_off(window: int, prompt: str) -> None:
    client = client_of(["s" * 380], window=window)
    entries = [Entry(f"result of look-{n}", f"{n}: {numbered(60 + n)}") for n in range(60)]
    write(writer_of(client, prompt=prompt), entries)
    assert len(client.requests) > 2
    assert shown(client.requests) == entries


@pytest.mark.parametrize("prompt", [PROMPT, SUMMARY_PROMPT])
@pytest.mark.parametrize("window", [1_000, 1_500, 3_000])
def test_each_piece_fits_into_the_window_with_the_summary_so_far_and_the_answer(window: int, prompt: str) -> None:
    client = client_of(["s" * 380], window=window)
    write(writer_of(client, prompt=prompt), [Entry("user", numbered(5_000))])
    assert max(map(needed, client.requests)) <= window


def test_room_is_left_for_a_summary_before_and_one_to_come() -> None:
    client = client_of(["s" * 1_980], window=3_000)
    entries = [Entry(f"result of look-{n}", numbered(100)) for n in range(100)]
    write(writer_of(client, prompt=SUMMARY_PROMPT, max_tokens=500), entries)
    assert len(client.requests) > 2
    assert max(map(needed, client.requests)) <= 3_000


def test_a_piece_fits_whatever_the_script_that_it_is_written_in() -> None:
    client = client_of(["s" * 380], window=2_000)
    text = "日本語の文" * 600 + numbered(2_000)
    write(writer_of(client), [Entry("user", text)])
    assert shown(client.requests) == [Entry("user", text)]
    assert max(map(needed, client.requests)) <= 2_000


def test_the_pieces_are_as_large_as_the_window_allows() -> None:
    client = client_of(window=10_000)
    write(writer_of(client, prompt=SUMMARY_PROMPT), [Entry("user", numbered(60_000))])
    assert min(map(needed, client.requests[:-1])) > 10_000 * 0.6


def test_the_summary_so_far_goes_along_with_the_next_piece() -> None:
    client = client_of(["one", "two", "three", "four", "five", "six"], window=1_500)
    written = write(writer_of(client), [Entry("user", numbered(2_000))], "before")
    so_far = [entries_in(request)[0] for request in client.requests]
    assert len(so_far) > 2
    texts = ["before", *client.answers[: len(so_far) - 1]]
    assert so_far == [Entry("summary so far", str(text)) for text in texts]
    assert written.text == client.answers[len(so_far) - 1]


def test_what_all_pieces_cost_is_added_up() -> None:
    client = client_of(window=1_500)
    written = write(writer_of(client), [Entry("user", numbered(2_000))])
    assert len(client.requests) > 2
    assert written.usage == spent(client)


def test_an_entry_that_is_too_long_is_divided_and_its_parts_say_that_they_go_on() -> None:
    client = client_of(window=1_500)
    text = numbered(3_000)
    write(writer_of(client), [*TALK, Entry("result of look", text), *TALK])
    assert shown(client.requests) == [*TALK, Entry("result of look", text), *TALK]
    who = [entry.who for request in client.requests for entry in entries_in(request) if "look" in entry.who]
    assert len(who) > 2
    assert who == ["result of look", *["result of look, continued"] * (len(who) - 1)]


def test_an_entry_is_divided_at_the_end_of_a_line_where_there_is_one() -> None:
    client = client_of(window=1_500)
    write(writer_of(client), [Entry("user", "\n".join(f"line {n}" for n in range(1_500)))])
    parts = [
        entry.text for request in client.requests for entry in entries_in(request) if entry.who != "summary so far"
    ]
    assert len(parts) > 2
    assert all(part.endswith("\n") for part in parts[:-1])


@pytest.mark.parametrize("window", [None, 3_000])
def test_half_characters_of_what_a_model_said_are_no_obstacle(window: int | None) -> None:
    client = client_of(window=window)
    assert write(writer_of(client), [Entry("assistant", "half \ud83d of it"), *TALK]).text == "in short"
    client.requests[0].messages[0].text.encode()


def test_a_window_that_is_too_small_is_no_reason_to_ask() -> None:
    client = client_of(window=500)
    error = not_written(writer_of(client, max_tokens=200))
    assert (error.kind, error.usage, error.is_outage) == ("window", Usage(), False)
    assert "500" in error.reason
    assert client.requests == []


def repeated(word: str, times: int) -> str:
    return word * times


TEXTS = st.builds(repeated, st.sampled_from(["sun ", "rain\n", "日", "\n\n", "x"]), st.integers(0, 1_500))


@settings(PROPERTY, max_examples=PROPERTY.max_examples // 3)
@given(st.lists(TEXTS, max_size=8), st.sampled_from([1_000, 1_500, 4_000]))
def test_every_text_reaches_the_model_whole_and_in_order(texts: list[str], window: int) -> None:
    client = client_of(window=window)
    entries = [Entry(f"result of look-{number}", text) for number, text in enumerate(texts)]
    write(writer_of(client), entries)
    assert shown(client.requests) == entries


# Refused as too long


@pytest.mark.parametrize("tells", [True, False])
def test_a_request_that_is_refused_as_too_long_is_made_in_smaller_pieces(tells: bool) -> None:
    client = Windowed(4_000, tells=tells)
    entries = [Entry(f"result of look-{number}", numbered(400)) for number in range(20)]
    written = write(writer_of(client), entries)
    assert shown(client.requests) == entries
    assert written.usage == spent(client)
    assert 0 < len(client.refused) <= 4
    sizes = [needed(request) for request in client.refused]
    assert all(later < earlier for earlier, later in pairwise(sizes))


def test_a_limit_that_a_refusal_tells_saves_trying() -> None:
    telling, silent = Windowed(1_500, tells=True), Windowed(1_500, tells=False)
    for client in (telling, silent):
        write(writer_of(client), [Entry("user", numbered(5_000))])
    assert len(telling.refused) < len(silent.refused)


def test_a_limit_below_zero_is_no_obstacle() -> None:
    client = client_of([ContextOverflowError(5_000, 3), "in short"])
    entries = [Entry("user", numbered(400))]
    write(writer_of(client), entries)
    assert shown(client.requests[1:]) == entries


def test_after_four_refusals_it_is_given_up() -> None:
    client = client_of([ContextOverflowError()])
    error = not_written(writer_of(client), [Entry("user", numbered(5_000))])
    assert (error.kind, error.usage, error.is_outage) == ("overflow", Usage(), False)
    assert len(client.requests) == 5
    assert isinstance(error.__cause__, ContextOverflowError)


def test_what_was_spent_before_the_refusals_is_told() -> None:
    client = client_of(["in short", ContextOverflowError()], window=1_500)
    assert not_written(writer_of(client), [Entry("user", numbered(2_000))]).usage == spent(client, 1)


# No summary


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (ServerError("down", status=503), True),
        (RateLimitError("slow down"), True),
        (ProviderConnectionError("gone"), True),
        (TimeoutError("its own"), True),
        (ValueError("a bug"), True),
        (RequestRefusedError("no such model", status=404), False),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_call_that_fails_tells_what_and_whether_the_client_is_away(error: Exception, is_outage: bool) -> None:
    client = client_of([error])
    caught = not_written(writer_of(client))
    assert (caught.kind, caught.usage, caught.is_outage) == (type(error).__name__, Usage(), is_outage)
    assert caught.__cause__ is error
    assert str(error) not in caught.reason
    assert client.open_streams == 0


def test_an_answer_that_breaks_off_is_no_summary() -> None:
    client = client_of(["in short", ["half of", BrokenStreamError("cut")]], window=1_500)
    caught = not_written(writer_of(client), [Entry("user", numbered(2_000))])
    assert (caught.kind, caught.usage, caught.is_outage) == ("BrokenStreamError", spent(client, 1), True)
    assert client.open_streams == 0


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (["cut off", "length"], "truncated"),
        (["I will not", "refused"], "refused"),
        (["wait", "paused"], "paused"),
        (Message.assistant("let me see", ToolCall("1", "look")), "tool_call"),
        ("", "empty"),
        (Message.assistant(Text(" \n")), "empty"),
        (OPENING, "empty"),
    ],
)
def test_an_answer_that_is_no_summary_costs_and_is_no_outage(answer: Answer, kind: str) -> None:
    client = client_of([answer])
    caught = not_written(writer_of(client))
    assert (caught.kind, caught.is_outage) == (kind, False)
    assert caught.usage.input_tokens > 0
    assert client.open_streams == 0


def test_a_bad_answer_to_a_later_piece_fails_the_whole_and_all_of_it_is_told() -> None:
    client = client_of(["in short", ""], window=1_500)
    caught = not_written(writer_of(client), [Entry("user", numbered(2_000))])
    assert caught.kind == "empty"
    assert caught.usage.input_tokens == spent(client, 2).input_tokens


# Time


def test_a_client_that_takes_too_long_is_away() -> None:
    client = client_of(delay=30)
    caught = not_written(writer_of(client, seconds=0.02))
    assert (caught.kind, caught.usage, caught.is_outage) == ("timeout", Usage(), True)
    assert client.open_streams == 0


def test_the_time_is_for_the_whole_answer() -> None:
    client = client_of(["one " * 50], delay=0.01)
    assert not_written(writer_of(client, seconds=0.1)).kind == "timeout"
    assert client.open_streams == 0


@pytest.mark.slow
def test_each_piece_has_its_time_and_what_was_spent_before_is_told() -> None:
    client = client_of(["short"], window=1_500, delay=0.08)
    assert write(writer_of(client, seconds=0.5), [Entry("user", numbered(6_000))]).text == "short"
    assert len(client.requests) * 0.08 > 0.5
    slow = client_of(["in short", ["a", *["b"] * 100]], window=1_500, delay=0.02)
    caught = not_written(writer_of(slow, seconds=0.5), [Entry("user", numbered(2_000))])
    assert (caught.kind, caught.usage) == ("timeout", spent(slow, 1))


def test_a_client_that_cancels_itself_is_away_and_cancels_nobody_else() -> None:
    client = client_of([asyncio.CancelledError()])
    caught = not_written(writer_of(client))
    assert (caught.kind, caught.is_outage) == ("CancelledError", True)


def test_what_was_spent_is_known_to_whoever_is_cancelled() -> None:
    client = client_of(["in short", ["a", *["b"] * 200]], window=1_500, delay=0.02)
    entries = [Entry("user", numbered(2_000))]
    writing = Writing(writer_of(client), "", entries, model=None, conversation_id=None)

    async def cancelled() -> None:
        async with asyncio.timeout(0.5):
            await writing.answer()

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert writing.usage == spent(client, 1)


class Held:
    """An answer that does not come, from a source that goes on until it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def __anext__(self) -> ChatUpdate:
        await asyncio.sleep(3_600)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.is_closed = True


class Holding(ScriptedClient):
    """Gives out streams that hold."""

    def __init__(self) -> None:
        super().__init__()
        self.source = Held()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return ChatStream(self.source)


def test_what_was_opened_is_closed_when_the_time_is_over() -> None:
    client = Holding()
    assert not_written(writer_of(client, seconds=0.02)).kind == "timeout"
    assert client.source.is_closed


@pytest.mark.parametrize("answer", ["word " * 200, "never"], ids=["while it answers", "before it answers"])
def test_whoever_is_cancelled_is_cancelled_and_leaves_no_stream_open(answer: str) -> None:
    """Before the first word, or in the midst of many."""
    client = client_of([answer], delay=30 if answer == "never" else 0.05)

    async def cancelled() -> None:
        task = asyncio.create_task(Writing(writer_of(client), "", TALK, model=None, conversation_id=None).answer())
        await asyncio.sleep(0.2)
        assert client.open_streams == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.open_streams == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancelled())
