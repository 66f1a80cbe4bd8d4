"""Callers who make it hard: beginnings that change, windows that slide, branches, threads, a thousand at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextWindowGuard,
    Message,
    OldestFirst,
    ProviderInfo,
    ToolCall,
    ToolResultClearer,
    Usage,
)
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import leftovers, size
from tests.histories import decoded_again

LONG = "sun and rain " * 40
WINDOW = 6_000
TRIGGER = 2_000
FINE = Message.assistant("fine")


def call(number: int | str) -> list[Message]:
    """A round of 150 tokens."""
    asked = Message.assistant("", ToolCall(f"c{number}", "look", f'{{"n": "{number}"}}'))
    return [asked, Message.tool(f"c{number}", f"{number} {LONG}", name="look")]


def rounds(count: int, start: int = 0) -> list[Message]:
    return [message for number in range(start, start + count) for message in call(number)]


def clearer(stack: ChatStack) -> ChatStack:
    return stack.use(ToolResultClearer, trigger={"tokens": TRIGGER}, keep={"messages": 3})


def condenser(stack: ChatStack) -> ChatStack:
    return stack.use(ClearThenDrop(WINDOW))


def guard(stack: ChatStack) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=WINDOW, prune_on_overflow=True)


def everything(stack: ChatStack) -> ChatStack:
    return guard(condenser(clearer(stack)))


Recipe = Callable[[ChatStack], ChatStack]
every_recipe = pytest.mark.parametrize(
    "recipe", [clearer, condenser, guard, everything], ids=lambda recipe: recipe.__name__
)


class WarmClient(ScriptedClient):
    """A provider that reads each prompt from its cache. A cold one is news, and no function of the history: the thread
    that hears of it first may edit."""

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        usage = super()._usage(request, answer)
        return Usage(usage.input_tokens, usage.output_tokens, cache_read_tokens=usage.input_tokens)


class Caller:
    """A stack over a model with a window of 6,000 tokens, and what it sent and said."""

    def __init__(
        self, recipe: Recipe, *, window: int | None = WINDOW, provider: type[ScriptedClient] = ScriptedClient
    ) -> None:
        self.provider = provider(["fine"], info=ProviderInfo(name="scripted", window_tokens=window))
        self.capture = TelemetryCapture()
        self.client = recipe(ChatStack(self.provider)).build(self.capture.resolve)

    def send(self, messages: Sequence[Message]) -> list[Message]:
        asyncio.run(self.client.get_response(messages))
        return list(self.provider.requests[-1].messages)

    @property
    def edits(self) -> int:
        spans = (span for span in self.capture.spans if span.name.startswith("compact_context"))
        return sum(span.attributes.get("chatstack.severity") == "INFO" for span in spans)

    @property
    def alarms(self) -> int:
        return self.capture.warnings.count("prefix_unstable")


# Beginnings that change


def changing_head(count: int) -> list[list[Message]]:
    """The caller puts the time into the first user message."""
    return [[Message.user(f"it is {number} o'clock"), *rounds(4 + number)] for number in range(count)]


def sliding_window(count: int) -> list[list[Message]]:
    """The caller sends the newest rounds alone."""
    history = rounds(count + 8)
    return [[Message.user("task"), *history[2 * number : 2 * number + 16]] for number in range(count)]


@every_recipe
@pytest.mark.parametrize("calls", [changing_head, sliding_window], ids=lambda calls: calls.__name__)
def test_a_beginning_that_keeps_changing_is_said_once(
    recipe: Recipe, calls: Callable[[int], list[list[Message]]]
) -> None:
    caller = Caller(recipe)
    for messages in calls(15):
        caller.send(messages)
    assert caller.alarms == 1


def test_a_beginning_that_keeps_changing_is_cleared_only_where_the_window_forces_it() -> None:
    caller = Caller(clearer)
    edited: list[int] = []
    for number, messages in enumerate(changing_head(50)):
        before = caller.edits
        sent = caller.send(messages)
        edited += [size(messages)] if caller.edits > before and number >= 2 else []
        if number >= 2 and size(messages) < WINDOW:
            assert [*map(id, sent)] == [*map(id, messages)]
    assert min(edited) >= WINDOW > TRIGGER
    assert len(edited) == sum(size(messages) >= WINDOW for messages in changing_head(50))


def test_where_nobody_knows_the_window_the_trigger_is_the_limit() -> None:
    caller = Caller(clearer, window=None)
    for number, messages in enumerate(changing_head(30)):
        sent = caller.send(messages)
        assert (size(sent) < size(messages)) == (size(messages) >= TRIGGER)
        assert number < 3 or caller.alarms == 1


def test_it_is_said_for_a_conversation_that_has_an_id_too() -> None:
    caller = Caller(clearer)
    for messages in changing_head(10):
        asyncio.run(caller.client.get_response(messages, conversation_id="c"))
    assert caller.alarms == 1


@pytest.mark.slow
def test_the_layers_further_in_do_not_take_an_edit_for_a_changing_beginning() -> None:
    caller = Caller(everything)
    history = [Message.user("task")]
    for number in range(200):
        caller.send(history)
        history += call(number)
    assert caller.edits > 5
    assert caller.alarms == 0


@every_recipe
def test_of_two_conversations_with_changing_beginnings_each_is_said_once(recipe: Recipe) -> None:
    caller = Caller(recipe)
    for number in range(8):
        for start in (0, 100):
            caller.send([Message.user(f"it is {number} o'clock"), *rounds(4 + number, start)])
    assert caller.alarms == 2


# No false alarms


def ephemeral(history: list[Message]) -> list[list[Message]]:
    return [[*history[:end], Message.user(f"(be brief, {end})")] for end in range(1, len(history), 2)]


def edited_once(history: list[Message]) -> list[list[Message]]:
    changed = [*history[:7], Message.assistant("rewritten"), Message.user("by hand"), *history[9:]]
    return [history[:end] for end in range(1, 21, 2)] + [changed[:end] for end in range(21, len(history), 2)]


def first_message_edited_once(history: list[Message]) -> list[list[Message]]:
    changed = [Message.user("another task"), *history[1:]]
    return [history[:end] for end in range(1, 21, 2)] + [changed[:end] for end in range(19, len(history), 2)]


def regenerated(history: list[Message]) -> list[list[Message]]:
    return [history[:21]] * 5 + [[*history[:21], *call(f"again {number}")] for number in range(10)]


def branches(history: list[Message]) -> list[list[Message]]:
    return [[*history[:end], *call(f"branch {end}")] for end in range(len(history) - 2, 9, -2)]


def short_chats(history: list[Message]) -> list[list[Message]]:
    return [[Message.user(f"hello {number}"), *history[1:5]] for number in range(30)]


def ending_alike(history: list[Message]) -> list[list[Message]]:
    end = [*call("end"), Message.assistant("done"), Message.user("thanks"), Message.assistant("welcome")]
    return [[Message.user(f"task {number}"), *rounds(5, 10 * number), *end] for number in range(20)]


def dated_instructions(history: list[Message]) -> list[list[Message]]:
    return [[Message.system(f"it is {end} o'clock"), *history[:end]] for end in range(1, len(history), 2)]


@pytest.mark.sampled(3)
@every_recipe
@pytest.mark.parametrize(
    "calls",
    [
        ephemeral,
        edited_once,
        first_message_edited_once,
        regenerated,
        branches,
        short_chats,
        ending_alike,
        dated_instructions,
    ],
    ids=lambda calls: calls.__name__,
)
def test_what_callers_rightly_do_is_no_changing_beginning(
    recipe: Recipe, calls: Callable[[list[Message]], list[list[Message]]]
) -> None:
    caller = Caller(recipe)
    for messages in calls([Message.user("task"), *rounds(30)]):
        sent = caller.send(messages)
        assert leftovers(sent) == {}
        assert sent[-1] == messages[-1]
    assert caller.alarms == 0


# Branches and edits


@every_recipe
def test_branches_share_what_was_decided_before_the_fork(recipe: Recipe) -> None:
    caller = Caller(recipe)
    trunk = [Message.user("task"), *rounds(44)]
    sent = caller.send(trunk)
    assert len(sent) < len(trunk) or sent != trunk
    trunk, sent = [*trunk, FINE], [*sent, FINE]  # the answer that was given under what was decided
    edits = caller.edits
    for name in ("one", "other"):
        branch = [Message.user(name)]
        assert caller.send([*trunk, *branch]) == [*sent, *branch]
        assert caller.send(decoded_again([*trunk, *branch])) == [*sent, *branch]
    assert caller.edits == edits


@every_recipe
def test_a_history_edited_behind_the_decision_keeps_it_and_one_edited_before_does_not(recipe: Recipe) -> None:
    caller = Caller(recipe)
    trunk = [Message.user("task"), *rounds(45)]
    sent = caller.send(trunk)
    behind = [*trunk, Message.assistant("so"), Message.user("and?")]
    assert caller.send([*trunk, Message.assistant("rather so"), *behind[-1:]])[: len(sent)] == sent
    before = [trunk[0], Message.assistant("rewritten"), *trunk[3:]]
    changed = caller.send(before)
    assert leftovers(changed) == {}
    assert not any(message == trunk[2] for message in changed)


def test_a_system_message_that_comes_between_changes_nothing_that_was_decided() -> None:
    caller = Caller(everything)
    history = [Message.user("task"), *rounds(45)]
    sent = caller.send(history)
    hint = Message.system("mind the time")
    for place in (0, 1, 11, len(history)):
        again = caller.send([*history[:place], hint, *history[place:]])
        assert [message for message in again if message is not hint] == sent
    assert caller.edits == len({span.span_id for span in caller.capture.spans if span.name.startswith("compact")})


# Many at once


@pytest.mark.slow
@every_recipe
def test_of_a_thousand_conversations_at_once_each_sees_only_its_own(recipe: Recipe) -> None:
    caller = Caller(recipe)
    base = rounds(14, 5_000)

    def history(number: int, end: int) -> list[Message]:
        """The same words in all of them, but for the marks that say whose they are."""
        mine = [Message.user(f"task of {number}"), *base[:10], *call(f"of {number}"), *base[10:20]]
        return [*mine, Message.user(f"wish of {number}"), *base[20:end]]

    async def converse(number: int) -> list[tuple[Message, ...]]:
        heard = []
        for end in (22, 24, 28):
            messages = history(number, end)
            await asyncio.sleep(0)
            options = ChatOptions(extra={"whose": number})
            await caller.client.get_response(messages, options=options)
            heard.append(tuple(messages))
        return heard

    async def all_of_them() -> None:
        await asyncio.gather(*map(converse, range(1_000)))

    asyncio.run(all_of_them())
    assert len(caller.provider.requests) == 3_000
    for request in caller.provider.requests:
        number = request.options.extra["whose"]
        users = [message.text for message in request.messages if message.role == "user"]
        assert users == [f"task of {number}", f"wish of {number}"]
        owned = {each.arguments for message in request.messages for each in message.calls if "of" in each.arguments}
        assert owned <= {f'{{"n": "of {number}"}}'}
        texts = (each.text for message in request.messages for each in message.results)
        assert {text.split(" ")[1] for text in texts if text.startswith("of ")} <= {str(number)}
    assert caller.alarms == 0


@pytest.mark.slow
def test_a_thousand_interleaved_conversations_keep_their_prefixes() -> None:
    """What was sent last is the beginning of what is sent next, for each of them, until it is edited."""
    caller = Caller(clearer)
    last: dict[int, tuple[Message, ...]] = {}
    histories = {number: [Message.user(f"task {number}")] for number in range(1_000)}
    same = rounds(17)
    broken = 0

    async def run() -> None:
        nonlocal broken
        for step in range(0, 17, 4):
            for number, history in histories.items():
                history += same[2 * step : 2 * step + 8]
                await caller.client.get_response(history)
                sent = caller.provider.requests[-1].messages
                before = last.get(number, ())
                broken += sent[: len(before)] != before
                last[number] = sent

    asyncio.run(run())
    assert broken == caller.edits == 1_000
    assert caller.alarms == 0


@pytest.mark.slow
def test_threads_that_send_the_same_conversation_get_the_same_prefix() -> None:
    caller = Caller(everything, provider=WarmClient)
    history = [Message.user("task"), *rounds(60)]
    start = threading.Barrier(8)
    failed: list[BaseException] = []

    def run(messages: list[Message]) -> None:
        async def calls() -> None:
            for end in range(41, len(messages) + 1, 2):
                await caller.client.get_response(messages[:end])

        start.wait()
        try:
            asyncio.run(calls())
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(decoded_again(history),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    by_last: dict[Message, set[tuple[Message, ...]]] = {}
    for request in caller.provider.requests:
        assert leftovers(request.messages) == {}
        assert size(request.messages) <= WINDOW
        by_last.setdefault(request.messages[-1], set()).add(request.messages)
    assert len(by_last) == 41
    assert {len(each) for each in by_last.values()} == {1}


# What goes wrong in the middle


def test_a_strategy_between_layers_that_edit_sees_what_is_left_and_knows_the_originals() -> None:
    def recipe(stack: ChatStack) -> ChatStack:
        return clearer(stack).use(OldestFirst(1_000, 800))

    caller = Caller(recipe)
    history = [Message.user("task"), *rounds(40)]
    sent = caller.send(history)
    assert size(sent) <= 1_000
    originals = set(map(id, history))
    assert all(id(message.original) in originals for message in sent)
