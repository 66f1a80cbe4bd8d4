"""The page of a report as text: what is embedded, what is escaped, what is told without a script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chatstack.workbench.replay.page as page
from chatstack.workbench.replay.page import page_of
from tests.workbench.replay.reports import Report, report

HOSTILE = (
    "</script>",
    "</SCRIPT >",
    "<!--<script",
    "-->",
    "]]>",
    "<img src=x onerror=alert(1)>",
    "\u2028",
    "\u2029",
    "\x00",
    "\u202e",
    "\ud800",
    "\udc00",
    "&lt;",
    "{{data}}",
    "{{script}}",
    '" onload="x',
    "'",
    "</title>",
    "</style>",
    "</noscript>",
)
TEXTS = st.lists(st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=()), max_size=8), max_size=4).map(
    "".join
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
REPORTS = st.fixed_dictionaries(
    {},
    optional={
        "counter": TEXTS,
        "stories": VALUES,
        "more": VALUES,
        "files": st.lists(TEXTS, max_size=2),
        "assumptions": st.lists(TEXTS, max_size=2),
        "tools": st.fixed_dictionaries({"file": TEXTS}),
        "errors": st.lists(st.fixed_dictionaries({"file": TEXTS, "error": TEXTS}), max_size=2),
        "prices": st.lists(st.fixed_dictionaries({"model": TEXTS, "source": TEXTS}), max_size=2),
        "policies": st.lists(
            st.fixed_dictionaries({"name": TEXTS, "about": TEXTS, "faults": st.dictionaries(TEXTS, st.integers(1, 9))}),
            max_size=2,
        ),
    },
)
DATA = re.compile(r'<script type="application/json" id="report">(.*?)</script', re.DOTALL | re.IGNORECASE)
PIECES = sorted(
    each.name
    for each in files("chatstack.workbench.replay.page").iterdir()
    if each.name.endswith((".css", ".js", ".html"))
)


class Seen(HTMLParser):
    """The elements of a page, with their attributes, and its text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.texts.append(data)

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def policy(name: str, **figures: object) -> dict[str, object]:
    """A policy that kept the window, save what is told."""
    return {"name": name, "over_limit": 0, "refused": 0, **figures}


def whole(value: Any) -> Any:
    """With two halves of a character as the one that any reader of JSON makes of them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, dict):
        return {whole(key): whole(each) for key, each in value.items()}
    return [whole(each) for each in value] if isinstance(value, list) else value


def answer_of(*policies: dict[str, object]) -> str:
    return answer_in({"policies": list(policies)})


def answer_in(told: Report) -> str:
    (found,) = re.findall(r'<p class="answer">(.*?)</p>', page_of(told))
    return html.unescape(re.sub("<[^>]+>", "", found))


def rows_of(text: str) -> list[list[str]]:
    (table,) = re.findall(r'<table class="figures" id="figures">(.*?)</table>', text, re.DOTALL)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.split("<tr[^>]*>", table)[1:]]
    return [[" ".join(html.unescape(re.sub("<[^>]+>", "", cell)).split()) for cell in row] for row in rows]


@given(REPORTS)
def test_whatever_the_texts_are_the_data_ends_nowhere_but_at_its_end_and_reads_back_equal(told: Report) -> None:
    text = page_of(told).encode("utf-8").decode("utf-8")
    (data, *others) = DATA.findall(text)
    assert not others
    assert not set("<>&\u2028\u2029\x00") & set(data)
    assert json.loads(data) == whole(told)


@given(REPORTS)
def test_whatever_the_texts_are_the_page_has_no_element_and_no_attribute_of_theirs(told: Report) -> None:
    seen = Seen(page_of(told))
    assert seen.tags().count("script") == 2
    assert "img" not in seen.tags()
    allowed = {
        "id",
        "class",
        "lang",
        "dir",
        "type",
        "name",
        "value",
        "for",
        "role",
        "tabindex",
        "title",
        "scope",
        "hidden",
        "charset",
        "content",
        "http-equiv",
        "href",
        "checked",
        "min",
        "data-first",
        "data-value",
    }
    found = {name for _, attributes in seen.elements for name in attributes if not name.startswith("aria-")}
    assert found <= allowed


def test_a_name_shows_its_hidden_characters() -> None:
    told = policy("a\u202eb\x1b[2J\x7f\x00\u200b<b>\ud83d")
    shown = "a⟨U+202E⟩b␛[2J␡␀⟨U+200B⟩<b>⟨U+D83D⟩"
    assert rows_of(page_of({"policies": [told]}))[1][0] == shown


def test_the_policy_lets_run_the_one_script_and_the_one_style_by_their_hashes_and_nothing_else() -> None:
    text = page_of(report(shown=1, conversations=2))
    (content,) = [attributes["content"] for _, attributes in Seen(text).elements if attributes.get("http-equiv")]
    assert content is not None
    directives = dict(each.strip().split(" ", 1) for each in content.split(";"))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert directives == {
        "default-src": "'none'",
        "script-src": f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
        "style-src": f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_the_policy_stands_before_all_that_it_is_about() -> None:
    tags = [(tag, attributes.get("http-equiv")) for tag, attributes in Seen(page_of({})).elements]
    at = tags.index(("meta", "Content-Security-Policy"))
    assert {tag for tag, _ in tags[:at]} == {"html", "head", "meta"}


def test_the_page_names_nothing_outside_itself() -> None:
    text = page_of({})
    assert not re.findall(r"https?:|//[a-z]|@import|url\(|@font-face", text.replace("// ", ""))
    references = [
        attributes[name] for _, attributes in Seen(text).elements for name in ("src", "href") if name in attributes
    ]
    assert references == ["#main"]
    inline = [
        name for _, attributes in Seen(text).elements for name in attributes if name == "style" or name.startswith("on")
    ]
    assert not inline


@pytest.mark.parametrize(
    "sink", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
)
def test_the_script_makes_no_elements_of_text(sink: str) -> None:
    assert sink not in page_of({})


@pytest.mark.parametrize("name", PIECES)
def test_every_piece_is_on_the_page_and_can_be_read_at_one_sitting(name: str) -> None:
    lines = files(page).joinpath(name).read_text(encoding="utf-8").splitlines()
    assert len(lines) < 350
    fixed = [line for line in lines if line.strip() and "{{" not in line]
    assert "\n".join(fixed[:3]) in "\n".join(line for line in page_of({}).splitlines() if line.strip())


def test_the_table_is_there_without_a_script() -> None:
    ours = policy(
        "recommended",
        cost_relative=0.5584,
        grounding=0.99996,
        grounding_far=1,
        peak_tokens=7999.0,
        tokens_sent=12_345_678,
        cost_usd=12.3456,
        edits=0,
    )
    heading, first, second = rows_of(page_of({"policies": [ours, {"name": "none known"}]}))
    told = dict(zip(heading, first, strict=True))
    assert told["policy"] == "recommended"
    shown = ("cost", "found %", "far %", "largest", "tokens sent", "over window", "edits", "USD", "USD uncached")
    assert [told[each] for each in shown] == ["0.558", "99.9", "100", "7,999", "12,345,678", "0", "0", "12.35", "–"]
    assert second == ["none known"] + ["–"] * (len(heading) - 1)


def test_what_was_paid_for_summaries_is_told_where_there_were_any() -> None:
    assert "read for summaries" not in rows_of(page_of({"policies": [policy("a", summary_input=0)]}))[0]
    heading, first = rows_of(page_of({"policies": [policy("a", summary_input=5_000, summary_output=400)]}))
    told = dict(zip(heading, first, strict=True))
    assert (told["read for summaries"], told["written for them"]) == ("5,000", "400")


def test_what_was_found_without_lists_of_names_is_told_where_there_were_any() -> None:
    headings = ("found bare %", "far bare %", "found attr. %", "far attr. %")
    same = policy("a", grounding=0.9, grounding_bare=0.9)
    other = policy(
        "b",
        cost_relative=0.5,
        grounding=0.97,
        grounding_far=0.9,
        grounding_bare=0.88,
        grounding_far_bare=0.5,
        grounding_attributed=0.92,
        grounding_far_attributed=0.7,
    )
    assert not set(headings) & set(rows_of(page_of({"policies": [same]}))[0])
    page = page_of({"policies": [same, other]})
    heading, _, row = rows_of(page)
    told = dict(zip(heading, row, strict=True))
    assert [told[each] for each in headings] == ["88.0", "50.0", "92.0", "70.0"]
    assert " 97.0 % (88.0 % without lists of names) of the values that later calls used " in answer_of(other, same)


def test_what_cost_is_tells_no_price_itself() -> None:
    """Prices depend on how the replay was asked for: they are told in one place."""
    (about,) = re.findall(r"<dt>cost</dt><dd>(.*?)</dd>", page_of({}))
    assert "at the prices under Assumptions" in about
    assert not re.search(r"\d", about)


DOES = "every call within the window, with the latest user message, and nothing that a server would refuse"


def test_the_answer_says_what_happens_if_nothing_is_done_then_what_is_cheapest_and_what_finds_most() -> None:
    told = answer_of(
        policy("nothing", over_limit=6_987, cost_relative=1, grounding=1),
        policy("strict", refused=3, cost_relative=None, grounding=0.5),
        policy("torn", invalid_requests=3, cost_relative=0.1, grounding=0.99),
        policy("cheap", cost_relative=0.5, grounding=0.9),
        policy("careful", cost_relative=0.7, grounding=0.97),
    )
    assert told == (
        "If nothing is done, 6,987 calls go over the window. The cheapest policy that fits is cheap, at 50 % less than "
        "sending everything. 90.0 % of the values that later calls used were still there. Of those that fit, careful "
        "finds most: 97.0 %. More is found only by those that do not fit: 100 % by nothing (6,987 calls over). "
        f"Of 5 policies 2 fit: {DOES}."
    )


def test_the_answer_has_the_calls_and_the_window_in_its_first_sentence() -> None:
    over = policy("nothing", over_limit=45, cost_relative=1, grounding=1)
    dearer = policy("mine", cost_relative=1.061, grounding=1)
    told = answer_in({"policies": [over, dearer], "calls": 263, "window": 8_000})
    assert told.startswith(
        "If nothing is done, 45 calls of 263 go over the window of 8,000 tokens. The cheapest policy that fits is "
        "mine, at 6 % more than sending everything."
    )
    fits = policy("nothing", cost_relative=1, grounding=1, peak_tokens=7_412)
    told = answer_in({"policies": [fits, dearer], "calls": 263, "window": 8_000})
    assert told.startswith(
        "If nothing is done, every call fits the window of 8,000 tokens; the largest has 7,412 tokens. No policy that "
        "fits costs less than that."
    )


def test_the_readers_own_stack_is_singled_out_by_its_name() -> None:
    rows = [
        policy("a", cost_relative=0.5, grounding=0.9),
        policy("mine", is_yours=True, cost_relative=0.861, grounding=0.97),
        policy("other", is_yours=True, cost_relative=0.4, grounding=0.5, over_limit=3),
    ]
    told = answer_of(*rows)
    assert "Yours, mine, fits, at 14 % less than sending everything, and 97.0 % found. " in told
    assert "Yours, other, does not fit (3 calls over), at 60 % less than sending everything, and 50.0 % found. " in told
    page = page_of({"policies": rows})
    assert [name for name in ("a", "mine", "other") if f'<tr class="yours"><th scope="row"><bdi>{name}' in page] == [
        "mine",
        "other",
    ]
    assert "Yours" not in answer_of(rows[0], {**rows[1], "cost_relative": 0.3})


def test_the_answer_says_when_the_cheapest_finds_most_and_how_the_others_failed() -> None:
    told = answer_of(
        policy("a", cost_relative=0.5, grounding=0.9),
        policy("b", cost_relative=0.2, grounding=0.95, invalid_requests=2, refused=1),
    )
    assert "The cheapest policy that fits is a, at 50 % less" in told
    assert "None that fits finds more." in told
    assert "95.0 % by b (1 refused, 2 invalid). " in told


def test_who_loses_the_latest_user_message_would_not_do() -> None:
    told = answer_of(
        policy("a", cost_relative=0.5, grounding=0.9),
        policy("b", cost_relative=0.2, grounding=0.95, latest_user_lost=3),
    )
    assert "The cheapest policy that fits is a, at 50 % less" in told
    assert "95.0 % by b (3 without the latest user message). " in told


def test_the_dearest_conversation_of_each_policy_is_told() -> None:
    dearest = {"cost_relative": 1.3, "number": 1_017, "id": "<b>swe</b>"}
    page = page_of({"policies": [policy("a", dearest=dearest), policy("b", dearest=None)]})
    heading, first, second = rows_of(page)
    at = heading.index("dearest")
    assert (first[at], second[at]) == ("1.300", "–")
    assert "1.300 of sending everything of it: number 1,017, &lt;b&gt;swe&lt;/b&gt;<" in page


def test_the_answer_names_all_that_share_a_place() -> None:
    told = answer_of(policy("a", cost_relative=0.5, grounding=1), policy("b", cost_relative=0.5, grounding=0.9))
    assert told.startswith(
        "The cheapest policies that fit are a and b, at 50 % less than sending everything. 100 % and 90.0 % of the "
        "values that later calls used were still there."
    )


def test_the_answer_names_none_where_none_is_known_to_have_kept_the_window() -> None:
    for policies in ([policy("a", over_limit=1, cost_relative=0.1)], [{"name": "a", "cost_relative": 0.1}]):
        assert answer_of(*policies).endswith(f"No policy is known to fit. Of 1 policy 0 fit: {DOES}.")
    assert answer_of() == "No policy was replayed."


def test_what_is_told_below_has_the_assumptions_the_prices_the_errors_and_what_was_cut_off() -> None:
    texts = Seen(page_of(report(shown=0, conversations=2) | {"error_count": 9, "file_count": 4})).texts
    text = " ".join(" ".join(texts).split())
    for words in (
        "Every call comes while the cache still lives.",
        "genai-prices",
        "300 seconds",
        "no messages",
        "and 8 more",
        "and 3 more",
        "Leaves out the oldest messages that do not fit.",
    ):
        assert words in text


def test_the_reasons_of_refusals_are_told() -> None:
    told = page_of({"policies": [policy("a", faults={"a <result> without its call": 1_234})]})
    assert "a &lt;result&gt; without its call</bdi> (1,234)" in told


def test_every_field_may_be_absent_or_null() -> None:
    full = report(shown=1, conversations=2)
    nulls = {
        **dict.fromkeys(full),
        "policies": [dict.fromkeys(full["policies"][0])],
        "prices": [dict.fromkeys(full["prices"][0])],
        "errors": [dict.fromkeys(full["errors"][0])],
        "tools": dict.fromkeys(full["tools"]),
    }
    assert len(rows_of(page_of(nulls))) == 2
    assert len(rows_of(page_of({}))) == 1


def test_what_is_no_report_is_said_with_its_place() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"policies\[0\]\.grounding"):
        page_of({"policies": [{"grounding": "high"}]})
    with pytest.raises(ValueError, match="JSON"):
        page_of({"stories": [float("nan")]})
