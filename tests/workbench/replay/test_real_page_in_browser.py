"""The page of a real report, of small conversations through real policies, in a real browser: what a mouse reaches, and
that it tells what the report says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, Message, Text
from chatstack.values.requests import ToolDeclaration
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.page import page_of
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine
from chatstack.workbench.replay.report import report_of, with_stories
from tests.workbench.replay.conversations import assistant, conversation, outcome_of, recording, setup_of, talk, user
from tests.workbench.replay.devtools import PROGRAM, Browser, Page, chromium
from tests.workbench.replay.errands import errand
from tests.workbench.replay.reports import Report, in_whole, letters_of, report, rows_of

NAMES = ("nothing", "sliding-window", "guard", "recommended")
LEFT, ACROSS, DOWN = 44, 30, 15
"""Pixels: where the first cell of a map begins, and the size of a cell, where there is room for all of them."""
FIRST = ".pane:first-child"
PAINTED = """((left, across, down, ends) => {
  const pixels = (pen, width, height) => {
    const { data } = pen.getImageData(0, 0, width, height); // once: a canvas is slow to read
    return (x, y) => String(data.slice(4 * (y * width + x), 4 * (y * width + x) + 4));
  };
  const style = getComputedStyle(document.documentElement);
  const letters = Object.fromEntries([..."kcfd"].map((letter) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.fillStyle = style.getPropertyValue(`--${letter}`).trim();
    pen.fillRect(0, 0, 1, 1);
    return [pixels(pen, 1, 1)(0, 0), letter];
  }));
  const map = document.querySelector(".pane:first-child .map canvas");
  const pixel = pixels(map.getContext("2d"), map.width, map.height);
  return ends.map((end, call) => Array.from({ length: end }, (_, message) =>
    letters[pixel(left + call * across + 4, message * down + 4)] ?? "?").join(""));
})"""


def real_report(folder: Path) -> Report:
    """Three conversations, and one that cannot be read, through policies that do all that can be done to a message."""
    files = {
        "folding": {"use": "Summarizer", "max_tokens": 900},
        "strict": {"use": "ContextWindowGuard", "max_context_tokens": 500, "strict": True},
    }
    for name, layer in files.items():
        (folder / f"{name}.json").write_text(json.dumps({"layers": [layer]}))
    policies = policies_for([folder / f"{name}.json" for name in files], NAMES)
    tools = (ToolDeclaration("fetch"),)
    setup = setup_of(*policies, window=600, counter=WireCounter.best(), tools=tools, stories=9)
    errands = (errand(name, *(f"{name}-code-{max(0, at - 4)}" for at in range(11))) for name in ("lamp", "chair"))
    items = map(recording, (*errands, {**talk(6, 80), "id": "talk"}))
    outcome = outcome_of(setup, *items, BrokenLine("talks.jsonl", 4, "no messages"))
    return with_stories(report_of(outcome, setup, ["talks.jsonl"], "tools.json"), outcome)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return real_report(tmp_path_factory.mktemp("pipelines"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, told: Report, tmp_path: Path) -> Iterator[Page]:
    """The page of that report, and nothing goes wrong on it."""
    with browser.page(written(told, tmp_path)) as page:
        yield page
        assert page.complaints() == []


def in_browser(test: Any) -> Any:
    """A test that needs Chromium."""
    reason = "the page is looked at in Chromium: apt-get install chromium"
    return pytest.mark.server(pytest.mark.skipif(PROGRAM is None, reason=reason)(test))


def written(told: Report, folder: Path) -> Path:
    file = folder / "report.html"
    file.write_text(page_of(told), encoding="utf-8")
    return file


def text(page: Page, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r})?.textContent ?? ''"))


def rows(page: Page, pane: str) -> list[str]:
    """What the rows of a pane say."""
    shown = f"[...document.querySelectorAll('{pane} .message:not([hidden]) .tag')]"
    found: list[str] = page.value(f"{shown}.map((tag) => tag.textContent)")
    return found


def show(page: Page, told: Report, first: str, second: str = "") -> None:
    """These policies, side by side, or the first alone."""
    names = [each["name"] for each in told["policies"]]
    page.give("#policy-a", names.index(first), "change")
    page.give("#policy-b", names.index(second) if second else -1, "change")
    page.settle()


def course(story: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The calls of a story under a policy."""
    (found,) = (each["calls"] for each in story["policies"] if each["name"] == name)
    return in_whole(found)


def fields_of(value: Any, at: str = "") -> set[str]:
    """The paths of all fields; ``changed`` has numbers for names, and ``faults`` whatever happened."""
    named: list[tuple[str, Any]] = []
    if isinstance(value, list):
        named = [(f"{at}[]", each) for each in value]
    elif isinstance(value, dict) and not at.endswith(".faults"):
        pairs = cast("dict[str, Any]", value).items()
        named = [(f"{at}.{'*' if at.endswith('.changed') else name}", each) for name, each in pairs]
    return {path for path, _ in named}.union(*(fields_of(each, path) for path, each in named))


def test_an_invented_report_has_the_fields_of_a_real_one(told: Report) -> None:
    """So that what is tried on invented ones holds for real ones."""
    real = fields_of(told)

    assert {".policies[].curve.peak", ".stories[].policies[].calls[].changed.*.chars"} <= real
    assert fields_of(report(conversations=9)) == real


@in_browser
def test_a_click_chooses_a_conversation_and_a_click_in_the_map_a_call_and_a_message(page: Page, told: Report) -> None:
    story = told["stories"][1]
    page.click("#story-list li:nth-child(2)")
    assert text(page, "#story-list [aria-selected=true] .id") == story["id"]
    seen: set[str] = set()
    for first, second in (
        ("guard", "recommended"),
        ("folding", "sliding-window"),
        ("strict", "guard"),
        ("recommended", "folding"),
    ):
        show(page, told, first, second)
        for call, message in ((len(story["calls"]) - 1, 2), (7, 13), (8, 0), (2, 5)):
            page.click(f"{FIRST} .map", LEFT + (call + 0.5) * ACROSS, (message + 0.5) * DOWN)
            assert text(page, "#call-at") == f"{call + 1} of {len(story['calls'])}"
            assert text(page, f"{FIRST} .where").startswith(f"Call {call + 1}, message {message + 1} (")
            assert text(page, f"{FIRST} .chosen .number") == str(message + 1)
            for pane, name in ((FIRST, first), (".pane:last-child", second)):
                assert rows(page, pane) == rows_of(course(story, name)[call])
                seen |= set(rows(page, pane))
    assert seen == {"sent", "cleared", "folded", "dropped", "put in", "answer", "recorded"}


@in_browser
def test_the_cells_of_the_map_have_the_colours_of_the_states(page: Page, told: Report) -> None:
    story = told["stories"][1]
    page.click("#story-list li:nth-child(2)")
    for name in ("guard", "recommended", "folding", "strict"):
        show(page, told, name)
        painted = page.value(f"{PAINTED}({LEFT}, {ACROSS}, {DOWN}, {story['calls']})")
        assert painted == [letters_of(call["states"]) for call in course(story, name)]


@in_browser
@pytest.mark.parametrize("name", [*NAMES, "folding", "strict"])
def test_what_the_conversations_tell_adds_up_to_the_figures_of_the_report(page: Page, told: Report, name: str) -> None:
    (figures,) = (each for each in told["policies"] if each["name"] == name)
    show(page, told, name)
    listed = re.findall(r"(\d+) edits?, (\d+) lost", text(page, "#story-list"))
    found = round(figures["grounding"] * figures["grounding_values"])
    broken = over = refused = 0
    for number, story in enumerate(told["stories"]):
        page.click(f"#story-list li:nth-child({number + 1})")
        for call in range(len(story["calls"])):
            page.give("#call", call + 1, "input")
            summary = text(page, f"{FIRST} .call")
            broken += "Breaks the cached prefix." in summary
            over += "More than the window." in summary
            refused += "Refused, nothing was sent: ContextOverflowError" in summary

    assert len(listed) == len(told["stories"]) == told["conversations"] == 3
    assert sum(int(edits) for edits, _ in listed) == figures["edits"]
    assert sum(int(lost) for _, lost in listed) == figures["grounding_values"] - found
    assert (broken, over, refused) == (figures["prefix_breaks"], figures["over_limit"], figures["refused"])


@in_browser
def test_clicks_go_from_call_to_call_and_from_edit_to_edit(page: Page, told: Report) -> None:
    """An edit is what a layer reported, also where it broke nothing."""
    (number,) = (at for at, each in enumerate(told["stories"]) if each["id"] == "talk")
    calls = course(told["stories"][number], "sliding-window")
    edited = [at for at, call in enumerate(calls) if call.get("why")]
    assert len(edited) > sum(call.get("broken", False) for call in calls) > 0
    show(page, told, "sliding-window")
    page.click(f"#story-list li:nth-child({number + 1})")
    shown = [text(page, "#call-at")]
    for _ in edited:
        page.click("#edit-after")
        shown.append(text(page, "#call-at"))
    assert shown == [f"{at + 1} of {len(calls)}" for at in (*edited, edited[-1])]
    for button, at in (("#edit-before", edited[-2]), ("#call-before", edited[-2] - 1), ("#call-after", edited[-2])):
        page.click(button)
        assert text(page, "#call-at") == f"{at + 1} of {len(calls)}"


@dataclass(frozen=True, slots=True, eq=False)
class Longer:
    """Makes an answer longer, puts a text in, and leaves out the message with the values."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        first, *others = request.messages
        sent = [first, *(each.edited(parts=(Text("x" * 4_000),)) for each in others[:1]), Message.user("y" * 900)]
        return await self.inner.send(request.but(messages=tuple(sent)))


@in_browser
def test_what_is_cut_says_of_how_much_it_is_the_beginning(browser: Browser, tmp_path: Path) -> None:
    """A character counts as one, also where the script counts two."""
    values = [f"value-{number:02}" for number in range(41)]
    asking = assistant(None, "last")
    asking["tool_calls"][0]["function"]["arguments"] = json.dumps(values)  # type: ignore[index]
    wire = conversation(user("😀" * 3_000), assistant("ok"), user(" ".join(values)), asking)
    setup = setup_of(Policy("longer", lambda ceiling, model: ChatStack(model).use(Longer)), stories=1)
    outcome = outcome_of(setup, recording(wire))
    with browser.page(written(with_stories(report_of(outcome, setup), outcome), tmp_path)) as page:
        page.give("#call", 2, "input")
        page.value("document.querySelectorAll('.message details').forEach((each) => (each.open = true))")
        page.settle()
        bodies = page.value("[...document.querySelectorAll('.message:not([hidden])')].map((each) => each.textContent)")
        cut = [re.findall(r"The first .*? characters\.", body) for body in bodies]
        assert [bool(re.search("put in", body)) for body in bodies] == [False, False, True, False, False]
        assert cut == [
            ["The first 2,000 of 3,000 characters."],
            ["The first 2,000 of 4,000 characters."],
            ["The first 600 of 900 characters."],
            [],
            [],
        ]
        assert text(page, ".call").endswith("value-28 value-29 and 11 more")
        assert text(page, "#story-list").endswith("0 edits, 41 lost")
