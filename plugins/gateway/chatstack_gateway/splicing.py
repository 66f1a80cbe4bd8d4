"""Edits of a request carried out in its own text: what no layer touched keeps its bytes.

The result is parsed again, read again, and compared with the request that the layers have handed on. On any difference
the request is not edited: ``UneditableError``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import cast

from chatstack import ChatRequest, InputError, Message
from chatstack.providers.wires import Form, read_request, write_messages, write_request
from chatstack_gateway.places import ITEMS, SYSTEM, places_of
from chatstack_gateway.positions import Body, Spot, UneditableError, alike, elements, members, patched, scan, written


def spliced(form: Form, body: Body, came: ChatRequest, edited: ChatRequest) -> str:
    """Return the body's text with the edits between the two requests made in it. Raises ``UneditableError``."""
    try:
        wanted = write_request(form, edited)
        changes: dict[str, str] = {}
        if not same(came.messages, edited.messages):
            changes[ITEMS[form]] = _Items(form, body, came.messages).text(edited, wanted)
        changes |= _options(form, body, came, wanted)
        text = _with(body, changes)
        again = scan(text)
        _check_rest(body, again, set(changes))
        if not alike(write_request(form, read_request(form, again.value)), wanted):
            raise UneditableError("the edited text would not mean what the layers made of the request")
    except InputError as error:
        raise UneditableError(f"the edited request has no form here: {error}") from error
    return text


def same(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Return True if both are the very same messages."""
    return one is other or (len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True)))


def _options(form: Form, body: Body, came: ChatRequest, wanted: dict[str, object]) -> dict[str, str]:
    """Return the text of each field beside the messages that a layer has changed."""
    before = write_request(form, came)
    beside = (before.keys() | wanted.keys()) - {ITEMS[form], "system"}
    changed = sorted(name for name in beside if not alike(before.get(name), wanted.get(name)))
    if any(name not in wanted for name in changed):
        raise UneditableError("a layer has taken a field away")
    return {
        name: patched(body.text, body.fields[name], before.get(name), wanted[name])
        if name in body.fields
        else written(wanted[name])
        for name in changed
    }


def _with(body: Body, changes: dict[str, str]) -> str:
    """Return the body's text with the texts of these fields replaced, or added at the end."""
    pieces: list[str] = []
    at = 0
    for name, spot in sorted(body.fields.items(), key=lambda each: each[1].start):
        if name in changes:
            pieces += (body.text[at : spot.start], changes[name])
            at = spot.end
    added = [f"{written(name)}:{text}" for name, text in changes.items() if name not in body.fields]
    if added:
        end = max(spot.end for spot in body.fields.values())
        pieces += (body.text[at:end], ",", ",".join(added))
        at = end
    return "".join((*pieces, body.text[at:]))


def _check_rest(before: Body, after: Body, changed: set[str]) -> None:
    for name in before.value.keys() | after.value.keys():
        if name not in changed and (name not in after.value or not alike(before.value.get(name), after.value[name])):
            raise UneditableError("the edit would change more than it says")


class _Piece:
    """Items of the edited list: their text, and, if they are whole items as they came, which ones."""

    __slots__ = ("first", "last", "text")

    def __init__(self, text: str, first: int = -2, last: int = -2) -> None:
        self.text = text
        self.first = first
        self.last = last


class _Items:
    """The items of a body, by the messages that they were read as."""

    def __init__(self, form: Form, body: Body, messages: Sequence[Message]) -> None:
        spot = body.fields.get(ITEMS[form])
        if spot is None or not isinstance(spot.value, list):
            raise UneditableError("its messages are one text")
        self._form: Form = form
        self._source = body.text
        self._spot = spot
        self._items = elements(body.text, spot)
        self._messages = messages
        self._places = places_of(form, [each.value for each in self._items], messages)
        self._at = {id(message): position for position, message in enumerate(messages)}
        self._equal: defaultdict[Message, deque[int]] = defaultdict(deque)

    def text(self, edited: ChatRequest, wanted: dict[str, object]) -> str:
        """Return the text of the whole list after the edit."""
        pieces: list[_Piece] = []
        rest = deque(self._system_checked(edited.messages))
        first = wanted.get(ITEMS[self._form])
        if self._form == "messages" and rest and rest[0].role == "assistant" and isinstance(first, list):
            pieces.append(_Piece(written(cast("list[object]", first)[0])))  # the API wants the user's word first
        while rest:
            message = rest.popleft()
            position = self._position(message)
            if position is None:
                new = [message]
                while rest and self._position(rest[0]) is None:
                    new.append(rest.popleft())
                pieces += self._made(new, rest[0] if rest else None)
                continue
            if self._form != "messages":
                pieces.append(self._whole(position, message))
                continue
            own = [(position, message)]
            while rest and (next_one := self._position(rest[0])) is not None and self._follows(own[-1][0], next_one):
                own.append((next_one, rest.popleft()))
            pieces.append(self._of_blocks(own))
        return self._joined(pieces)

    def _system_checked(self, edited: Sequence[Message]) -> Sequence[Message]:
        """Return the messages behind Anthropic's ``system``, which no edit may touch."""
        if not self._places or self._places[0].first != SYSTEM:
            return edited
        if not edited or edited[0] != self._messages[0]:
            raise UneditableError("a layer has changed the system prompt")
        return edited[1:]

    def _position(self, message: Message) -> int | None:
        """Return which message it is, or was before it was edited; None for one that a layer put in."""
        position = self._at.get(id(message.original))
        if position is not None or message.mark:
            return position
        if not self._equal:  # a layer may hand on an equal message in the place of the one that came
            for at, each in enumerate(self._messages):
                self._equal[each].append(at)
        equal = self._equal.get(message.original)
        return equal[0] if equal is not None and len(equal) == 1 else None

    def _follows(self, one: int, other: int) -> bool:
        return self._places[one].first == self._places[other].first and other == one + 1

    def _whole(self, position: int, message: Message) -> _Piece:
        """Return the items of a message that is one or several items."""
        place = self._places[position]
        spots = self._items[place.first : place.end]
        if message is self._messages[position] or message == self._messages[position]:
            return _Piece(self._source[spots[0].start : spots[-1].end], place.first, place.end - 1)
        before = write_messages(self._form, [self._messages[position]])
        after = write_messages(self._form, [message])
        if len(before) != len(after) or len(spots) != len(after):
            return _Piece(",".join(map(written, after)))
        return _Piece(
            ",".join(
                patched(self._source, spot, one, other) for spot, one, other in zip(spots, before, after, strict=True)
            )
        )

    def _of_blocks(self, own: Sequence[tuple[int, Message]]) -> _Piece:
        """Return one item made of the blocks that are left of it, each with its own text unless it was edited."""
        item = self._places[own[0][0]].first
        spot = self._items[item]
        every = [each for place in self._places if place.first == item for each in place.blocks]
        blocks = [each for position, _ in own for each in self._places[position].blocks]
        if blocks == every and all(message == self._messages[position] for position, message in own):
            return _Piece(self._source[spot.start : spot.end], item, item)
        content = members(self._source, spot)["content"].spot
        if not isinstance(content.value, list):
            raise UneditableError("a layer has changed a text that is no list of blocks")
        texts = elements(self._source, content)
        made = [text for position, message in own for text in self._block_texts(position, message, texts)]
        text = "[" + ",".join(made) + "]"
        head, tail = self._source[spot.start : content.start], self._source[content.end : spot.end]
        return _Piece(f"{head}{text}{tail}")

    def _block_texts(self, position: int, message: Message, texts: Sequence[Spot]) -> list[str]:
        place, came = self._places[position], self._messages[position]
        spots = [texts[each] for each in place.blocks]
        if message == came:
            return [self._source[each.start : each.end] for each in spots]
        before, after = _content(self._form, came), _content(self._form, message)
        if len(before) != len(after) or len(spots) != len(after):
            return list(map(written, after))
        return [patched(self._source, spot, one, other) for spot, one, other in zip(spots, before, after, strict=True)]

    def _made(self, new: Sequence[Message], following: Message | None) -> list[_Piece]:
        """Return items for messages that a layer put in, with what has to stand between them and the next one."""
        items = write_messages(self._form, new)
        if following is not None:
            after = write_messages(self._form, [following])
            both = write_messages(self._form, [*new, following])
            if after and both[-len(after) :] == after:
                items = both[: -len(after)]
        return [_Piece(written(each)) for each in items]

    def _joined(self, pieces: Sequence[_Piece]) -> str:
        """Return the list: what stood between two items still stands there, if both do."""
        if not self._items:
            raise UneditableError("it has no messages")
        head = self._source[self._spot.start : self._items[0].start]
        tail = self._source[self._items[-1].end : self._spot.end]
        usual = self._source[self._items[0].end : self._items[1].start] if len(self._items) > 1 else ","
        found: list[str] = []
        for position, piece in enumerate(pieces):
            last = pieces[position - 1].last if position else -2
            if position:
                is_next = last >= 0 and piece.first == last + 1
                found.append(self._source[self._items[last].end : self._items[piece.first].start] if is_next else usual)
            found.append(piece.text)
        return "".join((head, *found, tail))


def _content(form: Form, message: Message) -> list[object]:
    """Return the blocks of one message."""
    items = write_messages(form, [message])
    content = items[0]["content"] if len(items) == 1 else None
    if not isinstance(content, list):
        raise UneditableError("a message has become several")
    return list(cast("list[object]", content))
