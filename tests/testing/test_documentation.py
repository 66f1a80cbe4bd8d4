"""What the test kit's documentation shows is run."""

from __future__ import annotations

import textwrap
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import chatstack.testing
from chatstack import ChatClient, ChatFronts, ChatRequest, ChatStream, LayerKind, Message


@dataclass(frozen=True, slots=True, eq=False)
class Reminder(ChatFronts):
    """Says the same thing at the start of every request."""

    inner: ChatClient
    _: KW_ONLY
    text: str

    kind: ClassVar[LayerKind] = "context"

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request.but(messages=(Message.system(self.text), *request.messages)))


def example() -> dict[str, object]:
    """The names that the example in the module's docstring defines."""
    assert chatstack.testing.__doc__ is not None
    code = chatstack.testing.__doc__.split("::\n", 1)[1].rsplit("\n\n``ScriptedClient``", 1)[0]
    names: dict[str, object] = {"Reminder": Reminder}
    exec(compile(textwrap.dedent(code), "example", "exec"), names)
    return names


def test_the_example_passes() -> None:
    test = example()["test_the_reminder_comes_first"]
    assert callable(test)
    test()


def test_the_layer_of_the_example_keeps_the_contract() -> None:
    suite = example()["TestReminder"]
    assert isinstance(suite, type)
    checks = [name for name in dir(suite) if name.startswith("test_")]
    assert len(checks) > 15
    for check in checks:
        getattr(suite(), check)()
