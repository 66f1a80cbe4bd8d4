"""The part of the provider contract about requests as the server receives them."""

from __future__ import annotations

from msgspec.structs import replace

from chatstack.errors import ChatStackError, InputError
from chatstack.testing.exchanges import same
from chatstack.testing.provider_exchanges import (
    KEY,
    PROMPT,
    ModelAnswer,
    ProviderUnderTest,
    a_request,
    expect,
    read,
    run,
)
from chatstack.testing.provider_server import Delivery, ReceivedRequest
from chatstack.values.histories import from_json, to_json
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatOptions, ChatRequest, OutputSchema, ToolDeclaration

_TOOL = ToolDeclaration(
    "mark_tool", "mark-description", '{"type":"object","properties":{"mark_argument":{"type":"string"}}}'
)
_SCHEMA = OutputSchema(
    "mark_schema",
    '{"type":"object","properties":{"mark_field":{"type":"string"}},"required":["mark_field"],'
    '"additionalProperties":false}',
)
_CALLS = tuple(
    ToolCall(f"call_mark{number}", "mark_tool", f'{{"mark_argument":"mark-{said}"}}')
    for number, said in enumerate(("fourth", "fifth", "tenth", "eleventh"), 1)
)
_HALF_CALL = ToolCall("call_mark5", "mark_tool", '{"mark_argument": "mark-cu')
_LATE = Message.system("mark-late-system")
_SAID = tuple(
    f"mark-{each}"
    for each in (
        *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
        *("twelfth", "thirteenth", "fourteenth", "fifteenth"),
    )
)


def _result(call: ToolCall, *said: str) -> ToolResult:
    """The result of that call: one text, or parts."""
    return ToolResult(call.id, call.name, said[0] if len(said) == 1 else tuple(map(Text, said)))


_HISTORY = (
    Message.system("mark-system"),
    Message("user", (Text("mark-first"), Text("mark-second"))),
    Message.assistant("mark-third", *_CALLS[:2]),
    Message("tool", (_result(_CALLS[0], "mark-sixth"), _result(_CALLS[1], "mark-seventh", "mark-eighth"))),
    Message.assistant("mark-ninth", *_CALLS[2:]),
    Message("tool", (_result(_CALLS[2], "mark-twelfth"),)),
    Message("tool", (_result(_CALLS[3], "mark-thirteenth"),)),
    Message.assistant("mark-fourteenth"),
    _LATE,
    Message.user("mark-fifteenth"),
)
"""Messages in every arrangement that a conversation comes in; each text is in ``_SAID``, or of the system."""
_MEDIA: dict[str, Part] = {
    "a picture by its bytes": Image(data="bWFyay1waWN0dXJl", media_type="image/png"),
    "a picture by its address": Image(url="https://example.invalid/bWFyay1waWN0dXJl.png"),
    "a file by its bytes": File(data="bWFyay1waWN0dXJl", media_type="application/pdf", name="a.pdf"),
}
_FOREIGN = "of-another-provider-2a6c"
_OPTIONS: dict[str, object] = {
    "model": "another-model",
    "max_tokens": 77,
    "temperature": 0.25,
    "top_p": 0.75,
    "stop": ("mark-stop",),
    "seed": 4711,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "extra": {"mark_extra": "mark-extra"},
}


def _id_of(part: Part) -> str:
    """The id of a call, or of the call that a result answers; "" for any other part."""
    return part.id if isinstance(part, ToolCall) else part.call_id if isinstance(part, ToolResult) else ""


class RequestContract(ProviderUnderTest):
    """Everything in a request arrives, the same bytes for the same request, or is refused by name."""

    def test_the_history_arrives_in_its_order(self) -> None:
        """Texts, arguments of calls and results of tools reach the server in the order of the messages.

        Every part of a message, and every result, arrives, however they are spread over messages. A system message
        behind the first turn arrives, too, wherever the API has a place for it.
        """
        history, said = self._history(), self._texts()
        words = self._words(*history, options=ChatOptions(tools=(_TOOL,)))
        for mark in (*said, "mark-system", *(["mark-late-system"] if _LATE in history else [])):
            expect(mark in words, f"{mark} of the history is not in the request")
        places = [words.index(mark) for mark in said]
        same(places, sorted(places), "places of the messages in the request")

    def test_instructions_arrive(self) -> None:
        """``options.instructions`` is sent, also beside a system message."""
        words = self._words(*self._history(), options=ChatOptions(instructions="mark-instructions", tools=(_TOOL,)))
        for mark in ("mark-instructions", "mark-system"):
            expect(mark in words, f"{mark} is not in the request")

    def test_tools_arrive(self) -> None:
        """A tool is declared by its name, its description and the schema of its arguments."""
        words = self._words(options=ChatOptions(tools=(_TOOL,)))
        for mark in (_TOOL.name, _TOOL.description, "mark_argument"):
            expect(mark in words, f"{mark} of the tool's declaration is not in the request")

    def test_the_shape_of_the_answer_arrives_or_is_refused(self) -> None:
        """``options.output_schema`` is sent; an API that has no such thing is an ``InputError`` that names it."""
        try:
            words = self._words(options=ChatOptions(output_schema=_SCHEMA))
        except InputError as error:
            expect("output_schema" in str(error), f"the InputError does not name output_schema: {error}")
        else:
            expect("mark_field" in words, "the schema of options.output_schema is not in the request")

    def test_results_go_out_with_the_ids_of_their_calls(self) -> None:
        """The server can tell which result belongs to which call."""
        if self.has_call_ids:
            words = self._words(*self._history(), options=ChatOptions(tools=(_TOOL,)))
            ids = [call.id for message in self._history() for call in message.calls]
            for id in ids:
                expect(words.count(id) >= 2, f"{id}, the id of a call, is not with the call and with its result")
            places = [words.rindex(id) for id in ids]
            same(places, sorted(places), "places of the ids with the results, in the order of the calls")

    def test_a_call_that_was_cut_off_does_not_end_the_conversation(self) -> None:
        """A model may break off within a call's arguments, which are no JSON then; its history can be sent again."""
        history = (
            *(Message.user("mark-first"), Message.assistant("mark-second", _HALF_CALL)),
            *(Message("tool", (_result(_HALF_CALL, "mark-third"),)), Message.user("mark-fourth")),
        )
        try:
            words = self._words(*history, options=ChatOptions(tools=(_TOOL,)))
        except Exception as error:
            told = f"a call with cut-off arguments in the history cannot be sent: {error!r}"
            raise AssertionError(f"{told}: send what there is, as the API can take it") from error
        for mark in ("mark-first", "mark-second", "mark-third", "mark-fourth"):
            expect(mark in words, f"{mark}, beside a call with cut-off arguments, is not in the request")

    def test_an_option_has_an_effect_or_is_refused_by_name(self) -> None:
        """No option is silently dropped: it changes the request, or is an ``InputError`` that names it.

        Those in ``left_out`` are exempt: the client's documentation says that they are not sent.
        """
        base = ChatOptions(tools=(_TOOL,))
        (plain,) = run(self.arrived(a_request(options=base)))
        for name in _OPTIONS.keys() - self.left_out:
            try:
                (request,) = run(self.arrived(a_request(options=base.but(**{name: _OPTIONS[name]}))))
            except InputError as error:
                expect(name in str(error), f"the InputError does not name options.{name}: {error}")
            else:
                is_sent = (request.target, request.body) != (plain.target, plain.body)
                expect(is_sent, f"options.{name} changes nothing in the request: send it, or refuse it by name")

    def test_what_is_extra_goes_into_the_body_as_it_is(self) -> None:
        """``options.extra`` is for fields that the client does not know."""
        words = self._words(options=ChatOptions(extra={"mark_extra": {"mark_inner": "mark-extra"}}))
        for mark in ("mark_extra", "mark_inner", "mark-extra"):
            expect(mark in words, f"{mark} of options.extra is not in the request")

    def test_pictures_and_files_arrive_or_are_refused(self) -> None:
        """A part without a form in the API is an ``InputError``, never a message without it."""
        for name, part in _MEDIA.items():
            try:
                words = self._words(Message("user", (Text("look"), part)))
            except InputError as error:
                expect(bool(str(error)), f"{name}: the InputError says nothing")
            else:
                expect("bWFyay1waWN0dXJl" in words, f"{name} is neither in the request nor refused")

    def test_what_belongs_to_another_provider_stays_behind(self) -> None:
        """A conversation may have begun elsewhere: reasoning, items and extra fields of others are not sent."""
        item, extra = f'{{"type":"{_FOREIGN}"}}', f'{{"another-wire":{{"field":"{_FOREIGN}"}}}}'
        theirs = Message(
            "assistant",
            (Reasoning("", item, "another-provider"), ProviderItem("another-provider", item), Text("mark-said", extra)),
            extra_json=extra,
        )
        words = self._words(Message.user("mark-first"), theirs, Message.user("mark-sixth"))
        expect("mark-said" in words, "the text beside it is not in the request")
        expect(_FOREIGN not in words, "what belongs to another provider is in the request")

    def test_the_same_request_is_the_same_bytes(self) -> None:
        """Prompt caches go by bytes: nothing in the body depends on the time, the process or the order of sets."""
        options = ChatOptions(tools=(_TOOL,), instructions="mark-instructions", output_schema=self._schema())
        first, again = run(self.arrived(*[a_request(*self._history(), options=options)] * 2))
        (anew,) = run(self.arrived(a_request(*self._history(), options=options)))
        same(again.body, first.body, "the body of the same request by the same client")
        same(anew.body, first.body, "the body of the same request by another client")

    def test_a_history_that_grows_keeps_the_bytes_of_its_beginning(self) -> None:
        """Messages that were sent once are sent the same when more follow, but for marks for the prompt cache."""
        options, history = ChatOptions(tools=(_TOOL,)), self._history()
        more = (Message.assistant("mark-later"), Message.user("mark-last"))
        short, long = run(self.arrived(*(a_request(*each, options=options) for each in (history, history + more))))
        before, after = (self.without_marks(each.body) for each in (short, long))
        first, last = (before.find(said.encode()) for said in (_SAID[0], _SAID[-1]))
        expect(before[first:last] in after, "the messages that were sent before are other bytes now")

    def test_a_history_that_was_saved_sends_the_same_bytes(self) -> None:
        """``to_json`` and ``from_json`` keep all that an answer was made of."""
        said = ModelAnswer(text="fine", calls=(ToolCall("call_mark1", "mark_tool", '{"a": 1}'),), usage=self.usage)
        (answer,) = self.answered(said, stream=True)
        (message,) = answer.response.messages
        result = Message.tool(message.calls[0].id, "mark-result", name="mark_tool")
        history = (Message.user("hello"), message, result)
        saved = tuple(from_json(to_json(history)))
        first, second = run(self.arrived(a_request(*history), a_request(*saved)))
        same(second.body, first.body, "the body of a request whose history was saved and read")

    def test_the_key_is_sent_and_is_not_in_the_body(self) -> None:
        """The key that the client was made with reaches the server, where logs of bodies do not show it."""
        (request,) = run(self.arrived(a_request()))
        expect(KEY in f"{request.target} {request.headers}", "the key is not in the headers of the request")
        expect(KEY not in request.words, "the key is in the body of the request")

    def test_what_cannot_be_sent_is_refused_before_anything_is_sent(self) -> None:
        """A request of nothing but white space, and a lone surrogate, are an ``InputError`` that quotes nothing."""
        half = Message("assistant", (Text(f"{PROMPT} \ud83d"),))
        requests = {
            "no messages": ChatRequest(()),
            "a blank message": a_request(Message.user(" \n")),
            "half a character (a lone surrogate)": a_request(Message.user("hello"), half, Message.user("well")),
        }
        for name, request in requests.items():
            run(self._not_sent(name, request))

    async def _not_sent(self, name: str, request: ChatRequest) -> None:
        def script(received: ReceivedRequest) -> Delivery:
            return Delivery(self.answer(ModelAnswer(text="fine"), stream=False))

        async with self.serving(script) as (client, server):
            try:
                await read(await client.send(request))
            except InputError as error:
                expect(PROMPT not in str(error), f"{name}: the InputError quotes the message")
            except ChatStackError as error:
                raise AssertionError(f"{name}: expected an InputError, found {error!r}") from error
            else:
                raise AssertionError(f"{name}: was sent and answered; expected an InputError")
            same(len(server.requests), 0, f"{name}: requests that reached the server")

    def _history(self) -> tuple[Message, ...]:
        """The messages, without what the API cannot have."""
        history = [each for each in _HISTORY if self.has_late_system or each is not _LATE]
        if self.has_parallel_calls:
            return tuple(history)
        others = {call.id for message in history for call in message.calls[1:]}
        few = (
            replace(each, parts=tuple(part for part in each.parts if _id_of(part) not in others)) for each in history
        )
        return tuple(each for each in few if each.parts)

    def _texts(self) -> list[str]:
        """The texts of the history that are in it, in order."""
        written = to_json(self._history())
        return [mark for mark in _SAID if mark in written]

    def _words(self, *messages: Message, options: ChatOptions | None = None) -> str:
        (request,) = run(self.arrived(a_request(*messages, options=options)))
        return f"{request.target}\n{request.words}"

    def _schema(self) -> OutputSchema | None:
        """The schema, if this API takes one."""
        try:
            run(self.arrived(a_request(options=ChatOptions(output_schema=_SCHEMA))))
        except InputError:
            return None
        return _SCHEMA
