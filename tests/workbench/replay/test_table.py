"""The table and the lines below it, for people: what is in them, and what never reaches a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chatstack import ChatClient, ChatStack, ContextWindowGuard, ToolDeclaration
from chatstack.workbench.replay.measures.grounding import Grounding
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.table import print_table, report_broken, report_faults, report_table
from tests.command_line import CONTROLS, HOSTILE
from tests.workbench.replay.conversations import assistant, conversation, outcome_of, recording, setup_of, talk, user


def told(outcome: Outcome, setup: Setup, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_table(report_table(outcome, setup), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(printed, str)
    return printed


def strict(ceiling: int, model: ChatClient) -> ChatStack:
    return ChatStack(model).use(ContextWindowGuard, max_context_tokens=ceiling, strict=True)


def test_there_is_a_row_for_each_policy_in_their_order() -> None:
    setup = setup_of(*policies_for([], ["guard", "nothing"]), window=12_345)

    printed = told(outcome_of(setup, recording(talk(2)), recording(talk(3))), setup)

    lines = printed.splitlines()
    assert lines[0].strip() == "2 conversations, 10 calls, window 12,345 tokens"
    names = [words[0] for line in lines if (words := line.split())]
    assert [name for name in names if name in ("guard", "nothing")] == ["guard", "nothing"]
    assert "wire text by characters\n" in "\n".join(line.strip() for line in lines) + "\n"


def test_tools_are_named_below_the_table() -> None:
    setup = setup_of(*policies_for([], ["nothing"]), tools=(ToolDeclaration("look"),))

    assert f"{setup.tools_tokens} of tool schemas in every call" in told(outcome_of(setup, recording(talk(1))), setup)


def test_one_is_not_many() -> None:
    setup = setup_of(*policies_for([], ["nothing"]))

    assert "1 conversation, 1 call, window" in told(
        outcome_of(setup, recording(conversation(user("q"), assistant("a")))), setup
    )


def test_what_is_rare_has_a_column_only_where_it_happened() -> None:
    fine, refusing = setup_of(*policies_for([], ["nothing"])), setup_of(Policy("strict", strict), window=20)

    assert "fused" not in told(outcome_of(fine, recording(talk(1))), fine)
    outcome = outcome_of(refusing, recording(talk(1)))
    assert "fused" in told(outcome, refusing)
    assert report_faults(outcome) == ["strict: ContextOverflowError (1)"]


def test_where_nothing_could_be_measured_there_are_dashes() -> None:
    setup = setup_of(*policies_for([], ["nothing"]))

    (row,) = (line for line in told(outcome_of(setup), setup).splitlines() if line.split()[:1] == ["nothing"])

    assert row.split()[1:] == ["-", "-", "0", "-", "-", "0", "0", "0", "0.00"]


def test_what_was_found_without_lists_of_names_has_rows_only_where_there_were_lists() -> None:
    setup = setup_of(*policies_for([], ["nothing", "recommended"]))
    outcome = outcome_of(setup, recording(talk(2)))
    outcome.figures[1].grounding = Grounding(8, 7, 4, 3, 5, 1, 6, 2)

    lines = told(outcome, setup).splitlines()

    (nothing, *rows) = [
        line.split() for line in lines if line.split()[:1] in (["nothing"], ["recommended"], ["bare"], ["attr."])
    ]
    assert nothing[0] == "nothing"
    assert rows[0][4:6] == ["87.5", "75.0"]
    assert rows[1:] == [["bare", "62.5", "25.0"], ["attr.", "75.0", "50.0"]]
    assert "bare: without those only in a list of names that an edit left;" in map(str.strip, lines)


def test_no_name_of_a_policy_or_file_and_no_error_moves_the_cursor() -> None:
    setup = setup_of(Policy(HOSTILE, lambda ceiling, model: ChatStack(model)))
    outcome = outcome_of(setup, recording(talk(1)), BrokenLine(HOSTILE, 2, HOSTILE))
    outcome.figures[0].note(HOSTILE)

    printed = "\n".join([told(outcome, setup), *report_faults(outcome), *report_broken(outcome)])

    assert "red" in printed
    assert CONTROLS.search(printed) is None


def test_a_long_name_is_folded_and_no_figure_is_cut() -> None:
    setup = setup_of(Policy("p" * 200, lambda ceiling, model: ChatStack(model)))

    printed = told(outcome_of(setup, recording(talk(40))), setup, 80)

    assert printed.count("p" * 7) >= 2
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 60, 20])
def test_a_terminal_that_is_too_narrow_costs_neither_a_name_nor_a_figure(width: int) -> None:
    setup = setup_of(*policies_for([], ["nothing", "sliding-window"]), Policy("strict", strict), window=100)

    printed = told(outcome_of(setup, recording(talk(40))), setup, width)

    assert "…" not in printed
    assert "nothing" in printed
    assert "sliding" in printed


@pytest.mark.parametrize(("count", "lines"), [(0, 0), (1, 2), (10, 11), (11, 12), (2_000, 12)])
def test_the_first_ten_broken_places_are_told_and_how_many_there_are(count: int, lines: int) -> None:
    outcome = Outcome([])
    for number in range(count):
        outcome.note(number, BrokenLine("talks.jsonl", number, "not valid JSON"))

    found = report_broken(outcome)

    assert len(found) == lines
    if count:
        assert found[:2] == [f"{count:,} could not be read:", "  talks.jsonl:0: not valid JSON"]
    assert found[11:] == ([f"  and {count - 10:,} more"] if count > 10 else [])
