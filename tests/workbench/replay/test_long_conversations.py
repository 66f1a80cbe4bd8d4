"""What a long conversation costs: of each call only what is new in it, counted in steps and not in seconds."""

from __future__ import annotations

import pytest

from chatstack.values.messages import Message
from chatstack.workbench.replay.measures.following import Following, shared_start
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.page import page_of
from chatstack.workbench.replay.policies import policies_for
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.report import report_of, with_stories
from chatstack.workbench.replay.setup import Setup
from tests.steps import steps_of
from tests.workbench.replay.conversations import (
    assistant,
    conversation,
    outcome_of,
    recording,
    result,
    setup_of,
    user,
)

WINDOWS = {"nothing": 1_000, "guard": 3_000, "sliding-window": 1_000, "rolling-masking": 1_000, "recommended": 3_000}
"""Tokens that each policy is given: all of them edit, some all the time."""


def work(messages: int) -> Recording:
    """An agent's run, with calls that take up values of results far back and near."""
    told = [user("Mend what fails in /srv/app."), assistant("I look for it.")]
    for number in range(messages // 2):
        call = assistant(None, f"call_{number}")
        call["tool_calls"][0]["function"] = {  # type: ignore[index]
            "name": "bash",
            "arguments": f'{{"command": "less file-{number // 3:05}.py && grep token-{number - 1:05} /srv/app"}}',
        }
        told += [call, result(f"call_{number}", f"file-{number + 1:05}.py has token-{number:05} of /srv/app " * 4)]
    return recording(conversation(*told, assistant("done")))


def told(setup: Setup, outcome: Outcome) -> str:
    return page_of(with_stories(report_of(outcome, setup), outcome))


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_twice_as_many_messages_take_about_twice_as_many_steps_and_bytes_of_the_page(name: str) -> None:
    setup = setup_of(*policies_for([], [name]), window=WINDOWS[name], stories=1)
    outcome_of(setup, work(10))  # tables are loaded once
    pages: list[str] = []

    def steps(messages: int) -> int:
        item = work(messages)
        return steps_of(lambda: pages.append(told(setup, outcome_of(setup, item))))

    assert steps(300) * 2.5 > steps(600)
    frame = len(told(setup, outcome_of(setup, work(10))))
    assert len(pages[1]) - frame < 2.5 * (len(pages[0]) - frame)


def test_what_two_requests_share_is_the_same_objects_from_their_start() -> None:
    one, other, third = (Message.user(text) for text in ("a", "b", "c"))

    assert shared_start((one, other), (one, other, third)) == 2
    assert shared_start((one, other, third), (one, third)) == 1
    assert shared_start((one,), (Message.user("a"),)) == 0
    assert shared_start((), (one,)) == 0


def test_only_what_differs_is_taken_and_dropped() -> None:
    one, other, third = (Message.user(text) for text in ("a", "b", "c"))
    done: list[tuple[str, Message]] = []
    following = Following(lambda each: done.append(("take", each)), lambda each: done.append(("drop", each)))

    following.follow((one, other))
    following.follow((one, other, third))
    following.follow((one, third))

    takes = [("take", one), ("take", other), ("take", third)]
    assert done == [*takes, ("drop", third), ("drop", other), ("take", third)]
