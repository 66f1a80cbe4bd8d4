"""Providers that break a promise about what they send, and the check of the contract that says so."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec.structs import replace

from chatstack import ChatOptions, ChatRequest, ChatUpdate, Message, ProviderItem, Text, ToolCall, ToolResult
from tests.testing.parley import ParleyClient


class DropsTheSystemMessage(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        return super().body(request.but(messages=tuple(each for each in request.messages if each.role != "system")))


class SendsResultsFirst(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        return super().body(request.but(messages=tuple(sorted(request.messages, key=lambda each: each.role != "tool"))))


class SendsResultsWithoutIds(ParleyClient):
    def part(self, part: object) -> object:
        found = super().part(part)
        return {"says": found["says"]} if isinstance(found, dict) and "of" in found else found


class SendsNoFiles(ParleyClient):
    def part(self, part: object) -> object:
        return super().part(part) if type(part).__name__ not in ("Image", "File") else "[a file]"


class SendsWhatIsForeign(ParleyClient):
    def part(self, part: object) -> object:
        return json.loads(part.json) if isinstance(part, ProviderItem) else super().part(part)


class NumbersItsRequests(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        return {"id": uuid.uuid4().hex, **super().body(request)}


class MarksTheLastTurn(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        body = super().body(request)
        count = len(body["turns"])
        return {**body, "turns": [{"of": f"{at + 1}/{count}", **each} for at, each in enumerate(body["turns"])]}


class SendsAnything(ParleyClient):
    async def updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        async for update in super().updates(request.but(messages=(Message.user("well"), *request.messages))):
            yield update


class Drops(ParleyClient):
    name = ""

    def settings(self, options: ChatOptions) -> dict[str, Any]:
        return {key: each for key, each in super().settings(options).items() if key != self.name}


class DropsInstructions(Drops):
    name = "instructions"


class DropsTools(Drops):
    name = "tools"


class DropsTheShape(Drops):
    name = "shape"


class DropsTheTemperature(Drops):
    name = "temperature"


class DropsWhatIsExtra(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        return super().body(request.but(options=request.options.but(extra={})))


class DropsLateSystemMessages(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        first, *rest = request.messages
        return super().body(request.but(messages=(first, *(each for each in rest if each.role != "system"))))


class AnswersTheFirstCall(ParleyClient):
    def turn(self, message: Message) -> dict[str, Any]:
        self.first = next((call.id for call in message.calls), getattr(self, "first", ""))
        parts = (replace(each, call_id=self.first) if isinstance(each, ToolResult) else each for each in message.parts)
        return super().turn(replace(message, parts=tuple(parts)))


class SwapsResults(ParleyClient):
    def turn(self, message: Message) -> dict[str, Any]:
        of = (each.call_id for each in reversed(message.parts) if isinstance(each, ToolResult))
        parts = (replace(each, call_id=next(of)) if isinstance(each, ToolResult) else each for each in message.parts)
        return super().turn(replace(message, parts=tuple(parts)))


class SendsTheLastResult(ParleyClient):
    def turn(self, message: Message) -> dict[str, Any]:
        return super().turn(replace(message, parts=message.parts[-1:]) if message.role == "tool" else message)


class SendsTheFirstText(ParleyClient):
    def turn(self, message: Message) -> dict[str, Any]:
        texts = [each for each in message.parts if isinstance(each, Text)]
        return super().turn(replace(message, parts=tuple(each for each in message.parts if each not in texts[1:])))


class SendsTextResultsAlone(ParleyClient):
    def part(self, part: object) -> object:
        is_parts = isinstance(part, ToolResult) and not isinstance(part.output, str)
        return {"of": part.call_id, "says": ""} if is_parts else super().part(part)  # type: ignore[attr-defined]


class ReadsArguments(ParleyClient):
    def part(self, part: object) -> object:
        if isinstance(part, ToolCall):
            return {"id": part.id, "tool": part.name, "with": msgspec.json.decode(part.arguments)}
        return super().part(part)


BROKEN: list[tuple[type[ParleyClient], str, str]] = [
    (DropsTheSystemMessage, "test_the_history_arrives_in_its_order", "mark-system of the history is not"),
    (SendsResultsFirst, "test_the_history_arrives_in_its_order", "places of the messages"),
    (SendsResultsWithoutIds, "test_results_go_out_with_the_ids_of_their_calls", "call_mark1, the id of a call"),
    (SendsNoFiles, "test_pictures_and_files_arrive_or_are_refused", "a picture by its bytes is neither"),
    (SendsWhatIsForeign, "test_what_belongs_to_another_provider_stays_behind", "belongs to another provider is in"),
    (NumbersItsRequests, "test_the_same_request_is_the_same_bytes", "the same request by the same client"),
    (NumbersItsRequests, "test_a_history_that_was_saved_sends_the_same_bytes", "was saved and read"),
    (MarksTheLastTurn, "test_a_history_that_grows_keeps_the_bytes_of_its_beginning", "are other bytes now"),
    (SendsAnything, "test_what_cannot_be_sent_is_refused_before_anything_is_sent", "no messages: was sent"),
    (DropsInstructions, "test_instructions_arrive", "mark-instructions is not in the request"),
    (DropsTools, "test_tools_arrive", "mark_tool of the tool's declaration"),
    (DropsTheShape, "test_the_shape_of_the_answer_arrives_or_is_refused", "the schema of options.output_schema"),
    (
        DropsTheTemperature,
        "test_an_option_has_an_effect_or_is_refused_by_name",
        r"options\.temperature changes nothing",
    ),
    (DropsWhatIsExtra, "test_what_is_extra_goes_into_the_body_as_it_is", r"mark_extra of options\.extra"),
    (DropsLateSystemMessages, "test_the_history_arrives_in_its_order", "mark-late-system of the history is not"),
    (AnswersTheFirstCall, "test_results_go_out_with_the_ids_of_their_calls", "call_mark2, the id of a call"),
    (SwapsResults, "test_results_go_out_with_the_ids_of_their_calls", "places of the ids with the results"),
    (SendsTheLastResult, "test_the_history_arrives_in_its_order", "mark-sixth of the history is not"),
    (SendsTheFirstText, "test_the_history_arrives_in_its_order", "mark-second of the history is not"),
    (SendsTextResultsAlone, "test_the_history_arrives_in_its_order", "mark-seventh of the history is not"),
    (
        ReadsArguments,
        "test_a_call_that_was_cut_off_does_not_end_the_conversation",
        r"cannot be sent: DecodeError",
    ),
]
