"""Derived histories: what a layer gets where layers further out have edited the history, kept beside that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from chatstack.context.histories.conversations import Conversation, Form, term_in, with_term
from chatstack.context.histories.history import History
from chatstack.context.histories.last_words import is_words
from chatstack.context.histories.own_past import OwnPast
from chatstack.context.histories.recognised import Recognised
from chatstack.context.histories.weights import weight_of
from chatstack.context.shapes.shaping import NOTHING_SHAPED, Shapes
from chatstack.values.messages import Message

_MOST = 2
"""Maximum number of forms of a conversation that are kept behind one layer: one, and one that it may alternate with."""
_FORM_BYTES = 2_000
_MESSAGE_BYTES = 20
"""Estimated bytes kept for a message; the message itself is that of the history, or of its record."""
_TEXT_BYTES = 250
"""Estimated bytes kept for a text that later ones may be duplicates of: a hash, a place, and an entry of a table."""
_CALL_BYTES = 130
"""The same for what a call gave last: two hashes, and an entry of a table."""


class Derived:
    """The edited forms of histories, by the edits. They belong to the history, and are evicted with it.

    The same edits of a history that has grown give the same messages, and more: so nothing has to be searched for.
    """

    def __init__(self, weigh: Callable[[History, int], bool], past: OwnPast, lock: threading.RLock) -> None:
        self._weigh = weigh
        self._past = past
        self._lock = lock

    def recognised(self, seen: Recognised, form: Form, messages: tuple[Message, ...]) -> Recognised:
        """Return the history of these messages: those of the seen history, in that form."""
        positions: Sequence[int]
        if isinstance(seen.positions, range):
            positions = range(seen.positions.start, len(messages))
            conversation = messages[positions.start :]
        else:
            positions = tuple(at for at, message in enumerate(messages) if message.role != "system")
            conversation = tuple([messages[at] for at in positions])
        with self._lock:
            history, state, is_settled = self._of(seen, form, conversation)
            new = len(conversation) - len(history.messages)
            if len(seen.history.forms) > 1 and (seen.history.is_fresh or (new and is_settled)):
                self._drop_others(seen.history, form)
            if new:
                history.grow(conversation)
                self._weigh(seen.history, new * _MESSAGE_BYTES)
        came = seen.came if form.is_shaped else seen.came or seen  # a shaped one has the links of the other
        return Recognised(history, state, len(conversation), positions, False, seen.who, came)

    def keep_shapes(self, history: History, terms: int, shapes: Shapes) -> None:
        """Keep the shaped messages of a history, unless it is known to be shaped further."""
        with self._lock:
            known = term_in(history.shapes, terms) or NOTHING_SHAPED
            if known.looked_at >= shapes.looked_at:
                return
            new = [message for at, message in shapes.messages.items() if at not in known.messages]
            texts = len(shapes.texts) - len(known.texts)
            weight = (
                sum(map(weight_of, new)) + _TEXT_BYTES * texts + _CALL_BYTES * (len(shapes.latest) - len(known.latest))
            )
            before = _weight_of_shapes(history)
            history.shapes = with_term(history.shapes, terms, shapes._replace(weight=known.weight + weight))
            change = _weight_of_shapes(history) - before
            if change:
                self._weigh(history, change)

    def let_go(self, history: History) -> None:
        """Drop the forms of conversations that a history does not know any more."""
        with self._lock:
            for form in [each for each in history.forms if not history.is_of(each.who)]:
                self._forget_past(*history.forms[form])
                self._drop(history, form)

    def _forget_past(self, history: History, conversation: Conversation) -> None:
        self._past.drop(conversation)
        for further in history.forms.values():
            self._forget_past(*further)

    def _drop_others(self, history: History, form: Form) -> None:
        """Drop the forms of this conversation behind the same layer that the call does not use: where the caller sends
        fresh objects, they hold the only copies of what came before; else edits that were made before this form grew
        are not undone. Its past stays, as it may go on from there."""
        for each in [each for each in history.forms if each != form and each[:3] == form[:3]]:
            self._drop(history, each)

    def _of(
        self, seen: Recognised, form: Form, conversation: tuple[Message, ...]
    ) -> tuple[History, Conversation, bool]:
        """Return the history in that form, the state of its conversation, and True if it is the form that was used
        last."""
        forms = seen.history.forms
        past: list[int] = []
        known = forms.get(form)
        if known is not None:
            if conversation[: len(known[0].messages)] == known[0].messages:
                is_last = len(forms) == 1 or form == next(each for each in reversed(forms) if each[:3] == form[:3])
                if not is_last:
                    forms[form] = forms.pop(form)
                return *known, is_last
            past = known[1].past
            self._drop(seen.history, form)
        self.let_go(seen.history)
        alike, before = [each for each in forms if each[:3] == form[:3]], None
        if alike:  # one list, as the conversation may go on from few answers, whatever was edited since
            before, past = forms[alike[-1]][0], forms[alike[-1]][1].past
        for each in alike[: 1 - _MOST]:
            self._drop(seen.history, each)
        self._weigh(seen.history, _FORM_BYTES)
        state = Conversation()
        state.levels, state.past = seen.conversation.levels, past
        made = seen.history.derived(conversation, before)
        made.linked_as = seen.history if form.is_shaped else None
        if forms:
            forms[form] = (made, state)
        else:
            seen.history.forms = {form: (made, state)}
        return made, state, False

    def _drop(self, history: History, form: Form) -> None:
        dropped, state = history.forms.pop(form)
        for each in [*dropped.forms]:
            self._drop(dropped, each)
        self._past.seal(dropped, (state,))
        self._weigh(history, -_form_bytes(dropped) - _weight_of_shapes(dropped))


def take_forms(before: History, made: History, who: str, alike: int, past: OwnPast) -> None:
    """Take over the edited forms of a conversation that goes on from the beginning of a history, where both are alike,
    and what was shaped of it. From now on they belong to that."""
    for edited, state in before.forms.values():
        past.seal(edited, (state,))  # those that are taken over are new ones
    given, held = _taken(before, made, alike, who, made.conversation(who).levels)
    before.held_bytes -= given
    made.held_bytes += held


def _taken(before: History, made: History, alike: int, who: str, levels: dict[str, int]) -> tuple[int, int]:
    """Return the bytes that forms were counted with before, and those that they are counted with now."""
    given, left, put = _weight_of_shapes(before), before.messages[alike:], made.messages[alike:]
    is_same = len(put) == len(left) and not any(before.messages[at].results for at in changes(before, made, alike))
    if is_same or all(map(is_words, left)):  # else it was shaped where it does not go on
        made.shapes = tuple([(terms, shapes.until(len(made.messages))) for terms, shapes in before.shapes])
    held, before.shapes = _weight_of_shapes(made), ()
    for form, (edited, state) in [*before.forms.items()]:
        start = len(edited.messages) - len(left)
        if form.who != who or start <= 0 or edited.messages[start:] != left:
            continue
        kept, its_state = edited.beginning(edited.messages[:start]), Conversation()
        kept.root, kept.linked_as = made.root, None if edited.linked_as is None else made
        kept.grow(kept.messages + put)
        its_state.go_on_from(state, len(kept.messages), changes(edited, kept, start))
        its_state.levels = levels
        made.forms = {**made.forms, form: (kept, its_state)}
        further = _taken(edited, kept, start, who, levels)
        given, held = given + further[0] + _form_bytes(edited), held + further[1] + _form_bytes(kept)
        del before.forms[form]
    return given, held


def changes(before: History, made: History, alike: int) -> list[int]:
    """Return the positions, from that one on, of messages that are others than before."""
    pairs = zip(before.messages[alike:], made.messages[alike:], strict=False)
    return [at for at, (then, now) in enumerate(pairs, alike) if then != now]


def _form_bytes(history: History) -> int:
    return _FORM_BYTES + len(history.messages) * _MESSAGE_BYTES


def _weight_of_shapes(history: History) -> int:
    return sum(shapes.weight for _, shapes in history.shapes)
