"""The part of the layer contract about requests and answers."""

from __future__ import annotations

import asyncio

import msgspec

from chatstack.client.protocol import LAYER_KINDS, ChatClient, chain, layer_kind
from chatstack.client.stream import ChatStream
from chatstack.context.edits.pairing import pair
from chatstack.testing.capture import TelemetryCapture
from chatstack.testing.conversations import EchoClient, numbered, numbers_in
from chatstack.testing.exchanges import SECONDS, Fronted, LayerUnderTest, same
from chatstack.testing.outages import silent_telemetry
from chatstack.testing.scripted import Answer, ScriptedClient
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatOptions, ChatRequest, OutputSchema, ToolDeclaration
from chatstack.values.responses import ChatResponse, ChatUpdate, Usage

_CONVERSATIONS = 1_000
_OPTIONS = ChatOptions(
    model="another",
    instructions="be brief",
    tools=(ToolDeclaration("elsewhere", "run by the caller"),),
    tool_choice="auto",
    parallel_tool_calls=False,
    max_tokens=9,
    temperature=0.5,
    top_p=0.9,
    stop=("END",),
    seed=7,
    reasoning_effort="low",
    output_schema=OutputSchema("answer", '{"type": "object"}'),
    extra={"service_tier": "flex"},
)


class MessageContract(LayerUnderTest):
    """Streaming and not, the caller's messages, orphans, many conversations at once."""

    def test_it_says_what_it_is_to_the_layers_around_it(self) -> None:
        inner = ScriptedClient()
        layer = self.make(inner, silent_telemetry())
        if all(each is not inner for each in chain(layer)):
            raise AssertionError("nobody gets to the client inside: keep it in an attribute named inner")
        kind = layer_kind(layer)
        if not kind:
            raise AssertionError(f"no kind: write kind: ClassVar[LayerKind] = ..., one of {', '.join(LAYER_KINDS)}")
        if kind == "plain" and self.edits:
            raise AssertionError('kind is "plain": a layer that changes which messages are sent is a "context" layer')

    def test_streaming_and_not_streaming_are_the_same(self) -> None:
        for name, history, answers in self.cases():
            plain, streamed = (self._exchange(history, answers, stream=stream) for stream in (False, True))
            for what in plain:
                same(streamed[what], plain[what], f"{name}: {what}, streaming against not streaming")

    def _exchange(
        self, history: tuple[Message, ...], answers: tuple[Answer, ...], *, stream: bool
    ) -> dict[str, object]:
        """Return everything observable of one call."""
        inner, capture = ScriptedClient(answers), TelemetryCapture()
        response = asyncio.run(self.ask(inner, history, stream=stream, telemetry=capture.telemetry))
        numbers = {span.span_id: number for number, span in enumerate(capture.spans)}
        return {
            "messages": response.messages,
            "usage": (response.usage, response.overhead_usage),
            "the end": (response.finish_reason, response.rounds, response.id, response.model),
            "requests to inner": [request.but(stream=False) for request in inner.requests],
            "spans": [
                (
                    span.name,
                    span.kind,
                    span.parent_id and numbers.get(span.parent_id),
                    {key: value for key, value in span.attributes.items() if key not in self.streaming_attributes},
                    span.status,
                    [(event, dict(attributes)) for event, attributes in span.events],
                )
                for span in capture.spans
            ],
            "log records": [(log.event_name, log.severity, log.body, dict(log.attributes)) for log in capture.logs],
        }

    def test_the_deltas_add_up_to_the_text_of_all_assistant_messages(self) -> None:
        for name, history, answers in self.cases():
            updates: list[ChatUpdate] = []
            response = asyncio.run(self.ask(ScriptedClient(answers), history, stream=True, updates=updates))
            for number in range(response.rounds):
                mine = [update for update in updates if update.round == number]
                done = [update.message_done for update in mine if update.message_done is not None]
                same("".join(each.text for each in mine), _said(done), f"{name}: the deltas of round {number}")
            same("".join(each.text for each in updates), _said(response.messages), f"{name}: all deltas")

    def test_the_messages_of_the_caller_are_left_alone(self) -> None:
        for name, history, answers in self.cases():
            given, written = list(history), msgspec.msgpack.encode(history)
            asyncio.run(self.ask(ScriptedClient(answers), given))
            same([*map(id, given)], [*map(id, history)], f"{name}: the objects in the caller's list")
            same(msgspec.msgpack.encode(given), written, f"{name}: what is in them")

    def test_what_the_caller_asks_for_reaches_inner(self) -> None:
        asked, inner = ChatRequest((Message.user("hello"),), _OPTIONS, "contract", stream=True), ScriptedClient(["{}"])
        asyncio.run(self._answered(inner, asked))
        wanted = self._wishes(asked)
        got = map(self._wishes, inner.requests)
        lost = [[name for name, wish in each.items() if wish != wanted[name]] for each in got]
        nearest = min(lost, key=len, default=["all, as it got no request"])  # a layer may ask for itself, too
        same(nearest, [], "of what the caller asks for, what does not reach inner as it was")

    def _wishes(self, request: ChatRequest) -> dict[str, object]:
        """Return what a layer passes on as it is: it may add tools, and leave edits to the provider."""
        wishes = {name: getattr(request.options, name) for name in ChatOptions.__struct_fields__}
        wishes["tools"] = [each for each in request.options.tools if each in _OPTIONS.tools]
        wishes |= {"conversation_id": request.conversation_id, "stream": request.stream}
        return {name: wish for name, wish in wishes.items() if name not in {"native_edits", *self.own_options}}

    def test_what_inner_answers_is_handed_on(self) -> None:
        is_plain = layer_kind(self.make(ScriptedClient(), silent_telemetry())) == "plain"
        fields = ("messages", "finish_reason", "id", "model", "usage") if is_plain else ()
        for name, answers in self.answers.items():
            for stream in (False, True):
                inner = _Remembering(answers)
                found = asyncio.run(self._answered(inner, ChatRequest((Message.user("hello"),), stream=stream)))
                for field in fields:
                    if all(getattr(found, field) != getattr(each, field) for each in inner.answered):
                        raise AssertionError(f"{name}: a plain layer hands on another {field} than inner's answer has")
                spent, told = sum((each.usage for each in inner.answered), Usage()), found.usage + found.overhead_usage
                less = [each for each in Usage.__struct_fields__ if getattr(told, each) < getattr(spent, each)]
                same(less, [], f"{name}: usage of which the answer tells less than inner's answers did")
                calls = [call for each in inner.answered for call in _calls(each)]
                lost = [call for call in calls if call not in _calls(found)]
                same(lost, [], f"{name}: calls of inner's answers that the answer has not")

    async def _answered(self, inner: ChatClient, request: ChatRequest) -> ChatResponse:
        async with asyncio.timeout(SECONDS):
            return await (await self.make(inner, silent_telemetry()).send(request)).response()

    def test_what_must_be_sent_is_sent(self) -> None:
        for name, history, answers in self.cases():
            inner = ScriptedClient(answers)
            asyncio.run(self.ask(inner, history))
            users = [message for message in history if message.role == "user"]
            kept = [each for each in history if each.role == "system" or each.pinned] + users[-1:]
            for request in inner.requests:
                sent = set(map(id, request.messages))
                lost = [message.role for message in kept if id(message) not in sent]
                same(lost, [], f"{name}: system, pinned and latest user messages that were not sent")
                if not self.edits:
                    passed_on = [*map(id, request.messages[: len(history)])]
                    same(passed_on, [*map(id, history)], f"{name}: what a layer with edits=False passes on")

    def test_no_call_and_no_result_becomes_an_orphan(self) -> None:
        for name, history, answers in self.cases():
            inner = ScriptedClient(answers)
            asyncio.run(self.ask(inner, history))
            there_before = pair(history).leftovers(-1)
            for request in inner.requests:
                new = pair(request.messages).leftovers(len(request.messages) - 1) - there_before
                same(dict(new), {}, f"{name}: orphans that were not in the history")

    def test_a_thousand_conversations_at_once_do_not_mix(self) -> None:
        inner = EchoClient()
        client = Fronted(self.make(inner, silent_telemetry()))

        async def one(number: int) -> set[int]:
            named = None if number % 2 else f"conversation-{number}"
            if number % 3:
                response = await client.get_response(numbered(number), conversation_id=named)
            else:
                response = await client.get_streaming_response(numbered(number), conversation_id=named).response()
            return numbers_in(response.messages)

        async def all_at_once() -> list[set[int]]:
            found = await asyncio.gather(*map(one, range(_CONVERSATIONS)))
            await client.aclose()
            return found

        answered = asyncio.run(all_at_once())
        same(answered, [{number} for number in range(_CONVERSATIONS)], "the conversations in the answers")
        mixed = [numbers for request in inner.requests if len(numbers := numbers_in(request.messages)) != 1]
        same(mixed, [], "requests with messages of more than one conversation")


class _Remembering(ScriptedClient):
    """A scripted client that keeps the answers that were read to their end, too."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        super().__init__(answers)
        self.answered: list[ChatResponse] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await super().send(request)
        stream.when_answered(self.answered.append)
        return stream


def _calls(answer: ChatResponse) -> list[ToolCall]:
    return [call for message in answer.messages for call in message.calls]


def _said(messages: list[Message] | tuple[Message, ...]) -> str:
    return "".join(message.text for message in messages if message.role == "assistant")
