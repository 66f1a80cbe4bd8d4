"""ToolResultShaper: a result is bounded when it first goes out, and the same way ever after, whatever stands behind."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from chatstack import (
    AgentState,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    StackContextManager,
    Summarizer,
    Text,
    ToolCall,
    ToolResultClearer,
    ToolResultShaper,
    recall_tool,
    tool,
)
from chatstack.client.stream import ChatStream
from chatstack.context.edits.handles import handle_of
from chatstack.context.shapes import shaping
from chatstack.context.shapes.shapes import is_too_long
from chatstack.layers.shaper import ToolResultShaper as Layer
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import leftovers
from tests.context.test_sharing import DictStore
from tests.histories import decoded_again

BOUND = 600


def long_text(number: int, lines: int = 60) -> str:
    return "".join(f"file {number} line {line} says grey {line * 7}\n" for line in range(lines))


def rounds(numbers: Iterable[int], lines: int = 60) -> list[Message]:
    return [
        message
        for number in numbers
        for message in (
            Message.assistant("I look.", ToolCall(f"c{number}", "look", f'{{"at": {number}}}')),
            Message.tool(f"c{number}", long_text(number, lines), name="look"),
        )
    ]


def shaper(stack: ChatStack) -> ChatStack:
    return stack.use(ToolResultShaper, max_bytes=BOUND)


def guard(stack: ChatStack, tokens: int = 2_400) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=tokens, prune_on_overflow=True)


def clearer(stack: ChatStack, **options: Any) -> ChatStack:
    return stack.use(ToolResultClearer, **{"trigger": {"tokens": 1_500}, "keep": {"messages": 3}, **options})


def summarizer(stack: ChatStack, writer: ScriptedClient | None = None) -> ChatStack:
    writer = writer or ScriptedClient(["In short: they looked."])
    return stack.use(Summarizer, max_tokens=2_000, max_summary_tokens=200, summary_client=writer)


BEHIND: dict[str, Callable[[ChatStack], ChatStack]] = {
    "nothing": lambda stack: stack,
    "guard": guard,
    "clearer": clearer,
    "ClearThenDrop, guard": lambda stack: guard(stack.use(ClearThenDrop(2_000))),
    "clearer, summarizer, guard": lambda stack: guard(summarizer(clearer(stack))),
}
every_stack = pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
PURE = {name: behind for name, behind in BEHIND.items() if "summarizer" not in name}
"""A summary is written anew where nobody remembers it."""
every_pure_stack = pytest.mark.parametrize("behind", PURE.values(), ids=PURE)
every_form = pytest.mark.parametrize("form", [list, decoded_again], ids=["the same objects", "fresh objects"])


class Sent:
    """A stack, and what it sent and told."""

    def __init__(
        self, recipe: Callable[[ChatStack], ChatStack], model: ScriptedClient | None = None, **memory: Any
    ) -> None:
        self.model = model or ScriptedClient(["fine"])
        self.capture = TelemetryCapture()
        self.memory = ContextMemory(clock=lambda: 0.0, **memory)
        self.client = recipe(ChatStack(self.model, memory=self.memory)).build(self.capture.resolve)

    def of(self, messages: Sequence[Message], **options: Any) -> tuple[Message, ...]:
        asyncio.run(self.client.get_response(messages, **options))
        return self.model.requests[-1].messages

    def shapes(self) -> list[dict[str, Any]]:
        """The attributes of what it told of shaping."""
        return [
            dict(span.attributes or {})
            for span in self.capture.spans
            if span.name == "compact_context shape_tool_results"
        ]


def results_in(messages: Sequence[Message]) -> list[str]:
    return [result.text for message in messages for result in message.results]


def test_a_result_is_bounded_and_the_callers_list_stays_whole() -> None:
    history = [Message.user("go"), *rounds([1])]
    kept = list(history)
    sent = Sent(shaper).of(history)
    assert len(results_in(sent)[0].encode()) <= BOUND
    assert sent[:2] == tuple(history[:2])
    assert all(one is other for one, other in zip(history, kept, strict=True))


def test_what_is_within_the_bound_goes_out_in_the_very_request() -> None:
    sent = Sent(shaper)
    history = (Message.user("go"), *rounds([1], lines=3))
    request = ChatRequest(history, ChatOptions())
    asyncio.run(sent.client.send(request))
    assert sent.model.requests[-1].messages is history


@pytest.mark.sampled(3)
@every_form
@every_stack
def test_a_growing_conversation_begins_with_what_was_sent_before_or_tells_of_an_edit(
    behind: Callable[[ChatStack], ChatStack], form: Callable[[Sequence[Message]], list[Message]]
) -> None:
    """Of a shape alone no prefix ever breaks; each break is one of the edits of layers behind."""
    running = Sent(lambda stack: behind(shaper(stack)))
    history, breaks = [Message.system("be kind"), Message.user("go")], 0
    before: tuple[Message, ...] = ()
    for number in range(24):
        history += rounds([number], lines=60 if number % 3 else 2)
        sent = running.of(form(history))
        breaks += sent[: len(before)] != before
        before = sent
        assert all(len(text.encode()) <= BOUND for text in results_in(sent))
        assert leftovers(sent) == leftovers(history)
    edits = [span.name for span in running.capture.spans if span.name.startswith("compact_context")]
    others = [name for name in edits if name != "compact_context shape_tool_results"]
    assert breaks <= len(others)
    assert breaks <= 6
    assert (breaks == 0) == (behind is BEHIND["nothing"])


@pytest.mark.sampled(3)
@every_form
@every_pure_stack
def test_a_process_that_remembers_nothing_sends_the_same(
    behind: Callable[[ChatStack], ChatStack], form: Callable[[Sequence[Message]], list[Message]]
) -> None:
    running = Sent(lambda stack: behind(shaper(stack)))
    history = [Message.user("go")]
    for number in range(16):
        history += rounds([number], lines=60 if number % 3 else 2)
        assert running.of(form(history)) == Sent(lambda stack: behind(shaper(stack))).of(history)


@every_stack
def test_streamed_or_not_the_same_is_sent(behind: Callable[[ChatStack], ChatStack]) -> None:
    history = [Message.user("go"), *rounds(range(12))]
    whole, streamed = (Sent(lambda stack: behind(shaper(stack))) for _ in range(2))

    async def read() -> None:
        async with streamed.client.get_streaming_response(history) as stream:
            async for _ in stream:
                pass

    asyncio.run(read())
    assert whole.of(history) == streamed.model.requests[-1].messages


@pytest.mark.sampled(2)
@every_form
def test_a_message_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, form: Callable[[Sequence[Message]], list[Message]]
) -> None:
    looked_at: list[str] = []

    def noted(text: str, most_bytes: int) -> bool:
        looked_at.append(text)
        return is_too_long(text, most_bytes)

    monkeypatch.setattr(shaping, "is_too_long", noted)
    running = Sent(lambda stack: guard(clearer(shaper(stack), trigger={"tokens": 30_000}), 1_000_000))
    history = [Message.user("go"), *rounds(range(1_000))]
    running.of(form(history))
    assert len(looked_at) == 1_000
    for number in range(1_000, 1_005):
        history += rounds([number])
        looked_at.clear()
        running.of(form(history))
        assert looked_at == [long_text(number)]


def test_it_tells_of_it_as_information_with_the_tokens_before_and_after() -> None:
    running = Sent(shaper)
    history = [Message.user("go")]
    for number in range(3):
        history += rounds([number])
        running.of(history)
    told = running.shapes()
    assert len(told) == 3
    assert [each["chatstack.compaction.tool_results_shortened"] for each in told] == [1, 1, 1]
    sizes = [(each["chatstack.compaction.tokens_before"], each["chatstack.compaction.tokens_after"]) for each in told]
    assert all(before > after > 0 for before, after in sizes)
    assert sizes[0][1] < sizes[1][1] < sizes[0][0] + sizes[0][1]  # what was shaped before counts as shaped
    assert running.capture.warnings == ()


def test_turned_on_in_a_conversation_that_is_under_way_it_says_so_once() -> None:
    running = Sent(shaper)
    history = [Message.user("go"), *rounds(range(5)), Message.assistant("done"), Message.user("and now?")]
    for _ in range(3):
        running.of(history, conversation_id="c")
        history += [Message.assistant("fine"), Message.user("more")]
    history += rounds([7])
    running.of(history, conversation_id="c")
    told = [record for record in running.capture.logs if "were there already" in str(record)]
    assert len(running.shapes()) == 2
    assert len(told) == 1


def test_what_was_shaped_is_cleared_and_recalled_in_full() -> None:
    running = Sent(lambda stack: clearer(shaper(stack), placeholder="[cleared {handle}]"))
    history = [Message.user("go"), *rounds(range(14))]
    sent = running.of(history)
    cleared = [text for text in results_in(sent) if text.startswith("[cleared")]
    assert len(cleared) > 5
    handles = [handle_of(message.results[0]) for message in history if message.results]
    assert [text[9:19] for text in cleared] == handles[: len(cleared)]
    annotations = [message.annotation for message in sent if message.annotation is not None]
    assert annotations[0].handles == (handles[0],)


@tool
def look(at: int) -> str:
    """Look at a file."""
    return long_text(at)


class Curious(ScriptedClient):
    """Looks at a file, recalls it by the call that it is told, and answers."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        last = request.messages[-1].results
        answer = Message.assistant(ToolCall("c", "look", '{"at": 1}'))
        if last and last[0].name == "look":
            handle = last[0].text.split("recall(handle='")[1][:10]
            answer = Message.assistant(ToolCall("d", "recall", f'{{"handle": "{handle}"}}'))
        elif last:
            answer = Message.assistant("read")
        self.answers = [answer]
        return await super().send(request)


def test_the_model_gets_back_what_was_left_out() -> None:
    running = Sent(lambda stack: shaper(stack.use(FunctionInvoker, tools=[look, recall_tool()])), Curious())
    running.of([Message.user("go")])
    last = running.model.requests[-1].messages[-1].results[0].text
    assert last == f"[page 1 of 1]\n{long_text(1)}"


def test_a_summary_is_of_the_full_results() -> None:
    writer = ScriptedClient(["In short: they looked."])
    running = Sent(lambda stack: summarizer(shaper(stack), writer))
    history = [Message.user("go")]
    for number in range(24):
        history += rounds([number])
        running.of(history)
    written = "\n".join(each.text for request in writer.requests for each in request.messages)
    assert "file 0 line 30 says" in written


@pytest.mark.parametrize("limit", [150, 300])
def test_what_a_guard_cuts_further_is_cut_from_the_whole_and_never_larger_than_it_was(limit: int) -> None:
    history = [Message.user("go"), *rounds([1], lines=4_000)]
    sent = Sent(lambda stack: guard(stack.use(ToolResultShaper, max_bytes=2_000), limit)).of(history)
    text = results_in(sent)[0]
    assert len(text) < limit * 4
    assert f" of {len(long_text(1, 4_000)):,} bytes left out]" in text


def test_a_shape_that_fits_is_left_alone_however_large_the_whole_is() -> None:
    history = [Message.user("go"), *rounds([1], lines=4_000)]
    alone = Sent(shaper).of(history)
    assert Sent(lambda stack: guard(shaper(stack), 1_000)).of(history) == alone
    assert Sent(lambda stack: shaper(stack).use(ClearThenDrop(1_000))).of(history) == alone


def test_edits_from_before_the_first_shape_stay() -> None:
    running = Sent(lambda stack: guard(shaper(stack), 1_500))
    history = [Message.user("go")]
    for number in range(30):
        history += rounds([number], lines=10)
        before = running.of(history)
    assert len(before) < len(history)
    history += rounds([99])
    after = running.of(history)
    assert after[: len(before)] == before


def test_the_tools_of_a_call_decide_what_is_said_of_recalling() -> None:
    running = Sent(shaper)
    history = [Message.user("go"), *rounds([1])]
    declared = ChatOptions(tools=(recall_tool().declaration(),))
    said = [results_in(running.of(history, options=options))[0] for options in (None, declared, None, declared)]
    assert said[:2] == said[2:]
    assert "recall(handle=" not in said[0]
    assert "recall(handle=" in said[1]


def test_system_messages_between_do_not_move_it() -> None:
    running = Sent(lambda stack: clearer(shaper(stack)))
    history = [Message.system("be kind"), Message.user("go")]
    for number in range(10):
        history += [*rounds([number]), Message.system(f"step {number}")]
        sent = running.of(history)
        assert [each.text for each in sent if each.role == "system"] == [
            each.text for each in history if each.role == "system"
        ]
        assert all(len(text) <= BOUND for text in results_in(sent))


@pytest.mark.filterwarnings("ignore:layer '.*' is outside 'ToolResultShaper'")
@pytest.mark.parametrize("outside", [clearer, summarizer, lambda stack: stack.use(ClearThenDrop(2_000))])
def test_behind_other_layers_it_bounds_what_they_leave(outside: Callable[[ChatStack], ChatStack]) -> None:
    running = Sent(lambda stack: guard(shaper(outside(stack))))
    history = [Message.user("go")]
    for number in range(12):
        history += rounds([number])
        sent = running.of(history)
        assert all(len(text) <= BOUND for text in results_in(sent))
        assert leftovers(sent) == leftovers(history)


@pytest.mark.parametrize("many", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_conversations_at_once_are_sent_as_each_alone(many: int) -> None:
    class Slow(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            await asyncio.sleep(0)
            return await super().send(request)

    running = Sent(lambda stack: clearer(shaper(stack)), Slow(["fine"]))
    histories = [[Message.user(f"go {who % (many // 2)}"), *rounds([who, who + 1])] for who in range(many)]

    async def all_of_them() -> None:
        await asyncio.gather(*(running.client.get_response(each) for each in histories))

    asyncio.run(all_of_them())
    sent = {request.messages for request in running.model.requests}
    assert len(sent) == many
    assert sent.issuperset(Sent(lambda stack: clearer(shaper(stack))).of(each) for each in histories[::25])


@pytest.mark.slow
def test_what_it_keeps_is_bounded_with_the_memory() -> None:
    running = Sent(shaper, max_megabytes=1)
    for who in range(60):
        running.of([Message.user(f"go {who}"), *rounds([who], lines=4_000)], conversation_id=str(who))
        assert running.memory.held_bytes <= 1_000_000
    assert running.memory.held_bytes > 100_000


def test_shaped_messages_count_as_held() -> None:
    sizes = []
    for bound in (10_000_000, 90_000):
        running = Sent(lambda stack: stack.use(ToolResultShaper, max_bytes=bound))  # noqa: B023
        running.of([Message.user("go"), *rounds([1], lines=4_000)])
        sizes.append(running.memory.held_bytes)
    assert 85_000 < sizes[1] - sizes[0] < 110_000


def test_where_the_provider_holds_the_history_it_stands_aside() -> None:
    running = Sent(shaper)
    history = [Message.user("go"), *rounds([1])]
    options = ChatOptions(extra={"previous_response_id": "resp_1"})
    assert running.of(history, options=options) == tuple(history)
    assert running.capture.warnings == ("context_layers_bypassed",)


def test_a_branch_is_shaped_as_the_conversation_that_it_leaves() -> None:
    running = Sent(lambda stack: clearer(shaper(stack)))
    history = [Message.user("go"), *rounds(range(4))]
    whole = running.of(history)
    for length in (3, 5, 7):
        assert running.of([*history[:length], Message.user("or so?")])[:length] == whole[:length]
    assert running.of(history) == whole


def test_a_bad_option_is_named() -> None:
    with pytest.raises(Exception, match=r"ToolResultShaper.*per_tool"):
        Layer(ScriptedClient(), per_tool={"look": 0})
    with pytest.raises(Exception, match=r"ToolResultShaper.*max_bytes"):
        Layer(ScriptedClient(), max_bytes=0)


def test_its_options_do_not_change_with_the_callers() -> None:
    bounds, never = {"b": 5, "a": 6}, ["look"]
    layer = Layer(ScriptedClient(), per_tool=bounds, never=never)
    bounds["look"], _ = 1, never.pop()
    assert (layer.per_tool, layer.never) == ({"a": 6, "b": 5}, ("look",))


def test_cancelled_while_it_waits_for_the_model_it_shapes_the_same_next_time() -> None:
    asked = asyncio.Event()

    class Stuck(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            self.requests.append(request)
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    history = [Message.user("go"), *rounds(range(3))]
    running = Sent(shaper, Stuck())

    async def cancel() -> None:
        for _ in range(2):
            asked.clear()
            call = asyncio.ensure_future(running.client.get_response(history))
            await asked.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(cancel())
    expected = Sent(shaper).of(history)
    assert [request.messages for request in running.model.requests] == [expected, expected]


def test_a_text_beside_shaped_results_is_untouched() -> None:
    message = Message("user", (*rounds([1])[1].results, *rounds([2])[1].results))
    calls = Message.assistant(ToolCall("c1", "look"), ToolCall("c2", "look"))
    history = [Message.user("go"), calls, message, Message.assistant(Text("fine")), Message.user("more")]
    sent = Sent(shaper).of(history)
    assert len(sent[2].results) == 2
    assert list(itertools.chain(sent[:2], sent[3:])) == [*history[:2], *history[3:]]


def test_what_stands_behind_it_is_forgotten_by_the_callers_messages() -> None:
    store = DictStore()
    running = Sent(lambda stack: clearer(shaper(stack)), store=store, scope="tenant", store_timeout_seconds=60)
    history = [Message.user("go"), *rounds(range(14))]
    running.of(history)
    assert store.kept
    asyncio.run(running.memory.forget_stored([*history, Message.assistant("fine")]))
    assert not store.kept


def test_another_process_takes_over_what_was_decided_behind_it() -> None:
    store = DictStore()
    history = [Message.user("go"), *rounds(range(14))]

    def process() -> Sent:
        return Sent(lambda stack: clearer(shaper(stack)), store=store, scope="tenant", store_timeout_seconds=60)

    first = process().of(history)
    history += [Message.assistant("fine"), Message.user("more"), *rounds([99])]
    second = process()
    assert second.of(history)[: len(first)] == first
    told = [span.name for span in second.capture.spans if span.name.startswith("compact_context")]
    assert told == ["compact_context shape_tool_results"]


def test_turned_on_later_it_leaves_earlier_edits_standing() -> None:
    memory = ContextMemory(clock=lambda: 0.0)
    model = ScriptedClient(["fine"])
    history = [Message.user("go"), *rounds(range(6))]
    for recipe in (clearer, lambda stack: clearer(shaper(stack))):
        asyncio.run(recipe(ChatStack(model, memory=memory)).build().get_response(history))
        history += [Message.assistant("fine"), Message.user("more")]
    before, after = (results_in(request.messages) for request in model.requests)
    assert [text for text in before if "cleared" in text] == [text for text in after if "cleared" in text] != []
    assert all(len(text) <= BOUND for text in after)


def test_a_node_of_a_graph_shapes_without_an_event_loop() -> None:
    history = [Message.user("go"), *rounds(range(3))]
    manager = StackContextManager(shaper(ChatStack(ScriptedClient())))
    trimmed = manager.trim_context(AgentState(messages=history))
    assert tuple(trimmed.messages) == Sent(shaper).of(history)


def test_the_handles_in_a_list_of_names_are_those_of_the_whole_results() -> None:
    placeholder = "[cleared {handle}]"
    running = Sent(lambda stack: shaper(stack).use(ClearThenDrop(900, mentions=0.3, placeholder=placeholder)))
    history = [Message.user("go"), *rounds(range(12))]
    options = ChatOptions(tools=(recall_tool().declaration(),))
    sent = results_in(running.of(history, options=options))
    listed = [text for text in sent if "Words in what was left out" in text]
    handles = {handle_of(message.results[0]) for message in history if message.results}
    told = [each for text in listed for each in re.findall(r"[0-9a-f]{10}", text)]
    assert len(set(told)) > 1
    assert set(told) <= handles
