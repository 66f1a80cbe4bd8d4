"""Items that only their provider understands: which belong together, and which tell that tools ran at the provider."""

from __future__ import annotations

import msgspec

from chatstack.values.parts import ProviderItem
from chatstack.values.responses import ChatResponse, Usage


class ItemFields(msgspec.Struct, gc=False):
    """The fields that tell which items belong together: of Anthropic's blocks, of items of OpenAI's Responses, and of
    Gemini's parts, which have no types."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    tool_use_id: str | None = None
    approval_request_id: str | None = None
    executed: msgspec.Raw = msgspec.field(name="codeExecutionResult", default=msgspec.Raw())

    @property
    def own(self) -> str | None:
        """The id by which a result names it."""
        if self.type.endswith("_call"):
            return self.call_id
        return self.id if self.type.endswith(("_tool_use", "_approval_request")) else None

    @property
    def is_callers(self) -> bool:
        """True for a call whose result the caller gives; a type that says ``tool`` is of a tool that runs elsewhere."""
        is_elsewhere = self.type.endswith(("_tool_use", "_tool_call")) and self.type != "custom_tool_call"
        return bool(self.own) and not is_elsewhere

    @property
    def asked(self) -> str | None:
        """The id of the call that it answers."""
        return self.tool_use_id or self.approval_request_id or (self.call_id if self.type.endswith("_output") else None)

    @property
    def holds_result(self) -> bool:
        """True for the result of a tool, and for a call that holds its own: one that no result can name."""
        return bool(self.asked or self.executed) or (self.type.endswith("_call") and not self.call_id)


_decode = msgspec.json.Decoder(ItemFields).decode


def fields_of(item: ProviderItem) -> ItemFields | None:
    """Return the fields of an item; None if it is no JSON object, or has others by these names."""
    try:
        return _decode(item.json)
    except (msgspec.DecodeError, RecursionError):
        return None


def usage_of_request(answer: ChatResponse) -> Usage:
    """Return the usage of an answer with the input tokens that tell the size of its request: 0 where tools ran at the
    provider within the call. The model then read the request once in each of its passes, and their sum is reported."""
    for message in answer.messages:
        for part in message.parts:
            fields = fields_of(part) if type(part) is ProviderItem else None
            if fields is not None and fields.holds_result:
                return msgspec.structs.replace(answer.usage, input_tokens=0)
    return answer.usage
