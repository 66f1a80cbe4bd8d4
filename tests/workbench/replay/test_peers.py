"""Other frameworks' own strategies as policies: what goes over comes back; what they do is theirs."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given

from chatstack import ChatRequest, ChatStack, ChatStackError, Image, InputError, Message, Text, ToolCall, ToolResult
from chatstack.layers.summarizing import SummaryClient
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import ScriptedClient
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, ToolDeclaration
from chatstack.workbench.replay import peers
from chatstack.workbench.replay.measures.measuring import Gauge, WireCounter
from chatstack.workbench.replay.peers import peer_policies
from chatstack.workbench.replay.peers.layer import Left, PeerStack, Piece, Terms
from chatstack.workbench.replay.policies import Policy
from chatstack.workbench.replay.recorder import EditLog
from chatstack.workbench.replay.summaries import StandInWriter, SummaryCost
from tests.histories import SOME, histories

NAMES = {
    **dict.fromkeys(["langchain-clearing", "langchain-trim", "langchain-summary"], "langchain"),
    "langchain-summary-third": "langchain",
    **dict.fromkeys(["af-truncation", "af-truncation-task"], "agent-framework-core"),
    **dict.fromkeys(["af-context-window", "af-context-window-task", "af-tool-results"], "agent-framework-core"),
    **dict.fromkeys(["af-sliding-window", "af-summary"], "agent-framework-core"),
    **dict.fromkeys(["maf-anchored", "maf-minimum-gain", "maf-user-turns"], "maf-compaction"),
    **dict.fromkeys(["headroom", "headroom-agent"], "headroom-ai"),
}
"""Of each policy: the distribution that it needs."""
ROOMY = 1_000_000
RULE, TASK = Message.system("Be brief."), Message.user("Find the fault.", Image(url="https://example.org/a.png"))


@functools.cache
def counter() -> WireCounter:
    return WireCounter.best()


def is_installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


def policy_of(name: str) -> Policy:
    """The policy of that name; skips the test where its framework is not installed."""
    if not is_installed(NAMES[name]):
        pytest.skip(f"{NAMES[name]} is not installed")
    return {policy.name: policy for policy in peer_policies()}[name]


every_policy = pytest.mark.parametrize("name", NAMES)


def rounds(count: int, words: int = 40) -> list[Message]:
    """Calls with their results, all of the same size, some under the same id; with half a character in each."""
    found: list[Message] = []
    for number in range(10, 10 + count):
        call = ToolCall(f"call_{number % 7}", "look", f'{{"at": "part_{number}"}}')
        found += [Message("assistant", (Text("half \ud83d"), call)), Message.tool(call.id, f"seen_{number} " * words)]
    return found


def size_of(messages: Iterable[Message]) -> int:
    return sum(map(counter().count_message, messages))


class Sent(NamedTuple):
    """What came of some calls: what was sent, how many edits each reported, and what summaries cost."""

    requests: list[list[Message]]
    edits: list[int]
    summaries: list[SummaryCost]


def sent_by(stack: Callable[[ScriptedClient], ChatStack], *given: Sequence[Message], ids: Sequence[str] = ()) -> Sent:
    """What one stack sends of these histories, one call after the other."""
    model, log, writer = ScriptedClient(["fine"]), EditLog(), StandInWriter(counter())
    client = stack(model).build({Telemetry: log, SummaryClient: writer}.__getitem__)
    edits: list[int] = []

    async def ask() -> None:
        for at, history in enumerate(given):
            log.edits.clear()
            await (await client.send(ChatRequest(tuple(history), conversation_id=ids[at] if ids else "one"))).response()
            edits.append(len(log.edits))

    asyncio.run(ask())
    return Sent([list(request.messages) for request in model.requests], edits, writer.asked)


def sent_under(name: str, ceiling: int, *given: Sequence[Message]) -> Sent:
    policy = policy_of(name)
    return sent_by(lambda model: policy.stack(ceiling, model), *given)


def are_same(found: Sequence[Message], wanted: Sequence[Message]) -> bool:
    """Whether these are the very objects."""
    return len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True))


def test_importing_the_policies_imports_neither_framework() -> None:
    code = (
        "import sys, chatstack.workbench.replay.peers\n"
        "print([name for name in sys.modules if name[:4] in ('lang', 'agen', 'maf_', 'head')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_those_that_are_installed_come_in_a_fixed_order_and_can_be_sent_to_another_process() -> None:
    wanted = [name for name, distribution in NAMES.items() if is_installed(distribution)]
    if not wanted:
        pytest.skip("no peer is installed")
    assert [policy.name for policy in peer_policies()] == wanted
    assert all(policy.about for policy in peer_policies())
    assert pickle.loads(pickle.dumps(peer_policies())) == peer_policies()


def test_without_any_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(distribution: str) -> str:
        raise PackageNotFoundError(distribution)

    monkeypatch.setattr(peers, "version", none)
    with pytest.raises(InputError, match=r"pip install 'langchain>=\S+' or 'agent-framework-core>="):
        peer_policies()


def test_one_that_lacks_what_is_compared_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "version", "0.1".format)
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)
    monkeypatch.delitem(sys.modules, "chatstack.workbench.replay.peers.langchain", raising=False)
    with pytest.raises(InputError, match=r"langchain 0\.1 lacks .* wanted is 1\.\d+ or later"):
        peer_policies()


@every_policy
def test_below_the_ceiling_the_very_messages_that_came_are_sent(name: str) -> None:
    calls = [ToolCall("a", "look", '{"at": 1}'), ToolCall("b", "look", "{broken"), ToolCall("a", "look", "[]")]
    results = [ToolResult(call.id, "look", "seen " * 20) for call in calls]
    pictures = ToolResult("p", "draw", (Text("here"), Image.from_bytes(b"png", "image/png")))
    history = [RULE, TASK, Message.assistant("I look.", *calls), Message("tool", (*results, Text("and hurry")))]
    history += [Message.assistant(ToolCall("p", "draw")), Message("tool", (pictures,))]
    history += [Message.assistant("fine"), Message.user("go on"), *rounds(3)]
    before = msgspec.msgpack.encode(history[:6])
    sent = sent_under(name, ROOMY, *(history[:at] for at in range(2, 15, 2)))
    assert all(are_same(found, history[:at]) for at, found in zip(range(2, 15, 2), sent.requests, strict=True))
    assert (sum(sent.edits), sent.summaries) == (0, [])
    assert msgspec.msgpack.encode(history[:6]) == before
    assert all(message.original is message and message.annotation is None for message in history)


@every_policy
def test_of_any_conversation_that_fits_nothing_is_changed(name: str) -> None:
    policy = policy_of(name)

    @SOME
    @given(histories())
    def check(history: list[Message]) -> None:
        history = [TASK, *history]  # trimming drops whatever comes before the first user message
        sent = sent_by(lambda model: policy.stack(ROOMY, model), history[:-2], history)
        assert are_same(sent.requests[-1], history)

    check()


class Fake:
    """A peer that leaves what it is told to, call after call; the last again and again."""

    def __init__(self, *script: Callable[[list[Piece]], Sequence[Left | Message]]) -> None:
        self.script = list(script)
        self.begun = 0

    def __call__(self, terms: Terms) -> Fake:
        self.begun, self.room = self.begun + 1, terms.room
        self.pieces: list[Piece] = []
        return self

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)

    async def shortened(self) -> Sequence[Left | Message]:
        return (self.script.pop(0) if len(self.script) > 1 else self.script[0])(self.pieces)

    def stack(self, model: ScriptedClient) -> ChatStack:
        return PeerStack("fake", self)(1_000, model)


def all_of(pieces: list[Piece]) -> list[Left | Message]:
    return [Left(piece.id) for piece in pieces]


BOTH = Message("tool", (ToolResult("a", "look", "seen a"), ToolResult("b", "look", "seen b")))
ITEM = Message("tool", (ProviderItem("openai", '{"type": "computer_call_output"}'),))
ROUND = [TASK, Message.assistant(ToolCall("a", "look"), ToolCall("b", "look")), BOTH]


def test_of_several_results_in_a_message_one_can_be_edited_and_one_left_out() -> None:
    edited = Fake(lambda pieces: [*all_of(pieces)[:2], Left(pieces[2].id, "gone"), Left(pieces[3].id)])
    dropped = Fake(lambda pieces: [*all_of(pieces)[:2], Left(pieces[3].id)])

    for fake, wanted in ((edited, [("a", "gone"), ("b", "seen b")]), (dropped, [("b", "seen b")])):
        ((*rest, last),) = sent_by(fake.stack, [*ROUND, ITEM]).requests
        assert [(result.call_id, result.text) for result in last.results] == wanted
        assert last.original is BOTH
        assert [piece.role + piece.answers for piece in fake.pieces] == ["user", "assistant", "toola", "toolb", "user"]
        assert are_same(rest, ROUND[:2])


def test_what_a_server_would_refuse_is_sent_as_it_is() -> None:
    orphan = Fake(lambda pieces: [Left(pieces[0].id), Left(pieces[2].id)])
    nothing = Fake(lambda pieces: [])
    for fake, fault in ((orphan, "result without a call"), (nothing, "empty request")):
        (messages,) = sent_by(fake.stack, ROUND).requests
        assert Gauge(counter()).measure(ChatRequest(tuple(messages)), needs_user=True).fault == fault


def test_an_exception_of_the_peers_refuses_the_call_and_the_conversation_begins_anew() -> None:
    fake, model = Fake(all_of, lambda pieces: [Left(pieces[9].id)], all_of), ScriptedClient(["fine"])
    client = fake.stack(model).build({SummaryClient: StandInWriter(counter())}.__getitem__)
    asyncio.run(client.get_response(ROUND[:1]))
    with pytest.raises(ChatStackError, match=r"^fake: IndexError") as refused:
        asyncio.run(client.get_response(ROUND))
    assert isinstance(refused.value.__cause__, IndexError)
    asyncio.run(client.get_response(ROUND))
    assert are_same(model.requests[-1].messages, ROUND)
    assert fake.begun == 2


def test_each_conversation_is_begun_anew_and_one_that_goes_on_is_not() -> None:
    fake = Fake(all_of)
    other = [Message.user("other"), *ROUND[1:]]
    sent = sent_by(fake.stack, ROUND[:1], ROUND, ROUND, other, ROUND, ids=["one", "one", "two", "two", "two"])
    assert [len(messages) for messages in sent.requests] == [1, 3, 3, 3, 3]
    assert fake.begun == 4


def test_an_edit_is_reported_when_it_is_made_and_not_when_it_is_kept() -> None:
    history = [TASK, *rounds(3)]
    latched = Fake(all_of, lambda pieces: all_of(pieces)[3:])
    assert sent_by(latched.stack, history[:3], history[:5], history).edits == [0, 1, 0]


def test_what_a_strategy_does_not_see_is_taken_off_its_limit() -> None:
    options = ChatOptions(instructions="Be brief. " * 20, tools=(ToolDeclaration("look", "It looks."),))
    fake = Fake(all_of)
    client = fake.stack(ScriptedClient(["fine"])).build({SummaryClient: StandInWriter(counter())}.__getitem__)
    asyncio.run(client.get_response([TASK], options=options))
    assert fake.room == 1_000 - counter().count_options(options) < 950


def test_langchain_clears_all_results_but_three_and_moves_on_with_each_call() -> None:
    history = [RULE, TASK, *rounds(6)]
    sent = sent_under("langchain-clearing", size_of(history[:10]), history[:10], history[:12], history)
    cleared = [[each.results[0].text == "[cleared]" for each in messages[3::2]] for messages in sent.requests]
    assert cleared == [[False] * 4, [True] * 2 + [False] * 3, [True] * 3 + [False] * 3]
    assert sent.edits == [0, 1, 1]
    last = sent.requests[-1]
    assert are_same([message.original for message in last], history)
    assert [at for at, message in enumerate(last) if message is not history[at]] == [3, 5, 7]


def test_langchain_trims_to_a_user_message_and_in_a_long_tool_loop_to_none() -> None:
    turns = [RULE, TASK, *rounds(2), Message.user("go on"), *rounds(2)]
    loop = [RULE, TASK, *rounds(4)]
    assert are_same(sent_under("langchain-trim", size_of(turns) - 1, turns).requests[0], [RULE, *turns[6:]])
    assert are_same(sent_under("langchain-trim", size_of(loop) - 1, loop).requests[0], [RULE])


def test_langchain_summarizes_all_but_twenty_messages_and_goes_on_from_there() -> None:
    history = [RULE, TASK, *rounds(12)]
    sent = sent_under("langchain-summary", size_of(history[:-2]), history[:-4], history[:-2], history)
    first, then, last = sent.requests
    assert are_same(first, history[:-4])
    assert (then[1].role, then[1].mark) == ("user", "summary")
    assert then[1].text.startswith("Here is a summary of the conversation to date:\n\nthe old way")
    assert are_same([then[0], *then[2:]], [RULE, *history[-22:-2]])
    assert last == [*then, *history[-2:]]
    assert sent.edits == [0, 1, 0]
    (cost,) = sent.summaries
    assert cost.output_tokens == 500
    assert size_of(history[2:-22]) < cost.input_tokens < size_of(history[2:-22]) + 1_000


def test_a_summary_of_langchains_is_not_traced_whatever_the_environment_says() -> None:
    policy_of("langchain-summary")
    code = (
        "from tests.workbench.replay.test_peers import *\n"
        "print(len(sent_under('langchain-summary', 100, [RULE, TASK, *rounds(12)]).summaries))"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        traced = {"LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "key", "LANGSMITH_ENDPOINT": address}
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | traced, capture_output=True, text=True)
        assert done.stdout.strip() == "1", done.stderr
        with pytest.raises(TimeoutError):
            server.accept()


def test_agent_framework_truncates_to_half_the_task_included_and_remembers_it() -> None:
    history = [RULE, TASK, *rounds(10)]
    sent = sent_under("af-truncation", size_of(history[:-2]), history[:-2], history, [*history, Message.user("go on")])
    before, after, later = sent.requests
    assert are_same(before, history[:-2])
    assert are_same(after, [RULE, *history[-len(after) + 1 :]])
    assert size_of(after) <= size_of(history[:-2]) // 2 < size_of([*after, *history[2:4]])
    assert later[:-1] == after
    assert sent.edits == [0, 1, 0]


@pytest.mark.parametrize("name", ["af-truncation-task", "af-context-window-task"])
def test_agent_framework_keeps_the_task_where_it_is_told_to(name: str) -> None:
    history = [RULE, TASK, *rounds(10), Message.user("go on"), *rounds(4)]
    without = sent_under(name.removesuffix("-task"), size_of(history) // 2, history).requests[0]
    kept = sent_under(name, size_of(history) // 2, history).requests[0]
    assert TASK not in without
    assert kept[:2] == [RULE, TASK]
    assert size_of(kept) <= size_of(history) // 2


def test_langchain_keeps_a_third_of_the_ceiling_where_it_is_told_to() -> None:
    history = [RULE, TASK, *rounds(12)]
    ceiling = size_of(history) - 1
    sent = sent_under("langchain-summary-third", ceiling, history).requests[0]
    assert sent[1].mark == "summary"
    assert ceiling // 4 < size_of(sent[2:]) <= ceiling // 3
    assert are_same(sent[2:], history[-len(sent) + 2 :])


def test_agent_framework_collapses_all_tool_calls_but_the_latest() -> None:
    history = [RULE, TASK, *rounds(4, words=2_000)]
    sent = sent_under("af-tool-results", size_of(history) - 1, history)
    ((rule, task, *collapsed, call, result),) = sent.requests
    assert are_same([rule, task, call, result], [*history[:2], *history[-2:]])
    assert [message.text[:28] for message in collapsed] == [f"[Tool results: look: seen_{n}" for n in (10, 11, 12)]
    assert all(message.text.endswith("... [truncated]]") and message.mark == "summary" for message in collapsed)


def test_agent_framework_keeps_twenty_groups_or_fewer_if_they_do_not_fit() -> None:
    history = [RULE, TASK, *rounds(30)]
    assert are_same(sent_under("af-sliding-window", size_of(history) - 1, history).requests[0], [RULE, *history[-40:]])
    tight = sent_under("af-sliding-window", size_of([RULE, *history[-10:]]), history).requests[0]
    assert are_same(tight, [RULE, *history[-10:]])


def test_what_is_not_installed_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_installed("langchain"):
        pytest.skip("langchain is not installed")

    def alone(distribution: str) -> str:
        if distribution != "langchain":
            raise PackageNotFoundError(distribution)
        return version(distribution)

    monkeypatch.setattr(peers, "version", alone)
    assert {NAMES[policy.name] for policy in peer_policies()} == {"langchain"}
    assert peers.missing_told() == (
        "peers: not installed, so left out: 'agent-framework-core>=1.20', 'maf-compaction>=0.9', 'headroom-ai>=0.42'"
    )
    monkeypatch.setattr(peers, "version", "9.9".format)
    assert peers.missing_told() == ""


def test_maf_compaction_shortens_results_between_head_and_tail() -> None:
    history = [RULE, TASK, *rounds(12, words=200)]
    sent = sent_under("maf-anchored", size_of(history) * 3 // 4, history).requests[0]
    assert are_same(sent[:2], history[:2])
    assert are_same(sent[-4:], history[-4:])
    assert size_of(sent) <= size_of(history) * 3 // 4
    cut = [message for message in sent if message.original in history and message not in history]
    assert cut
    assert all(size_of([each]) < size_of([each.original]) for each in cut)


def test_headroom_rewrites_old_results_that_say_the_same_again_and_again() -> None:
    rows = "[" + ", ".join(f'{{"id": {number}, "state": "open", "who": "nobody"}}' for number in range(300)) + "]"
    call = ToolCall("a", "look")
    history = [Message.user("find it"), Message.assistant(call), Message.tool("a", rows)]
    history += [Message("assistant", (Text("half \ud83d"),)) if at % 2 else Message.user("go on") for at in range(1, 9)]
    sent = sent_under("headroom", ROOMY, history).requests[0]
    assert are_same([*sent[:2], *sent[3:]], [*history[:2], *history[3:]])
    assert sent[2].original is history[2]
    assert size_of([sent[2]]) < size_of([history[2]]) / 2


def test_texts_of_other_messages_can_be_edited_too() -> None:
    asking = Message.assistant("I look at it.", ToolCall("a", "look"))
    fake = Fake(lambda pieces: [Left(pieces[0].id, "Brief."), Left(pieces[1].id, "Looking."), Left(pieces[2].id)])
    (sent,) = sent_by(fake.stack, [RULE, asking, Message.tool("a", "seen")]).requests
    assert [message.text for message in sent] == ["Brief.", "Looking.", ""]
    assert sent[1].calls == asking.calls
    assert [message.original for message in sent[:2]] == [RULE, asking]


def test_agent_framework_collapses_from_half_of_the_window_on() -> None:
    history = [RULE, TASK, *rounds(10)]
    assert are_same(sent_under("af-context-window", 2 * size_of(history), history).requests[0], history)
    sent = sent_under("af-context-window", 2 * size_of(history) - 2, history).requests[0]
    assert [message.mark for message in sent] == ["", ""] + ["summary"] * 6 + [""] * 8


def test_agent_framework_summarizes_and_goes_on_from_there() -> None:
    history = [RULE, TASK, *rounds(9, words=100)]
    sent = sent_under("af-summary", size_of(history[:-2]), history[:-2], history, [*history, Message.user("go on")])
    before, after, later = sent.requests
    assert are_same(before, history[:-2])
    assert after[1].mark == "summary"
    assert are_same([after[0], *after[2:]], [RULE, *history[-4:]])
    assert later[:-1] == after
    (cost,) = sent.summaries
    assert cost.output_tokens == 500
    assert size_of(history[2:-4]) < cost.input_tokens < size_of(history[2:-4]) + 1_000
