"""Conversations whose calls take values up again that were seen before, and of which the half is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chatstack.workbench.replay.tuning.halves import halves_of
from tests.workbench.replay.conversations import assistant, conversation, recording, result, user

WINDOW = 1_000


def errand(name: str, *calls: str, words: int = 60) -> dict[str, object]:
    """A task, a call with each of these arguments, and an answer; result n holds ``name-code-n``."""
    messages: list[dict[str, object]] = [{"role": "system", "content": "Be brief."}, user(f"{name}: fetch them")]
    for number, argument in enumerate(calls):
        call = assistant(None, f"call_{number}")
        call["tool_calls"][0]["function"] = {"name": "fetch", "arguments": f'{{"at": "{argument}"}}'}  # type: ignore[index]
        messages += [call, result(f"call_{number}", f"{name}-code-{number} {f'row {number} ' * words}")]
    return conversation(*messages, assistant("done"), id=name)


def is_tuned_on(wire: dict[str, object]) -> bool:
    """In which half a conversation falls."""
    return bool(halves_of([recording(wire)], WINDOW).tuning)


def errands(
    count: int, *, is_tuned: bool, calls: Callable[[str], Sequence[str]], words: int = 60
) -> list[dict[str, object]]:
    """So many errands of one half, each with its own calls."""
    found: list[dict[str, object]] = []
    number = 0
    while len(found) < count:
        name = f"errand{number}"
        wire = errand(name, *calls(name), words=words)
        number += 1
        if is_tuned_on(wire) == is_tuned:
            found.append(wire)
    return found
