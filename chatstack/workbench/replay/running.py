"""Runs recordings through policies: each recorded answer is asked for again, with all messages before it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass

from chatstack.context.memory import ContextMemory
from chatstack.errors import ChatStackError, InputError
from chatstack.layers.summarizing import SummaryClient
from chatstack.stack.recipe import BuiltClient
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.prices import Price, price_of
from chatstack.tokens.published import tables_loaded
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool
from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.grounding import Evidence
from chatstack.workbench.replay.measures.measuring import Gauge, WireCounter
from chatstack.workbench.replay.measures.recorded import Computed
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import Policy
from chatstack.workbench.replay.reading.forms import Conversation, conversation_of
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.reading.usages import RecordedCall
from chatstack.workbench.replay.recorder import EditLog, Recorder
from chatstack.workbench.replay.stories import CallStory, PolicyStory, Story, Tracing, told_message
from chatstack.workbench.replay.summaries import StandInWriter


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a replay. They can be pickled, as they go to every process.

    ``window`` is the ceiling of every policy, in tokens of ``counter``. ``tools``, if any, go out with every call,
    instead of the tools that a recording declares. ``model`` is the model whose prices count, instead of the recorded
    ones. ``pause_seconds`` pass before each call: a prompt cache with a shorter lifetime is cold then. ``long_cache``
    means caches that live an hour, and the price of writing to those. ``stories`` is the number of conversations
    reported call by call.
    """

    policies: tuple[Policy, ...]
    _: KW_ONLY
    window: int
    counter: WireCounter
    tools: tuple[DeclaredTool, ...] = ()
    model: str = ""
    pause_seconds: float = 0.0
    long_cache: bool = False
    stories: int = 0

    @property
    def tools_tokens(self) -> int:
        """Size of ``tools`` in tokens."""
        return self.counter.count_options(ChatOptions(tools=self.tools)) if self.tools else 0


class Replay:
    """Runs recordings through policies: one conversation after the other, each through every policy.

    Raises ``WiringError`` when a policy's stack cannot be built.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._gauge = Gauge(setup.counter)
        self._runs = [_Run(policy, setup) for policy in setup.policies]
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
            await run.client.aclose()

    def _empty(self) -> Outcome:
        names = ["everything", *(policy.name for policy in self._setup.policies)]
        everything, *figures = (
            PolicyFigures(name, spending=Spending(long_cache=self._setup.long_cache)) for name in names
        )
        return Outcome(figures, everything)

    async def _replay(self, number: int, recording: Recording) -> None:
        setup, outcome, gauge = self._setup, self._outcome, self._gauge
        try:
            conversation = conversation_of(recording)
            talk = _Talk(conversation, recording, setup, f"{number}:{recording.id}")
        except InputError as error:
            outcome.note(number, recording.broken(error))
            return
        outcome.conversations += 1
        model = setup.model or recording.model
        await tables_loaded()
        price = price_of(model)
        if price is not None and setup.long_cache:
            price = price.with_long_cache()
        outcome.priced(model, price)
        talk.price = price
        outcome.everything.conversations += 1
        outcome.everything.spending.begin(price, setup.pause_seconds)
        everything = outcome.everything
        for at, (position, request) in enumerate(talk.calls()):
            measured = gauge.measure(request, needs_user=talk.needs_user_at(position))
            before = Computed.of(everything.tokens_sent, everything.spending)
            everything.add([measured], setup.window, at)
            computed = Computed.of(everything.tokens_sent, everything.spending).since(before)
            outcome.recorded.add(talk.recorded[position], computed, recording.model, prices_of=setup.model)
        told = [
            await run.replay(talk, gauge, figures) for run, figures in zip(self._runs, outcome.figures, strict=True)
        ]
        if setup.stories:
            outcome.tell([_story(number, recording, model, talk, told, gauge)], setup.stories)
        gauge.forget()


class _Talk:
    """One conversation, as input for every policy."""

    def __init__(self, conversation: Conversation, recording: Recording, setup: Setup, called: str) -> None:
        self.messages = conversation.messages
        self.price: Price | None = None
        options = conversation.options
        self._options: ChatOptions = options.but(tools=setup.tools) if setup.tools else options
        self.evidence = Evidence(self.messages, options.instructions)
        self._called = called
        answers = [at for at, each in enumerate(self.messages) if each.role == "assistant"]
        calls = (RecordedCall(),) * len(answers) if recording.calls is None else recording.calls
        if len(calls) != len(answers):
            raise InputError(f"holds {len(answers)} answers, where {len(calls)} were told from its lines")
        self.recorded = {at: call for at, call in zip(answers, calls, strict=True) if at and call is not None}
        self.positions = list(self.recorded)
        users = (at for at, each in enumerate(self.messages) if each.role == "user")
        self._first_user = next(users, len(self.messages))

    def calls(self) -> Iterator[tuple[int, ChatRequest]]:
        """Yield the position of each answer that is a call of it, and the request for it: all messages before it."""
        for position in self.positions:
            yield position, ChatRequest(self.messages[:position], self._options, self._called)

    def needs_user_at(self, position: int) -> bool:
        """Return True if there is a user message before that position."""
        return self._first_user < position


def _broken(policy: str, error: Exception) -> ChatStackError:
    """Return the error for an exception that no layer should raise: the replay cannot go on."""
    return ChatStackError(f"policy {policy}: a layer raised {type(error).__name__}: {error}")


class _Clock:
    """The clock of a replayed stack: it advances by the pause before each call, and otherwise stands still."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class _Run:
    """One policy with its stack, built once."""

    def __init__(self, policy: Policy, setup: Setup) -> None:
        self._name = policy.name
        self._setup = setup
        self._recorder = Recorder(setup.window)
        self._writer = StandInWriter(setup.counter)
        # Passed as a service, not as a listener of a turn: a reporter among the layers opens a turn of its own.
        self._log = EditLog()
        self._clock = _Clock()
        self._memory = ContextMemory(clock=self._clock)
        services: dict[type, object] = {
            Telemetry: self._log,
            SummaryClient: self._writer,
            ContextMemory: self._memory,
        }
        try:
            self.client: BuiltClient = policy.stack(setup.window, self._recorder).build(services.__getitem__)
        except ChatStackError:
            raise
        except Exception as error:
            raise _broken(policy.name, error) from error

    async def replay(self, talk: _Talk, gauge: Gauge, figures: PolicyFigures) -> PolicyStory:
        """Replay all calls of one conversation."""
        # Start with an empty memory: decisions for conversations that begin alike would depend on the process.
        self._memory.forget()
        figures.conversations += 1
        figures.spending.begin(talk.price, self._setup.pause_seconds)
        tracing = Tracing(talk.messages) if self._setup.stories else None
        for at, (position, request) in enumerate(talk.calls()):
            story = CallStory(refused=await self._call(request, talk.messages[position], figures))
            self._add(at, position, talk, gauge, figures, story)
            if tracing is not None:
                tracing.add(story, position, self._sent)
        return PolicyStory(self._name, [] if tracing is None else tracing.calls)

    @property
    def _sent(self) -> ChatRequest | None:
        """The last request of a call: its answer is the one that went back."""
        return self._recorder.requests[-1] if self._recorder.requests else None

    async def _call(self, request: ChatRequest, answer: Message, figures: PolicyFigures) -> str:
        """Replay one call; return the kind of error with which the stack refused it, or ""."""
        self._recorder.expect(answer)
        self._log.edits.clear()
        self._writer.asked.clear()
        self._clock.seconds += self._setup.pause_seconds
        refused = ""
        started = time.process_time()
        try:
            stream = await self.client.send(request)
            await stream.response()
        except ChatStackError as error:
            refused = type(error).__name__
            figures.refused += 1
            figures.note(refused)
        except Exception as error:
            raise _broken(self._name, error) from error
        figures.cpu_seconds += time.process_time() - started - self._recorder.cpu_seconds
        return refused

    def _add(self, at: int, position: int, talk: _Talk, gauge: Gauge, figures: PolicyFigures, story: CallStory) -> None:
        needs_user = talk.needs_user_at(position)
        measured = [gauge.measure(each, needs_user=needs_user) for each in self._recorder.requests]
        charge = figures.add(measured, self._setup.window, at)
        figures.edits += len(self._log.edits)
        for cost in self._writer.asked:
            figures.spending.add_summary(cost)
        story.lost = talk.evidence.weigh(position, self._sent, figures.grounding)
        story.tokens = measured[-1].tokens if measured else 0
        story.cached, story.broken = charge.cached, charge.is_broken
        story.over = any(each.tokens > self._setup.window for each in measured)
        story.why = list(self._log.edits)


def _story(number: int, recording: Recording, model: str, talk: _Talk, told: list[PolicyStory], gauge: Gauge) -> Story:
    calls = [call for policy in told for call in policy.calls]
    return Story(
        recording.id,
        recording.file,
        recording.line,
        model,
        [told_message(message, gauge.size_of(message)) for message in talk.messages],
        talk.positions,
        told,
        number,
        sum(call.lost_count + len(call.why) for call in calls),
    )
