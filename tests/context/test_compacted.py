"""What a provider has compacted is sent as its compaction: for any history, and the same way as it grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chatstack import Context, ContextMemory, Message, Plan, ProviderItem, ToolCall
from chatstack.client.protocol import ProviderInfo
from chatstack.context.edits.verifier import problems
from chatstack.context.histories.compacted import without_compacted
from chatstack.values.native import compaction_in
from tests.context.strictness import context_of, leftovers
from tests.histories import PROPERTY, histories, tidy_histories

THEIRS = ProviderItem("theirs", '{"type":"compaction","encrypted_content":"x"}')
AT_A, AT_B = '{"openai-responses":{"server":"a"}}', '{"openai-responses":{"server":"b","status":null}}'


def left(messages: list[Message], provider: str = "theirs", server: str = "") -> list[Message]:
    given = tuple(messages)
    reader = ProviderInfo(name=provider, server_address=server)
    return list(without_compacted(given, ContextMemory().recognise(given), reader))


def compacted(messages: list[Message], at: int) -> list[Message]:
    """The same history with a compaction in the answer nearest to that place."""
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    place = answers[at % len(answers)]
    message = messages[place]
    parts = (THEIRS, *message.parts)
    return [*messages[:place], Message("assistant", parts, pinned=message.pinned), *messages[place + 1 :]]


def has_answer(messages: list[Message]) -> bool:
    return any(message.role == "assistant" for message in messages)


@PROPERTY
@given(histories().filter(has_answer), st.integers(0, 50))
def test_nothing_is_lost_that_no_layer_may_drop_and_no_orphan_is_made(messages: list[Message], at: int) -> None:
    came = compacted(messages, at)
    found = left(came)
    assert not leftovers(found) - leftovers(came)
    border = next(place for place, message in enumerate(came) if compaction_in(message) is not None)
    stay = [each for place, each in enumerate(came) if each.role == "system" or each.pinned or place >= border]
    ids = list(map(id, found))
    assert all(id(each) in ids for each in stay)
    context: Context = context_of(came)
    if context.latest_user is not None:
        assert id(came[context.latest_user]) in ids
    assert [each for each in map(id, came) if each in ids] == ids


@PROPERTY
@given(tidy_histories().filter(has_answer), st.integers(0, 50))
def test_a_history_that_grows_is_sent_with_the_same_beginning(messages: list[Message], at: int) -> None:
    came = compacted(messages, at)
    memory = ContextMemory()
    before: list[Message] = []
    border = next(place for place, message in enumerate(came) if compaction_in(message) is not None)
    for length in range(border + 1, len(came) + 1):
        given = tuple(came[:length])
        if any(each.role == "system" for each in given[1:]):
            return
        found = list(without_compacted(given, memory.recognise(given), ProviderInfo(name="theirs")))
        assert found[: len(before)] == before
        before = found


@PROPERTY
@given(tidy_histories().filter(has_answer), st.integers(0, 50))
def test_the_compaction_of_another_provider_stands_for_nothing(messages: list[Message], at: int) -> None:
    came = compacted(messages, at)
    assert left(came, "others") == came


def test_the_newest_compaction_counts() -> None:
    answer = Message("assistant", (THEIRS,))
    talk = [Message.user("a"), answer, Message.user("b"), answer, Message.user("c")]
    assert left(talk) == talk[2:]


def test_the_newest_one_that_the_server_is_sent_back_counts() -> None:
    at_a, at_b, unnamed = (Message("assistant", (THEIRS,), extra_json=each) for each in (AT_A, AT_B, '{"x":{}}'))
    talk = [Message.user("1"), unnamed, Message.user("2"), at_a, Message.user("3"), at_b, Message.user("4")]
    assert [left(talk, server=each) for each in ("a", "b", "c", "")] == [talk[2:], talk[4:], talk, talk[4:]]


def test_a_call_that_is_answered_behind_the_compaction_stays() -> None:
    call = Message.assistant(ToolCall("1", "look"))
    late = Message.tool("1", "found")
    talk = [Message.user("old"), Message.assistant("x"), Message.user("a"), call, Message("assistant", (THEIRS,)), late]
    assert left(talk) == talk[2:]


def test_the_verifier_refuses_a_plan_that_loses_a_compaction() -> None:
    answer = Message("assistant", (THEIRS, *Message.assistant("long " * 50).parts))
    context = context_of([Message.user("a"), Message.assistant("b" * 99), answer, Message.user("c")])
    assert problems(Plan(strategy="any", reason="", drop=(2,)), context) == ("the provider's compaction at 2 is lost",)
    shorter = answer.edited(parts=Message.assistant("short").parts)
    assert problems(Plan(strategy="any", reason="", replace=((2, shorter),)), context) == (
        "the provider's compaction at 2 is lost",
    )
    assert problems(Plan(strategy="any", reason="", drop=(1,)), context) == ()
    with_it = answer.edited(parts=(THEIRS, *Message.assistant("short").parts))
    assert problems(Plan(strategy="any", reason="", replace=((2, with_it),)), context) == ()


def test_the_verifier_lets_a_compaction_go_that_a_later_one_covers() -> None:
    answer = Message("assistant", (THEIRS, *Message.assistant("long " * 50).parts))
    context = context_of([Message.user("a"), answer, Message.user("b"), answer, Message.user("c")])
    shorter = answer.edited(parts=Message.assistant("short").parts)
    for at, problem in ((1, ()), (3, ("the provider's compaction at 3 is lost",))):
        assert problems(Plan(strategy="any", reason="", drop=(at,)), context) == problem
        assert problems(Plan(strategy="any", reason="", replace=((at, shorter),)), context) == problem
