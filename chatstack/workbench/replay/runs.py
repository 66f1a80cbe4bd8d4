"""One policy in a replay: its stack, made anew for each conversation, and the figures of its calls."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import cast

from chatstack.client.wiring import Resolver
from chatstack.context.memory.memory import ContextMemory
from chatstack.errors import ChatStackError
from chatstack.layers.summarizing import SummaryClient
from chatstack.stack.recipe import BuiltClient
from chatstack.telemetry.emission import Telemetry
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import Usage
from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.holding import HeldTexts
from chatstack.workbench.replay.measures.measuring import Gauge, Measuring
from chatstack.workbench.replay.policies import Policy
from chatstack.workbench.replay.recorder import EditLog, Recorder
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.stories import CallStory, PolicyStory
from chatstack.workbench.replay.summaries import StandInWriter
from chatstack.workbench.replay.talks import Talk
from chatstack.workbench.replay.tracing import Tracing


class _Clock:
    """The clock of a replayed stack: it advances by the pause before each call, and otherwise stands still."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Run:
    """One policy, conversation by conversation.

    Its stack is built anew for each, with services that nobody has used (memory, budgets, learnt windows), so that its
    figures depend neither on the order of conversations nor on the process that replays them; with a shared memory the
    services stay. Raises ``WiringError`` when the stack cannot be built.
    """

    def __init__(self, policy: Policy, setup: Setup, gauge: Gauge) -> None:
        self._name = policy.name
        self._setup = setup
        self._gauge = gauge
        self._measuring = Measuring(gauge)
        self._spending = Spending()
        """Of the conversation that is replayed."""
        self._recorder = Recorder(setup.window, self._report if setup.own_counter else None)
        self._writer = StandInWriter(setup.counter)
        # Passed as a service, not as a listener of a turn: a reporter among the layers opens a turn of its own.
        self._log = EditLog()
        self._clock = _Clock()
        self._services = self._unused_services()
        try:
            self._stack = replace(policy.stack(setup.window, self._recorder), memory=None)  # the replay's counts
            self._client: BuiltClient = self._stack.build(self._services)
        except ChatStackError:
            raise
        except Exception as error:
            raise _broken(policy.name, error) from error

    async def aclose(self) -> None:
        """Close the stack."""
        await self._client.aclose()

    async def replay(self, talk: Talk) -> tuple[PolicyFigures, PolicyStory]:
        """Replay all calls of one conversation, and return its figures and its story."""
        await self._begin(talk)
        figures = PolicyFigures(self._name, 1, spending=Spending(long_cache=self._setup.long_cache))
        figures.spending.begin(talk.price, self._setup.pause_seconds)
        self._spending = figures.spending
        held = talk.evidence.held()
        tracing = Tracing(talk.messages) if self._setup.stories else None
        for at, (position, request) in enumerate(talk.calls()):
            story = CallStory(refused=await self._call(request, talk.messages[position], figures))
            self._add(at, position, talk, figures, story, held)
            if tracing is not None:
                tracing.add(story, position, self._sent)
        return figures, PolicyStory(self._name, [] if tracing is None else tracing.calls)

    async def _begin(self, talk: Talk) -> None:
        await self._client.aclose()
        self._measuring = Measuring(self._gauge)
        if not self._setup.shared_memory:
            self._services = self._unused_services()
        self._recorder.stand_for(talk.model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever there is to say of the stack was said when it was first built
            self._client = self._stack.build(self._services)

    def _report(self, answer: Message) -> Usage:
        """Report the last request as a provider would whose cache is the one that is paid for."""
        sent = [self._measuring.measure(each, needs_user=False) for each in self._recorder.requests]
        parts = self._spending.cached(sent)
        return Usage(
            input_tokens=sent[-1].tokens,
            output_tokens=self._gauge.size_of(answer),
            cache_read_tokens=parts.read,
            cache_write_tokens=parts.written,
        )

    def _unused_services(self) -> Resolver:
        """Return a container of services; of those that it does not hold it makes one when it is first asked."""
        services: dict[type, object] = {
            Telemetry: self._log,
            SummaryClient: self._writer,
            ContextMemory: ContextMemory(clock=self._clock),
        }

        def resolve(kind: type) -> object:
            if kind not in services and _is_made_alone(kind):
                services[kind] = cast("type[object]", kind)()
            return services[kind]

        return resolve

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
            stream = await self._client.send(request)
            await stream.response()
        except ChatStackError as error:
            refused = type(error).__name__
            figures.refused += 1
            figures.note(refused)
        except Exception as error:
            raise _broken(self._name, error) from error
        figures.cpu_seconds += time.process_time() - started - self._recorder.cpu_seconds
        return refused

    def _add(
        self, at: int, position: int, talk: Talk, figures: PolicyFigures, story: CallStory, held: HeldTexts
    ) -> None:
        needs_user, sent = talk.needs_user_at(position), self._sent
        measured = [self._measuring.measure(each, needs_user=needs_user) for each in self._recorder.requests]
        charge = figures.add(measured, self._setup.window, at)
        figures.edits += len(self._log.edits)
        figures.latest_user_lost += sent is not None and talk.loses_latest_user(position, sent)
        for cost in self._writer.asked:
            figures.spending.add_summary(cost)
        story.lost = talk.evidence.weigh(position, sent, figures.grounding, held)
        story.tokens = measured[-1].tokens if measured else 0
        story.cached, story.broken = charge.cached, charge.is_broken
        story.over = any(each.tokens > self._setup.window for each in measured)
        story.why = list(self._log.edits)


def _is_made_alone(kind: type) -> bool:
    """Return True if a stack would share one instance of the class, and make it without parts."""
    return getattr(kind, "shared_by_stack", False) and not hasattr(kind, "from_parts")


def _broken(policy: str, error: Exception) -> ChatStackError:
    """Return the error for an exception that no layer should raise: the replay cannot go on."""
    return ChatStackError(f"policy {policy}: a layer raised {type(error).__name__}: {error}")
