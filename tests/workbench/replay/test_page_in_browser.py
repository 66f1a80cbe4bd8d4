"""The page of a report in a real browser: nothing of a recording runs, nothing is asked of any network, keys reach
everything, and what it shows is what the report says. Skipped where there is no Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatstack.workbench.replay.page import page_of
from tests.workbench.replay.devtools import PROGRAM, Browser, Page, chromium
from tests.workbench.replay.reports import Report, hostile, in_whole, large_story, message, report, rows_of

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(PROGRAM is None, reason="the page is looked at in Chromium: apt-get install chromium"),
]
Written = Callable[[Report], Path]
MARKS = "\x00\x07\x1b\x7f\x85\u061c\u200b\u200e\u2028\u2029\u202a\u202e\u2060\u2066\u2069\ufeff\ufff9\ud800\U000e0041"
TEXTS = ("p", "dt", "dd", "th", "td", "li", "label", "button", "select", "output", "h2", "summary")
SHOWN = "[...document.querySelectorAll('.pane:first-child .message:not([hidden])')]"
CONTRAST = """(selector) => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll(selector)].filter((each) => each.getClientRects().length).map((each) => {
    let behind = each;
    while (behind && numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const style = getComputedStyle(each);
    const two = [each.closest("svg") ? style.fill : style.color,
                 getComputedStyle(behind ?? document.body).backgroundColor].map(light).sort((a, b) => b - a);
    return (two[0] + 0.05) / (two[1] + 0.05);
  });
}"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(told: Report) -> Path:
        file = tmp_path / "report.html"
        file.write_text(page_of(told), encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="module")
def invented() -> Report:
    return report(conversations=12, shown=4)


def focused(page: Page, what: str) -> None:
    """Tab until the focus is there."""
    for _ in range(60):
        page.press("Tab")
        if page.value(f"document.activeElement.matches({what!r})"):
            return
    raise AssertionError(f"no Tab reaches {what}")


def at_call(page: Page, call: int) -> list[str]:
    """What the rows of the first policy say at a call, counted from 0."""
    page.give("#call", call + 1, "input")
    found: list[str] = page.value(f"{SHOWN}.map((row) => row.querySelector('.tag').textContent)")
    return found


def test_nothing_of_a_hostile_conversation_runs_and_nothing_is_asked_for(
    browser: Browser, written: Written, invented: Report
) -> None:
    file = written(hostile(invented))
    with browser.page(file) as page:
        last = int(page.value("Number(document.querySelector('#call').max)"))
        for call in range(last):
            at_call(page, call)
            page.value(f"{SHOWN}.forEach((row) => (row.querySelector('details').open = true))")
            page.settle()
        texts = page.value("document.querySelector('#panes').textContent")
        assert "<img src=x onerror='hacked = 1'>" in texts
        assert "⟨U+202E⟩evil⟨U+202C⟩" in texts
        assert "👩‍👩‍👧 مرحبا" in texts
        assert "The first 2,000 of 1,000,005 characters." in texts
        assert page.value("[globalThis.hacked ?? null, document.scripts.length]") == [None, 2]
        assert page.value("document.querySelectorAll('img, iframe, link, object, embed').length") == 0
        assert page.complaints() == []
        assert page.asked_for() == {file.as_uri()}


def test_the_policy_of_the_page_stops_what_would_get_in_nevertheless(browser: Browser, written: Written) -> None:
    with browser.page(written({})) as page:
        thrown = page.value(
            "(() => { try { document.body.innerHTML = '<b>'; } catch (error) { return error.name; } })()"
        )
        assert thrown == "TypeError"
        page.value("try { document.body.setAttribute('onclick', 'hacked = 1'); } catch { document.body.click(); }")
        page.value("document.body.setAttribute('style', 'color: red'); new Image().src = 'picture.png'; 0")
        page.settle()
        found = page.value("violations")
        assert {"require-trusted-types-for", "style-src-attr", "img-src"} <= set(found)
        assert page.value("globalThis.hacked ?? null") is None
        assert len(page.complaints()) > len(found)


def test_keys_alone_choose_a_conversation_move_the_call_and_open_a_message(
    browser: Browser, written: Written, invented: Report
) -> None:
    with browser.page(written(invented)) as page:
        page.press("Tab")
        assert page.value("document.activeElement.className") == "skip"
        focused(page, "#story-list")
        page.press("ArrowDown", 2)
        chosen = page.value("document.querySelector('#story-list [aria-selected=true]').textContent")
        assert chosen.startswith(invented["stories"][2]["id"])
        assert page.value("document.activeElement.getAttribute('aria-activedescendant')") == "story-2"
        focused(page, "#call")
        page.press("Home")
        first = page.value("document.querySelector('.call').textContent")
        page.press("ArrowRight")
        assert page.value("document.querySelector('#call-at').textContent").startswith("2 of ")
        assert page.value("document.querySelector('.call').textContent") != first
        focused(page, ".map")
        page.press("ArrowRight")
        page.press("ArrowDown", 2)
        assert page.value("document.querySelector('.where').textContent").startswith("Call 3, message 3 (")
        page.press("Enter")
        text = invented["stories"][2]["messages"][2]["text"]
        assert page.value("document.activeElement.parentElement.querySelector('.text').textContent") == text
        page.press("ArrowUp")
        assert page.value("document.querySelector('.where').textContent").startswith("Call 3, message 2 (")


def test_each_place_that_tab_reaches_shows_that_it_has_the_focus(
    browser: Browser, written: Written, invented: Report
) -> None:
    with browser.page(written(invented)) as page:
        seen: list[str] = []
        for _ in range(75):
            page.press("Tab")
            place, width = page.value(
                "(() => { const at = document.activeElement; const style = getComputedStyle(at);"
                "return [at.id || at.className || at.tagName, style.outlineStyle === 'none' ? 0 :"
                "parseFloat(style.outlineWidth)]; })()"
            )
            if place == "BODY":
                break
            assert width >= 1, place
            seen.append(place)
        assert {"lines-call", "story-list", "policy-a", "policy-b", "call", "map", "only-edited"} <= set(seen)


@pytest.mark.parametrize("width", [400, 1400])
def test_no_page_is_wider_than_its_window(browser: Browser, written: Written, invented: Report, width: int) -> None:
    long = {**invented["policies"][0], "name": "a-very-long-name-without-any-break" * 4, "about": "x" * 300}
    told = hostile(invented) | {"files": ["y" * 400]}
    with browser.page(written(told | {"policies": [*told["policies"], long]}), width) as page:
        assert page.value("document.documentElement.scrollWidth") == width


OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll("svg.chart text")].filter((each) => each.textContent.trim())
    .map((each) => ({ words: each.textContent, box: each.getBoundingClientRect() }));
  return boxes.flatMap((one, at) => boxes.slice(at + 1).filter((other) => {
    const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    return across > 1 && down > 1;
  }).map((other) => `${one.words} | ${other.words}`));
})()"""


def row(name: str, cost: float | None, found: float, **more: object) -> dict[str, Any]:
    shares = {"grounding": found, "grounding_far": found, "grounding_bare": found, "grounding_far_bare": found}
    kept: dict[str, Any] = {"over_limit": 0, "refused": 0, "invalid_requests": 0, "latest_user_lost": 0}
    return {"name": name, "cost_relative": cost, **kept, **shares, **more}


LONG = "a-stack-of-mine-with-a-long-name"
SHAPES: dict[str, list[dict[str, Any]]] = {
    "one": [row("nothing", 1.0, 0.97)],
    "all is found": [row(f"policy-{at}", 0.9 + at / 50, 1.0) for at in range(15)],
    "all is found, but one costs nobody knows what": [row("a", None, 1.0), row(LONG, 0.7, 0.998, is_yours=True)],
    "all at one place": [row(f"{LONG}-{at}", 1.0, 0.9) for at in range(12)],
    "all cost the same": [row(f"policy-{at}", 1.0, 0.5 + at / 100) for at in range(20)],
    "all find the same": [row(f"policy-{at}", 0.5 + at / 100, 0.6) for at in range(20)],
    "many, close together": [row(f"policy-{at}", 1 + (at % 7) / 100, 0.9 + (at % 5) / 100) for at in range(40)],
    "far apart": [row("a", 0.001, 0.001), row("b", 900.0, 0.999), row("c", 3.0, 0.5, over_limit=4)],
    "some without a cost": [row(f"policy-{at}", None if at % 3 else 1 + at, 0.5 + at / 30) for at in range(12)],
    "wide letters": [row("方針方針方針方針方針方針方針" * 2, 0.8 + at / 10, 0.7 + at / 9) for at in range(4)],
}


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_label_of_a_picture_lies_over_another_and_none_is_lost(
    browser: Browser, written: Written, invented: Report, shape: str, width: int
) -> None:
    with browser.page(written(invented | {"policies": SHAPES[shape]}), width) as page:
        for field in ("grounding", "grounding_far"):
            page.value(f"document.querySelector('[value={field}]').click()")
            assert page.value(OVERLAPS) == []
        named = page.value("document.querySelectorAll('#scatter text.name, #scatter-rest span').length")
        assert named == len(SHAPES[shape])
        assert page.value("document.documentElement.scrollWidth") == width
        assert page.complaints() == []


def test_where_everything_is_found_the_picture_has_a_row_for_each_policy(
    browser: Browser, written: Written, invented: Report
) -> None:
    heights = "[...document.querySelectorAll('#scatter circle')].map((each) => Number(each.getAttribute('cy')))"
    with browser.page(written(invented | {"policies": SHAPES["all is found"]})) as page:
        places = page.value(heights)
        assert places == sorted(set(places))
        told = page.value("document.getElementById('scatter').textContent")
        assert "every policy finds 100 %: they differ in cost" in told


@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out_from_what_is_behind_them(
    browser: Browser, written: Written, invented: Report, dark: bool
) -> None:
    names = "['cleared', 'folded', 'dropped', 'added', 'answer', 'sent']"
    with browser.page(written(hostile(invented)), dark=dark) as page:
        page.value(
            "document.querySelectorAll('.message').forEach((each, at) => { each.hidden = false;"
            f"each.className = `message ${{{names}[at % 6]}}`; }})"
        )
        for selector in (*TEXTS, ".tag", ".who", ".tokens", ".preview", ".note", ".bad", ".about", "svg text"):
            assert min(page.value(f"({CONTRAST})({selector!r})")) >= 4.5, selector


def test_the_dark_page_is_dark_and_paper_is_not(browser: Browser, written: Written, invented: Report) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    cell = "[...document.querySelector('.map canvas').getContext('2d').getImageData(60, 5, 1, 1).data]"
    with browser.page(written(invented)) as page:
        light = page.value(f"[{ground}, {cell}]")
        page.colours(dark=True)
        page.until(f"{ground} !== {light[0]!r} && String({cell}) !== '{','.join(map(str, light[1]))}'")
        page.value("dispatchEvent(new Event('beforeprint'))")
        assert page.value(f"[{ground}, {cell}]") == light


def test_a_conversation_of_500_messages_and_250_calls_is_there_soon_and_stays_quick(
    browser: Browser, written: Written, invented: Report
) -> None:
    with browser.page(written(invented | {"stories": [large_story()], "window": 40_000})) as page:
        assert page.value("document.querySelectorAll('*').length") < 20_000
        assert page.value("document.querySelectorAll('ol.messages > li').length") >= 500
        took = page.value(
            "(() => { const since = performance.now(); const call = document.querySelector('#call');"
            "for (let at = 1; at <= 250; at += 5) { call.value = at; call.dispatchEvent(new Event('input'));"
            "document.body.offsetHeight; } return (performance.now() - since) / 50; })()"
        )
        assert took < 300  # milliseconds for a step, on a machine that has other things to do


def test_the_rows_are_the_states_of_the_report(browser: Browser, written: Written, invented: Report) -> None:
    story = max(invented["stories"], key=lambda each: len(each["calls"]))
    with browser.page(written(invented | {"stories": [story]})) as page:
        for number, course in enumerate(story["policies"]):
            page.give("#policy-a", number, "change")
            for at, call in enumerate(in_whole(course["calls"])):
                assert at_call(page, at) == rows_of(call)


def test_an_edited_message_shows_the_latest_text_that_was_sent_for_it(browser: Browser, written: Written) -> None:
    messages = [message("user", f"text {at}") for at in range(5)]
    states: list[dict[str, object]] = [
        {"states": "1k"},
        {"states": "1c1k", "changed": {"0": {"text": "first edit", "chars": 10}}},
        {"same": 2, "states": "1k"},
        {"states": "1c3k", "changed": {"0": {"text": "second edit", "chars": 11}}},
    ]
    story = {"id": "a", "messages": messages, "calls": [1, 2, 3, 4], "policies": [{"name": "a", "calls": states}]}
    shown: list[str] = []
    with browser.page(written({"stories": [story]})) as page:
        for call in range(4):
            at_call(page, call)
            shown.append(page.value(f"{SHOWN}[0].querySelector('.preview').textContent"))
    assert shown == ["text 0", "first edit", "first edit", "second edit"]


def test_the_table_is_sorted_by_keys_and_what_is_not_known_comes_last(
    browser: Browser, written: Written, invented: Report
) -> None:
    known = sorted(each["cost_relative"] for each in invented["policies"])
    unknown = {**invented["policies"][0], "name": "refusing", "cost_relative": None, "refused": 3}
    costs = "[...document.querySelectorAll('#figures tbody tr')].map((row) => row.cells[1].textContent)"
    with browser.page(written(invented | {"policies": [unknown, *invented["policies"]]})) as page:
        focused(page, "#figures th:nth-child(2) button")
        for order in (known, known[::-1]):
            page.press("Enter")
            assert page.value(costs) == [*(f"{each:.3f}" for each in order), "–"]
        assert page.value("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"


def test_the_charts_follow_their_switches(browser: Browser, written: Written, invented: Report) -> None:
    lines, points = "#lines path.line", "#scatter g .shape"
    count = "document.querySelectorAll({!r}).length".format
    places = "[...document.querySelectorAll('#scatter g circle')].map((each) => each.getAttribute('cy'))"
    curve = "document.querySelector('#lines path.line').getAttribute('d')"
    with browser.page(written(invented)) as page:
        number = len(invented["policies"])
        assert (page.value(count(lines)), page.value(count(points))) == (number, number)
        over = sum(each["over_limit"] > 0 or each["latest_user_lost"] > 0 for each in invented["policies"])
        assert 0 < over == page.value(count("#scatter g path.shape"))
        near, mean = page.value(places), page.value(curve)
        page.value("document.querySelector('[value=grounding_far]').click()")
        page.value("document.querySelector('[value=peak]').click()")
        assert page.value(places) != near
        assert page.value(curve) != mean
        page.value("document.querySelectorAll('#lines-legend input')[1].click()")
        assert page.value(count(lines)) == number - 1


def test_the_script_marks_what_the_static_part_marks(browser: Browser, written: Written, invented: Report) -> None:
    named = [{**invented["policies"][0], "name": f"a{MARKS}z"}]
    with browser.page(written(invented | {"policies": named})) as page:
        texts = page.value(
            "['#figures tbody th', '#lines-legend bdi'].map((each) => document.querySelector(each).textContent)"
        )
        assert texts[0] == texts[1]
        assert not set(MARKS) & set(texts[0])


@pytest.mark.parametrize(("policies", "stories"), [(0, 0), (0, 2), (1, 0), (20, 50)])
def test_any_number_of_policies_and_conversations_can_be_shown(
    browser: Browser, written: Written, invented: Report, policies: int, stories: int
) -> None:
    many = [{**invented["policies"][at % 7], "name": f"policy {at}"} for at in range(policies)]
    shown = [{**invented["stories"][0], "id": str(at)} for at in range(stories)]
    with browser.page(written(invented | {"policies": many, "stories": shown})) as page:
        assert page.complaints() == []
        assert page.value("document.querySelectorAll('#story-list li').length") == stories
        assert page.value("document.querySelectorAll('#scatter g').length") == policies


def test_nulls_and_gaps_show_as_such_and_break_nothing(browser: Browser, written: Written) -> None:
    broken: list[Any] = [
        {},
        dict.fromkeys(("id", "messages", "calls", "policies")),
        {
            "messages": [{}, None],
            "calls": [1, None, 99],
            "policies": [None, {"name": "a"}, {"name": None, "calls": [None, {}, {"states": "9z2k", "added": [{}]}]}],
        },
    ]
    told: Report = {
        "policies": [{}, {"name": None, "curve": None}, {"curve": {"tokens": [None, 5, None]}}],
        "stories": broken,
    }
    with browser.page(written(told)) as page:
        focused(page, "#story-list")
        page.press("ArrowDown", 2)
        focused(page, "#call")
        page.press("End")
        assert page.complaints() == []
        assert page.value("document.querySelector('#call-at').textContent") == "3 of 3"


def test_without_a_script_the_figures_are_there_and_nothing_empty_is(
    browser: Browser, written: Written, invented: Report
) -> None:
    with browser.page(written(invented), scripts=False) as page:
        text = page.value("document.body.innerText")
        assert "The charts and the conversations need JavaScript." in text
        for heading in ("Cost and grounding", "Tokens over the calls of a conversation", "Conversations, call by call"):
            assert heading not in text
        assert page.value("document.querySelectorAll('#figures tbody tr').length") == len(invented["policies"])
