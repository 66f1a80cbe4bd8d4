"""A list of names ranks the name that a call took: by its form, then by the label beside the call's surroundings."""

from __future__ import annotations

import json

import pytest

from chatstack import ChatRequest, Message, ToolCall, ToolResult
from chatstack.context.strategies.name_lists import Names, list_text
from chatstack.workbench.replay.measures.ranking import Ranker, Ranking


def call(name: str = "book", **arguments: object) -> Message:
    return Message.assistant("I book it.", ToolCall("a", name, json.dumps(arguments)))


def ranking(rows: list[Names], asking: Message, *before: Message, other: list[Names] | None = None) -> Ranking:
    """Of one call, whose request holds these rows and nothing else."""
    came = Message.tool("r", "long")
    left = came.edited(parts=(ToolResult("r", "", "[cleared]" + list_text(rows)),))
    full = (Message.user("a flight to Oslo, please"), *before, came, asking)
    found = Ranking()
    Ranker(full).weigh(len(full) - 1, ChatRequest((full[0], left)), found, other)
    return found


OSLO, ROME = Names(("FLT111", "FLT112"), "search flights Oslo"), Names(("FLT221", "FLT222"), "search flights Rome")


def test_a_label_that_fits_the_call_ranks_its_names_above_the_others() -> None:
    found = ranking([ROME, OSLO], call(flight="FLT112"))

    assert found.values == 1
    assert found.by_label == pytest.approx(1 / 1.5)  # two under the label, in no order
    assert 1 / 3.5 < found.shuffled < 1 / 1.5


def test_a_label_that_fits_another_call_ranks_them_below() -> None:
    assert ranking([ROME, OSLO], call(flight="FLT221")).by_label == pytest.approx(1 / 3.5)


def test_without_labels_shuffling_makes_no_difference() -> None:
    found = ranking([Names(("FLT111", "FLT112", "FLT221"))], call(flight="FLT112"))

    assert found.by_label == pytest.approx(found.shuffled) == pytest.approx(1 / 2)


def test_names_of_the_form_that_the_argument_had_before_come_first() -> None:
    rows = [Names(("mia_li_1234", "FLT111", "src/a.py"))]

    assert ranking(rows, call(flight="FLT111"), call(flight="FLT999")).by_label == 1
    assert ranking(rows, call(flight="FLT111"), call(user="FLT999")).by_label == pytest.approx(1 / 2)
    assert ranking(rows, call(flight="FLT111"), call("look", flight="FLT999")).by_label == pytest.approx(1 / 2)


def test_the_value_itself_is_no_hint() -> None:
    rows = [Names(("oslo-1",), "look at Rome"), Names(("rome-1",), "look at Oslo")]

    assert ranking(rows, call(at="oslo-1")).by_label == pytest.approx(1 / 2)


@pytest.mark.parametrize("asking", [call(flight="FLT999"), call(to="Oslo"), Message.assistant("no call")])
def test_only_values_that_stand_in_the_list_alone_count(asking: Message) -> None:
    assert ranking([ROME, Names(("Oslo",))], asking) == Ranking()


def test_a_request_without_a_list_has_nothing_to_rank() -> None:
    found, full = Ranking(), (Message.user("go"), call(flight="FLT111"))

    Ranker(full).weigh(1, ChatRequest(full[:1]), found)

    assert (found, found.mean_by_label, found.mean_shuffled) == (Ranking(), None, None)


def test_other_labels_can_take_the_place_of_those_that_were_sent() -> None:
    bare = [Names(("FLT111", "FLT112", "FLT221", "FLT222"))]

    found = ranking(bare, call(flight="FLT112"), other=[OSLO, ROME])

    assert found.by_label == pytest.approx(1 / 1.5)
    assert ranking(bare, call(flight="FLT112"), other=[ROME]) == Ranking()


def test_means_are_of_all_values() -> None:
    total = Ranking(4, 1.5, 1.0)

    assert (total.mean_by_label, total.mean_shuffled) == (0.375, 0.25)
