"""What clearing and condensing promise for every conversation: through real layers, over generated histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindowGuard,
    Message,
    ToolCall,
    ToolResult,
    ToolResultClearer,
)
from chatstack.context.edits.repairing import repair_plan
from chatstack.context.edits.units import units_of
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import is_new, leftovers, refusals, size
from tests.context.test_pruning_properties import CountingCounter, cuts, finished, protected
from tests.histories import PROPERTY, SOME, decoded_again, histories, tidy_histories

LIMITS = st.sampled_from([60, 120, 250])
GUARD = 100_000


def clearer(stack: ChatStack, limit: int) -> ChatStack:
    return stack.use(ToolResultClearer, trigger={"tokens": limit}, keep={"messages": 1}, clear_tool_inputs=True)


def paying(stack: ChatStack, limit: int) -> ChatStack:
    return stack.use(
        ToolResultClearer,
        trigger={"messages": 4},
        keep={"messages": 1},
        clear_at_least="pays",
        max_context_tokens=limit,
    )


def condenser(stack: ChatStack, limit: int) -> ChatStack:
    return stack.use(ClearThenDrop(limit, mentions=0.1))


def guarded_clearer(stack: ChatStack, limit: int) -> ChatStack:
    return guarded(clearer(stack, limit), limit)


def guarded_condenser(stack: ChatStack, limit: int) -> ChatStack:
    return guarded(condenser(stack, limit), limit)


def all_of_them(stack: ChatStack, limit: int) -> ChatStack:
    return guarded(condenser(clearer(stack, limit // 2), limit), limit)


def guarded(stack: ChatStack, limit: int) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True)


class CountsNothing(CharCounter):
    """What a provider counts by that reports no usage."""

    def count_message(self, message: Message) -> int:
        return 0

    def count_options(self, options: ChatOptions) -> int:
        return 0


Recipe = Callable[[ChatStack, int], ChatStack]
RECIPES: list[Recipe] = [clearer, paying, condenser, guarded_clearer, guarded_condenser, all_of_them]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)


@dataclass
class Edited:
    """Context layers over a scripted model, and what they sent and said."""

    recipe: Recipe
    limit: int
    memory: ContextMemory = field(default_factory=ContextMemory)

    def __post_init__(self) -> None:
        self.model = ScriptedClient()
        self.capture = TelemetryCapture()
        stack = ChatStack(self.model, memory=self.memory, trace_model_calls=False)
        self.client = self.recipe(stack, self.limit).build(self.capture.resolve)

    def send(self, messages: Sequence[Message], answer: Message | str = "fine") -> list[Message]:
        self.model.answers = [answer]
        finished(self.client.get_response(messages))
        return list(self.model.requests[-1].messages)

    @property
    def edits(self) -> int:
        return sum(span.name.startswith("compact_context") for span in self.capture.spans if not _is_warning(span))


def _is_warning(span: object) -> bool:
    return "chatstack.warning.code" in getattr(span, "attributes", {})


def repaired(messages: Sequence[Message]) -> list[Message]:
    plan = repair_plan(messages)
    return list(messages if plan is None else plan.apply(messages))


@every_recipe
@SOME
@given(messages=histories(), limit=LIMITS)
def test_what_is_sent_has_no_orphans_and_no_plan_was_bad(recipe: Recipe, messages: list[Message], limit: int) -> None:
    assume(any(each.role in ("user", "system") and not each.results for each in messages))  # else nothing may be left
    edited = Edited(recipe, limit)
    sent = edited.send(messages)
    assert leftovers(sent) == {}
    assert refusals(sent) == []
    assert "plan_rejected" not in edited.capture.warnings


@every_recipe
@SOME
@given(messages=histories(), limit=LIMITS)
def test_no_message_that_must_stay_is_lost_or_changed(recipe: Recipe, messages: list[Message], limit: int) -> None:
    # A summary may be shortened where nothing else is left.
    sent = {id(each.original if each.mark == "summary" else each) for each in Edited(recipe, limit).send(messages)}
    must_stay = [message for message in protected(messages) if not message.results and not message.calls]
    assert [message for message in must_stay if id(message) not in sent] == []


@every_recipe
@SOME
@given(messages=histories(), limit=LIMITS)
def test_what_was_not_touched_stays_the_same_objects_in_order(
    recipe: Recipe, messages: list[Message], limit: int
) -> None:
    came = repaired(messages)
    assume(came)
    here = {id(message): at for at, message in enumerate(came)}
    kept = [here[id(message)] for message in Edited(recipe, limit).send(messages) if id(message) in here]
    assert kept == sorted(kept)
    before = {message.original for message in came}
    for message in Edited(recipe, limit).send(messages):
        assert id(message) in here or message.original in before or message.mark == "repair"


@every_recipe
@SOME
@given(messages=histories(), limit=LIMITS)
def test_the_callers_messages_are_equal_and_the_same_afterwards(
    recipe: Recipe, messages: list[Message], limit: int
) -> None:
    objects, copy = [*messages], decoded_again(messages)
    edited = Edited(recipe, limit)
    edited.send(messages)
    edited.send([*messages, Message.user("more")])
    assert messages == copy
    assert all(one is other for one, other in zip(messages, objects, strict=True))
    assert all(message.original is message and message.annotation is None for message in messages)


@every_recipe
@SOME
@given(messages=histories(), limit=LIMITS)
def test_calls_and_results_keep_their_ids_names_and_order(recipe: Recipe, messages: list[Message], limit: int) -> None:
    assume(repaired(messages))
    came = [(part.id, part.name) for message in repaired(messages) for part in message.calls]
    left = [(part.id, part.name) for message in Edited(recipe, limit).send(messages) for part in message.calls]
    rest = iter(came)
    assert all(any(each == other for other in rest) for each in left)


@every_recipe
@SOME
@given(messages=tidy_histories(), limit=LIMITS)
def test_a_request_that_fits_is_sent_as_it_is(recipe: Recipe, messages: list[Message], limit: int) -> None:
    if size(messages) < limit // 2 and recipe is not paying:
        edited = Edited(recipe, limit)
        assert [*map(id, edited.send(messages))] == [*map(id, messages)]
        assert edited.edits == 0


@every_recipe
@SOME
@given(messages=tidy_histories(min_size=5), limit=LIMITS, fresh=st.booleans())
def test_each_request_goes_on_from_the_last_one_unless_it_was_edited(
    recipe: Recipe, messages: list[Message], limit: int, fresh: bool
) -> None:
    edited = Edited(recipe, limit)
    before: list[Message] = []
    seen = edits = 0
    for end in cuts(messages):
        history = decoded_again(messages[:end]) if fresh else messages[:end]
        sent = edited.send(history)
        if edited.edits == edits:
            assert sent == before + history[seen:]
        before, seen, edits = sent, end, edited.edits


@every_recipe
@SOME
@given(messages=tidy_histories(min_size=5), limit=LIMITS)
def test_fresh_but_equal_messages_are_edited_the_same_way_as_the_same_objects(
    recipe: Recipe, messages: list[Message], limit: int
) -> None:
    same, fresh = Edited(recipe, limit), Edited(recipe, limit)
    for end in cuts(messages):
        assert fresh.send(decoded_again(messages[:end])) == same.send(messages[:end])
    assert fresh.edits == same.edits
    assert fresh.capture.warnings == same.capture.warnings


@every_recipe
@SOME
@given(messages=tidy_histories(min_size=5), limit=LIMITS)
def test_a_conversation_that_was_forgotten_is_sent_as_if_it_was_not(
    recipe: Recipe, messages: list[Message], limit: int
) -> None:
    """The strategies are run over the requests that the history's own answers were given to. What a provider reports
    is forgotten with the rest, so here it reports nothing."""
    long, short = Edited(recipe, limit), Edited(recipe, limit, ContextMemory(max_messages=1))
    long.model.counter = short.model.counter = CountsNothing()
    for end in answered(messages):
        expected = long.send(messages[:end], messages[end])
        assert short.send(decoded_again(messages[:end]), messages[end]) == expected
        short.send([Message.user(f"another conversation {end}")])


def answered(messages: Sequence[Message]) -> list[int]:
    """The lengths of the requests that a history tells of: each assistant message in it was the answer to one."""
    user = next((at for at, each in enumerate(messages) if each.role == "user" and not each.results), len(messages))
    return [at for at in range(user + 1, len(messages)) if messages[at].role == "assistant" and not messages[at].mark]


@PROPERTY
@given(tidy_histories(), LIMITS)
def test_a_clearer_leaves_what_the_model_has_not_seen_and_errors_alone(messages: list[Message], limit: int) -> None:
    failed = [
        Message.assistant("trying", ToolCall("failed", "look")),
        Message.tool("failed", "no sky " * 40, is_error=True),
    ]
    new = [Message.assistant("looking", ToolCall("new", "look")), Message.tool("new", "sun " * 40)]
    sent = Edited(clearer, limit).send([*failed, *messages, *new])
    assert sent[1] is failed[1]
    assert sent[-1] is new[1]


@PROPERTY
@given(histories(), LIMITS)
def test_a_clearer_changes_nothing_but_results_and_arguments(messages: list[Message], limit: int) -> None:
    came = repaired(messages)
    assume(came)
    sent = Edited(clearer, limit).send(messages)
    assert len(sent) == len(came)
    for before, after in zip(came, sent, strict=True):
        assert (before.role, before.pinned, before.mark) == (after.role, after.pinned, after.mark)
        for old, new in zip(before.parts, after.parts, strict=True):
            assert type(old) is type(new)
            if isinstance(old, ToolResult) and isinstance(new, ToolResult) and old != new:
                assert (new.output, new.call_id, new.name) == ("[cleared]", old.call_id, old.name)
            elif isinstance(old, ToolCall) and isinstance(new, ToolCall) and old != new:
                assert (new.arguments, new.id, new.name) == ("{}", old.id, old.name)
            else:
                assert old == new


@PROPERTY
@given(tidy_histories(), LIMITS)
def test_condensed_it_fits_or_nothing_more_may_go(messages: list[Message], limit: int) -> None:
    sent = Edited(condenser, limit).send(messages)
    if size(messages) <= limit:
        assert [*map(id, sent)] == [*map(id, messages)]
    if size(sent) > limit:
        must_stay = set(map(id, protected(messages)))
        for unit in units_of(sent):
            assert unit.is_open or any(id(sent[at]) in must_stay or is_new(sent, at) for at in unit.positions)


@pytest.mark.slow
@PROPERTY
@given(tidy_histories(min_size=5), LIMITS)
def test_condensed_on_every_call_it_always_fits_or_the_guard_says_so(messages: list[Message], limit: int) -> None:
    edited = Edited(guarded_condenser, limit)
    for end in cuts(messages):
        sent = edited.send(messages[:end])
        if size(sent) > limit:
            assert "context_irreducible" in edited.capture.warnings


@PROPERTY
@given(tidy_histories(min_size=5), LIMITS, st.booleans())
def test_a_clearer_counts_each_message_of_the_caller_once(messages: list[Message], limit: int, fresh: bool) -> None:
    counter = CountingCounter()
    model = ScriptedClient()
    client = (
        ChatStack(model)
        .use(ToolResultClearer, trigger={"tokens": limit}, keep={"messages": 1}, counter=counter)
        .use(ContextWindowGuard, max_context_tokens=GUARD, counter=counter)
        .build()
    )
    for end in cuts(messages):
        finished(client.get_response(decoded_again(messages[:end]) if fresh else messages[:end]))
    asked = [(message.role, message.parts, message.pinned, message.extra_json) for message in counter.asked]
    assert len(asked) == len(set(asked))


def test_the_limits_are_such_that_every_recipe_has_something_to_do() -> None:
    rounds = [
        message
        for number in range(60)
        for message in (
            Message.assistant("looking", ToolCall(f"c{number}", "look", '{"at": "the whole of the sky"}')),
            Message.tool(f"c{number}", f"{number} " + "sun " * 30, name="look"),
        )
    ]
    for recipe in RECIPES:
        for limit in (60, 120, 250):
            edited = Edited(recipe, limit)
            sent = edited.send([Message.user("task"), *rounds])
            assert size(sent) < size(rounds)
            assert edited.edits
            assert isinstance(edited.client.inner, ToolResultClearer) == (recipe not in (condenser, guarded_condenser))
