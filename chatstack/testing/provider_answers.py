"""The part of the provider contract about answers."""

from __future__ import annotations

import asyncio
import json
import re

from chatstack.errors import InputError
from chatstack.testing.exchanges import same
from chatstack.testing.provider_exchanges import (
    Answered,
    ModelAnswer,
    ProviderUnderTest,
    a_request,
    expect,
    read,
    run,
)
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ServerReply
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.values.responses import ChatResponse, FinishReason, Usage

_TEXT = 'Zürich, 東京 and 🏝: "sun",\n\tthen \\rain.  \u2028 \x85 Done.'
_ARGUMENTS = (
    '{"city": "Zürich \u2028 🏝", "at": [1.5, -2, 12345678901], "deep": {"a": [true, null, ""]}, "quote": "\\"\\n"}'
)
_CALLS = (ToolCall("call_a1", "look_up", _ARGUMENTS), ToolCall("call_b2", "look_up", '{"city": "Oslo"}'))
_AT_ONCE = 20
_UNKNOWN = "from-a-later-version-93d0"


class AnswerContract(ProviderUnderTest):
    """The same answer streamed and not, whole, once, as it comes."""

    def test_streaming_and_not_streaming_give_the_same_answer(self) -> None:
        """``stream`` decides when the caller sees the answer, never what it is."""
        for name, said in self._cases().items():
            streamed, plain = (_seen(each.response) for each in self._both(said))
            for what in plain:
                same(streamed[what], plain[what], f"{name}: {what}, streaming against not streaming")

    def test_the_words_of_the_model_arrive_to_the_last_character(self) -> None:
        """The text of the finished message is the text that the server sent; U+2028 in it ends no line of a stream."""
        for answered in self._both(self._said(_TEXT)):
            same(
                [(each.role, each.text) for each in answered.response.messages], [("assistant", _TEXT)], "the messages"
            )

    def test_the_deltas_add_up_to_the_finished_message(self) -> None:
        """Deltas and the message agree: texts joined are the message's, pieces of arguments the call's."""
        for name, said in self._cases().items():
            for updates, response in self._both(said):
                same("".join(each.text for each in updates), response.text, f"{name}: the text of all deltas, joined")
            ((updates, response),) = self.answered(said, stream=True)
            pieces: dict[int, str] = {}
            for delta in (each.call_delta for each in updates if each.call_delta is not None):
                pieces[delta.index] = pieces.get(delta.index, "") + delta.arguments
            if pieces:
                joined = [_value(pieces[index]) for index in sorted(pieces)]
                calls = response.messages[0].calls
                same(joined, [_value(call.arguments) for call in calls], f"{name}: the arguments of all deltas, joined")

    def test_an_answer_has_one_finished_message_which_comes_last(self) -> None:
        """One update has ``message_done``, and nothing is shown behind it; an empty answer has one, too."""
        for name, said in {**self._cases(), "nothing": self._said("")}.items():
            for updates, _ in self._both(said):
                finished = [index for index, each in enumerate(updates) if each.message_done is not None]
                same(len(finished), 1, f"{name}: updates with message_done in one answer")
                behind = [each for each in updates[finished[0] + 1 :] if each.has_content]
                same(behind, [], f"{name}: what is shown behind the finished message")

    def test_tool_calls_come_whole_and_keep_their_ids(self) -> None:
        """Parallel calls keep order, names, arguments and ids, and are in the message and in updates of their own."""
        said = self._calls()
        for updates, response in self._both(self._said(calls=said)):
            calls = response.messages[0].calls
            shown = [(call.name, _value(call.arguments)) for call in calls]
            same(shown, [(call.name, _value(call.arguments)) for call in said], "names and arguments of the calls")
            if self.has_call_ids:
                same([call.id for call in calls], [call.id for call in said], "ids of the calls")
            same(len({call.id for call in calls if call.id}), len(said), "calls that have an id of their own")
            parts = [each.part for each in updates if isinstance(each.part, ToolCall)]
            same(parts, list(calls), "calls shown as update.part, each once, whole")
            same(response.finish_reason, "tool_calls", "finish_reason of an answer with calls")

    def test_a_call_without_arguments_has_an_empty_object(self) -> None:
        """``arguments`` is always a JSON object as text, so that whoever runs the tool can read it."""
        for _, response in self._both(self._said(calls=(ToolCall("call_a1", "look_up", "{}"),))):
            same([call.arguments for call in response.messages[0].calls], ["{}"], "the arguments of the call")

    def test_usage_is_reported_once(self) -> None:
        """The tokens of input, output and cache are told, and added up neither twice nor short of the cache. A stream
        may tell them in parts."""
        for updates, response in self._both(self._said("fine")):
            same(response.usage, self.usage, "response.usage; input_tokens counts what came from the cache, too")
            told = [each.usage for each in updates if each.usage is not None]
            same(sum(told, Usage()), self.usage, "the usage in all updates, added up")

    def test_the_reason_why_the_model_stopped_is_told(self) -> None:
        """``finish_reason`` is ours, whatever the API calls it."""
        said = [self._said("well", finish_reason=reason) for reason in self.finish_reasons]
        for stream in (False, True):
            for reason, (_, response) in zip(self.finish_reasons, self.answered(*said, stream=stream), strict=True):
                what = f"finish_reason of an answer that ended by {reason!r}"
                same(
                    response.finish_reason,
                    reason,
                    f"{what} (if the API does not tell it, leave it out of finish_reasons)",
                )

    def test_a_stream_is_handed_on_while_it_comes(self) -> None:
        """``send`` returns when the model has begun, not when it has ended: the server holds back its last piece."""
        reply = self.answer(self._said("one two three four"), stream=True)
        last = len(reply.pieces) - 1
        expect(last >= 2, f"answer(stream=True) made {last + 1} pieces; the contract needs three to stop between")

        async def work() -> None:
            async with self.serving(Delivery(reply, last, "hold")) as (client, server):
                try:
                    async with asyncio.timeout(self.patience_seconds):
                        stream = await client.send(a_request(stream=True))
                        first = await anext(stream)
                except TimeoutError:
                    raise AssertionError(
                        "no update came before the answer was complete: hand on each piece when it arrives"
                    ) from None
                expect(first.has_content, f"the first update shows nothing: {first!r}")
                server.release()
                same((await read(stream)).response.text, "one two three four", "the text, once the rest had come")

        run(work())

    def test_a_stream_may_arrive_in_pieces_of_any_size(self) -> None:
        """The network cuts where it likes, in the middle of an event, of a line and of a character."""
        for name, said in self._cases().items():
            reply, (whole,) = self.answer(said, stream=True), self.answered(said, stream=True)
            body = b"".join(reply.pieces)
            for size, cut in ((1, "a stream that came byte by byte"), (len(body), "a stream that came at once")):
                pieces = tuple(body[at : at + size] for at in range(0, len(body), size))
                delivery = Delivery(ServerReply(pieces, reply.status, reply.content_type, reply.headers))
                (found,) = run(self.outcomes([delivery], stream=True))
                if not isinstance(found, Answered):
                    raise AssertionError(f"{name}: {cut} was an error: {found!r}") from found
                same(found.response.messages, whole.response.messages, f"{name}: {cut}: the messages")

    def test_what_the_client_does_not_know_goes_back_as_it_came(self) -> None:
        """Fields and items of a later version of the API are kept in the message, and are in the next request."""
        if not self.keeps_unknown:
            return
        for answered in self._both(self._said("fine", unknown=_UNKNOWN)):
            history = (Message.user("hello"), *answered.response.messages, Message.user("go on"))
            (request,) = run(self.arrived(a_request(*history)))
            expect(
                _UNKNOWN in request.words,
                "a field or item of the answer that the client does not know is not in the next request: keep it in "
                "extra_json or a ProviderItem",
            )

    def test_half_a_character_in_an_answer_does_not_end_the_conversation(self) -> None:
        """A model may break off within a character (a lone surrogate); the kept part of its answer can be sent
        again."""
        for _, response in self._both(self._said("half \ud83d and more")):
            try:
                (request,) = run(self.arrived(a_request(Message.user("hello"), *response.messages, Message.user("on"))))
            except InputError as error:
                told = "an answer with half a character cannot be sent again: put U+FFFD in its place"
                raise AssertionError(told) from error
            expect("and more" in request.words, "the answer with half a character is not in the next request")

    def test_many_answers_at_once_do_not_mix(self) -> None:
        """One client serves many calls at the same time, each of which gets its own answer."""
        for stream in (False, True):
            run(self._at_once(stream=stream))

    async def _at_once(self, *, stream: bool) -> None:
        def script(request: ReceivedRequest) -> Delivery:
            found = re.search(r"number-\d+", request.words)
            said = self._said(f"answer to {found[0] if found else 'nobody'}")
            return Delivery(self.answer(said, stream=stream))

        async with self.serving(script) as (client, _):

            async def ask(number: int) -> str:
                request = a_request(Message.user(f"this is number-{number}"), stream=stream)
                return (await read(await client.send(request))).response.text

            found = await asyncio.gather(*map(ask, range(_AT_ONCE)))
        same(found, [f"answer to number-{number}" for number in range(_AT_ONCE)], "answers to calls at the same time")

    def _said(
        self,
        text: str = "",
        *,
        calls: tuple[ToolCall, ...] = (),
        finish_reason: FinishReason = "stop",
        unknown: str = "",
    ) -> ModelAnswer:
        reason = "tool_calls" if calls else finish_reason
        return ModelAnswer(text=text, calls=calls, finish_reason=reason, usage=self.usage, unknown=unknown)

    def _calls(self) -> tuple[ToolCall, ...]:
        return _CALLS if self.has_parallel_calls else _CALLS[:1]

    def _cases(self) -> dict[str, ModelAnswer]:
        return {
            "text": self._said(_TEXT),
            "calls": self._said(calls=self._calls()),
            "text and calls": self._said("I look it up.", calls=self._calls()),
        }

    def _both(self, said: ModelAnswer) -> tuple[Answered, Answered]:
        """Return the outcome of that answer, streamed and not."""
        return self.answered(said, stream=True)[0], self.answered(said, stream=False)[0]


def _seen(response: ChatResponse) -> dict[str, object]:
    """Return what both ways of asking must agree on; arguments of calls as values."""
    parts = [
        (part.id, part.name, _value(part.arguments), part.extra_json) if isinstance(part, ToolCall) else part
        for message in response.messages
        for part in message.parts
    ]
    ends = (response.finish_reason, response.id, response.model)
    return {"parts of the message": parts, "usage": response.usage, "finish_reason, id and model": ends}


def _value(arguments: str) -> object:
    """Return the arguments as a value: white space between them is up to the API."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return f"not JSON: {arguments!r}"
