"""Native edits: layers that leave their edit to the provider, where its API can make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from chatstack.client.protocol import ChatClient, EditsNatively, native_editor
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import wrong
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.histories.history import History
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import Asking, call
from chatstack.context.requests.opened import Opened
from chatstack.values.native import NativeEdit
from chatstack.values.responses import ChatResponse

Native: TypeAlias = Literal["off", "auto", "on"]
"""The editor: the layer itself, the provider where its API is known to edit, or the provider in any case."""


class NotNative(NamedTuple):
    """An option that no provider's API has, with what it would have to be."""

    option: str
    value: object
    wanted: str


@dataclass(frozen=True, slots=True)
class LeftToProvider:
    """The edit of a layer, in the hands of the provider behind it. With ``asks``, only where that is known to make
    it."""

    edit: NativeEdit
    editor: EditsNatively
    asks: bool

    @classmethod
    def where_possible(
        cls, owner: str, native: Native, inner: ChatClient, edit: NativeEdit | NotNative
    ) -> LeftToProvider | None:
        """Return the edit for the provider behind ``inner``; None if the layer makes it itself.

        Raises ``WiringError`` with ``native="on"`` where the provider cannot, or an option has no counterpart there.
        """
        if native == "off":
            return None
        if isinstance(edit, NotNative):
            if native == "on":
                beside = 'with native="on", as the provider cannot do otherwise; native="auto" edits here then'
                raise wrong(owner, edit.option, edit.value, f"{edit.wanted} {beside}")
            return None
        editor = native_editor(inner)
        nobody = "no single provider that edits by itself stands behind it"
        problem = nobody if editor is None else editor.native_problem(edit)
        if problem and native == "on":
            raise wrong(owner, "native", native, f'"off" or "auto": {problem}')
        return None if editor is None or problem else cls(edit, editor, native == "auto")

    def passed(
        self,
        arrived: Arrived,
        editing: ContextEditing,
        say: Callable[[Opened, ChatResponse], None],
        *,
        pinned: Callable[[History], int],
        clears: Callable[[Opened], int] | None = None,
    ) -> Asking[ChatStream | None]:
        """Hand the request on with the edit in its options; None if the provider is not known to make it, or must not,
        as it knows no pins.

        ``say`` reports what the answer tells of it. ``pinned`` is the first position that is pinned, -1 for none.
        ``clears`` estimates by how many tokens the edit makes the input smaller, for the layers behind.
        """
        request, options = arrived.request, arrived.request.options
        seen = arrived.opened(editing).seen
        if 0 <= pinned(seen.history) < seen.length:
            return None
        if self.asks and not (yield from call(self.editor.edits_natively, self.edit, options.model or "")):
            return None
        if not any(type(each) is type(self.edit) for each in options.native_edits):  # else somebody has asked already
            request = request.but(options=options.but(native_edits=(*options.native_edits, self.edit)))
            arrived = arrived.shaped(request, 0)
        opened = arrived.opened(editing)
        opened.is_pending = True  # its own edit is not decided: should it be wanted later, it is worked out then
        if clears is not None:
            arrived.passage.provider_clears += clears(opened)
        stream = yield from arrived.onward(editing, opened.context, opened)
        stream.when_answered(partial(say, opened))
        return stream
