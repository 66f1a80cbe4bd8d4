"""The core of context layers, driven without an event loop: its questions are answered by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from chatstack import AgentState, ChatStack, StackContextManager
from chatstack.client.stream import ChatStream
from chatstack.context.passage import Send
from chatstack.context.requests import asking
from chatstack.context.requests.asking import Aside, Asking, Question
from chatstack.context.requests.attempts import WaitForTurn
from chatstack.context.run import ContextRun
from chatstack.context.summaries.kept_summaries import FindSummary, KeepSummary
from chatstack.context.summaries.writing import NotWrittenError, Writing, Written
from chatstack.errors import ContextOverflowError
from chatstack.layers.clearer import ToolResultClearer
from chatstack.layers.guard import ContextWindowGuard
from chatstack.layers.summarizer import Summarizer
from chatstack.testing import ScriptedClient
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, Usage

Answer = Callable[[Any], object]


class Driver:
    """Answers the questions of a core, by their types, and notes them."""

    def __init__(self, answers: Mapping[type, Answer]) -> None:
        self.answers = answers
        self.asked: list[Question[object]] = []
        self.aside = 0

    def run(self, core: Asking[ChatStream]) -> ChatStream:
        step = core.__next__
        while True:
            try:
                question = step()
            except StopIteration as end:
                stream: ChatStream = end.value
                return stream
            if isinstance(question, Aside):
                self.aside += 1
                step = partial(core.send, question.work())
            else:
                self.asked.append(question)
                step = self._answer(core, question)

    def _answer(self, core: Asking[ChatStream], question: Question[object]) -> Callable[[], Question[object]]:
        try:
            answer = self.answers[type(question)](question)
        except Exception as error:  # noqa: BLE001 - it is raised where the question was asked
            raised = error
            return lambda: core.throw(raised)
        return lambda: core.send(answer)

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.asked]

    def sent(self) -> list[ChatRequest]:
        return [each.request for each in self.asked if isinstance(each, Send)]


ANSWER = Message.assistant("I look around.")


def started(question: Send) -> ChatStream:
    """Begin an answer."""
    stream = ChatStream(Source())
    stream.sent = question.request
    return stream


class Source:
    """The updates of one answer, there at once."""

    def __init__(self) -> None:
        self.updates = [ChatUpdate(message_done=ANSWER, usage=Usage(1_000, 5), finish_reason="stop")]

    async def __anext__(self) -> ChatUpdate:
        if not self.updates:
            raise StopAsyncIteration
        return self.updates.pop()

    async def aclose(self) -> None: ...


def read(stream: ChatStream) -> None:
    """Read an answer to its end, without an event loop."""
    with pytest.raises(StopIteration):
        stream.response().send(None)


def history(rounds: int) -> tuple[Message, ...]:
    messages = [Message.user("Look around.")]
    for number in range(rounds):
        call = ToolCall(f"c{number}", "look", "{}")
        messages += [Message.assistant(call), Message.tool(call.id, f"There is a tree, {number}. " * 40, name="look")]
    return (*messages, Message.assistant("I am there."), Message.user("And now?"))


def written(_: Writing) -> Written:
    return Written("There are trees.", Usage(100, 10), "small")


def run_of(*, clears: bool = False) -> ContextRun:
    guard = ContextWindowGuard(ScriptedClient(), max_context_tokens=1_500, prune_on_overflow=True)
    summarizer = Summarizer(guard, max_tokens=1_400, summary_client=ScriptedClient())
    clearer = ToolResultClearer(summarizer, trigger={"tokens": 1_000 if clears else 90_000})
    return ContextRun.of(clearer)


def refusing(times: int) -> Answer:
    refusals = [ContextOverflowError(1_300, 900) for _ in range(times)]

    def answer(question: Send) -> ChatStream:
        if refusals:
            raise refusals.pop()
        return started(question)

    return answer


WRITES: dict[type, Answer] = {
    Send: started,
    WaitForTurn: lambda _: lambda: None,
    FindSummary: lambda _: None,
    KeepSummary: lambda each: each.summary,
    Writing: written,
}


def test_what_fits_is_sent_as_it_came_and_nothing_is_asked() -> None:
    driver, request = Driver({Send: started}), ChatRequest(history(2))
    driver.run(run_of().passage(request).core())
    assert driver.sent() == [request]
    assert driver.sent()[0].messages is request.messages


def test_what_is_cleared_enough_asks_for_no_summary() -> None:
    driver = Driver({Send: started})
    driver.run(run_of(clears=True).passage(ChatRequest(history(8))).core())
    (sent,) = driver.sent()
    assert sum("cleared" in result.text for message in sent.messages for result in message.results) == 5


def test_a_summary_is_asked_for_kept_and_sent() -> None:
    driver = Driver(WRITES)
    driver.run(run_of().passage(ChatRequest(history(8))).core())
    assert driver.kinds() == ["FindSummary", "WaitForTurn", "FindSummary", "Writing", "KeepSummary", "Send"]
    (sent,) = driver.sent()
    assert [message.mark for message in sent.messages].count("summary") == 1


def test_where_the_summary_fails_the_guard_prunes_what_is_sent() -> None:
    def fails(writing: Writing) -> Written:
        raise NotWrittenError("no answer", "timeout", writing.usage, is_outage=True)

    driver = Driver({**WRITES, Writing: fails})
    driver.run(run_of().passage(ChatRequest(history(8))).core())
    (sent,) = driver.sent()
    assert "summary" not in [message.mark for message in sent.messages]
    assert len(sent.messages) < len(history(8))


@pytest.mark.parametrize("times", [1, 2])
def test_a_refusal_is_an_event_and_less_is_sent_after_it(times: int) -> None:
    driver, came = Driver({**WRITES, Send: refusing(times)}), ChatRequest(history(4))
    driver.run(run_of().passage(came).core())
    sizes = [len(request.messages) for request in driver.sent()]
    assert len(sizes) == times + 1
    assert sizes[0] == len(came.messages)
    assert sorted(set(sizes), reverse=True) == sizes


def test_a_refusal_that_nothing_helps_against_comes_out() -> None:
    driver = Driver({**WRITES, Send: refusing(9)})
    with pytest.raises(ContextOverflowError):
        driver.run(run_of().passage(ChatRequest(history(4))).core())
    assert 1 < len(driver.sent()) <= 4


def test_another_error_goes_through_all_layers_and_nothing_is_tried_again() -> None:
    def breaks(_: Send) -> ChatStream:
        raise ConnectionError("gone")

    driver = Driver({**WRITES, Send: breaks})
    with pytest.raises(ConnectionError):
        driver.run(run_of().passage(ChatRequest(history(4))).core())
    assert len(driver.sent()) == 1


def test_what_was_decided_is_bound_to_the_answer_and_sent_again() -> None:
    driver, run, came = Driver(WRITES), run_of(), history(8)
    read(driver.run(run.passage(ChatRequest(came)).core()))
    driver.asked.clear()
    driver.run(run.passage(ChatRequest((*came, ANSWER, Message.user("Go on.")))).core())
    assert driver.kinds() == ["Send"]
    (sent,) = driver.sent()
    assert [message.mark for message in sent.messages].count("summary") == 1
    assert sent.messages[-2:] == (ANSWER, Message.user("Go on."))


def pruning_run(calls: int) -> tuple[ContextRun, ChatRequest]:
    """A guard before a long history that nobody has seen: it has to be pruned several times."""
    guard = ContextWindowGuard(ScriptedClient(), max_context_tokens=1_500, prune_on_overflow=True)
    return ContextRun.of(guard), ChatRequest(history(calls))


def test_long_work_is_done_aside_and_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run, came = pruning_run(60)
    straight = Driver({Send: started})
    straight.run(run.passage(came).core())
    monkeypatch.setattr(asking, "MANY", 10)
    run, came = pruning_run(60)
    apart = Driver({Send: started})
    apart.run(run.passage(came).core())
    assert straight.aside == 0
    assert apart.aside == 4, "to count it, to say how it ends, to find what was pruned, and to check that"
    assert apart.sent() == straight.sent()


def test_for_a_synchronous_caller_it_is_done_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MANY", 10)
    manager = StackContextManager(
        ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=1_500, prune_on_overflow=True)
    )
    came = AgentState(list(history(60)))
    assert 0 < len(manager.trim_context(came).messages) < len(came.messages)
