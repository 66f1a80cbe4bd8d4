"""Runs recordings through policies: each recorded answer is asked for again, with all messages before it."""

from __future__ import annotations

from collections.abc import Iterable

from chatstack.errors import InputError
from chatstack.tokens.prices import price_of
from chatstack.tokens.published import tables_loaded
from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.measuring import Gauge, Measuring
from chatstack.workbench.replay.measures.recorded import Computed
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.reading.contexts import tier_of
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.runs import Run
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.stories import PolicyStory, Story, told_message
from chatstack.workbench.replay.talks import Talk


class Replay:
    """Runs recordings through policies: one conversation after the other, each through every policy.

    Raises ``WiringError`` when a policy's stack cannot be built.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._gauge = Gauge(setup.counter)
        self._runs = [Run(policy, setup, self._gauge) for policy in setup.policies]
        self._outcome = self._empty()

    async def run(self, items: Iterable[tuple[int, Recording]]) -> Outcome:
        """Replay these recordings and return the outcome. The number of each makes it a conversation of its own."""
        self._outcome = self._empty()
        for number, recording in items:
            await self._replay(number, recording)
        return self._outcome

    async def aclose(self) -> None:
        """Close the stacks."""
        for run in self._runs:
            await run.aclose()

    def _empty(self) -> Outcome:
        names = ["everything", *(policy.name for policy in self._setup.policies)]
        everything, *figures = (
            PolicyFigures(name, spending=Spending(long_cache=self._setup.long_cache)) for name in names
        )
        return Outcome(figures, everything)

    async def _replay(self, number: int, recording: Recording) -> None:
        outcome, gauge = self._outcome, self._gauge
        try:
            talk = await self._talk_of(number, recording)
        except InputError as error:
            outcome.note(number, recording.broken(error))
            return
        outcome.conversations += 1
        outcome.priced(talk.priced_as, talk.price)
        everything = self._everything(talk, recording)
        outcome.everything.merge(everything)
        told: list[PolicyStory] = []
        for run, total in zip(self._runs, outcome.figures, strict=True):
            figures, story = await run.replay(talk)
            figures.compare(everything.spending, number, recording.id)
            if self._setup.groups:
                figures.group(talk.group_of(self._setup.groups))
            total.merge(figures)
            told.append(story)
        if self._setup.stories:
            outcome.tell([_story(number, recording, talk, told, gauge)], self._setup.stories)
        gauge.forget()

    async def _talk_of(self, number: int, recording: Recording) -> Talk:
        setup, conversation = self._setup, conversation_of(recording)
        model = setup.model or recording.model
        await tables_loaded()
        tier = tier_of(recording.calls or ())
        price = price_of(model, tier=tier)
        priced_as = model if price == price_of(model) else f"{model} ({tier})"
        if price is not None and setup.long_cache:
            price = price.with_long_cache()
        called = f"{number}:{recording.id}"
        names = {"called": called, "model": model, "priced_as": priced_as}
        return Talk(conversation, recording.calls, **names, tools=setup.tools, price=price)

    def _everything(self, talk: Talk, recording: Recording) -> PolicyFigures:
        """Return the figures of sending everything, and compare them with the recorded usage."""
        setup = self._setup
        figures = PolicyFigures("everything", 1, spending=Spending(long_cache=setup.long_cache))
        figures.spending.begin(talk.price, setup.pause_seconds)
        measuring = Measuring(self._gauge)
        for at, (position, request) in enumerate(talk.calls()):
            before = Computed.of(figures.tokens_sent, figures.spending)
            figures.add([measuring.measure(request, needs_user=talk.needs_user_at(position))], setup.window, at)
            computed = Computed.of(figures.tokens_sent, figures.spending).since(before)
            self._outcome.recorded.add(talk.recorded[position], computed, recording.model, prices_of=setup.model)
        return figures


def _story(number: int, recording: Recording, talk: Talk, told: list[PolicyStory], gauge: Gauge) -> Story:
    calls = [call for policy in told for call in policy.calls]
    return Story(
        recording.id,
        recording.file,
        recording.line,
        talk.model,
        [told_message(message, gauge.size_of(message)) for message in talk.messages],
        talk.positions,
        told,
        number,
        sum(call.lost_count + len(call.why) for call in calls),
    )
