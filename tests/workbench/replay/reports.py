"""Invented reports for the page: conversations of random sizes, through simple versions of common policies.

The figures follow from one another as they would in a replay (what is dropped is not sent, what was there at the call
before comes from the cache), so that the page can be looked at; they are no measurements.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from chatstack.workbench.replay.stories import TEXT_CHARS

Report: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Rule: TypeAlias = Callable[[Sequence[Message], str, int], str]
"""The states of all messages, from the messages, the states at the call before, and the window."""

CLEARED_TOKENS, SUMMARY_TOKENS = 14, 400
_TEXT = (
    "the reservation shows two passengers on flight HAT136 so the refund goes to gift_card_6941833 check "
    "astropy/modeling/separable.py line 245 returns the wrong matrix for nested models run the tests again "
    "payment credit_card_4421486 was declined user mia_li_3668 asks for a window seat cabin economy baggage 2 "
)
_WORDS = _TEXT.split()


def _sent(messages: Sequence[Message], before: str, window: int) -> str:
    return "k" * len(messages)


def _dropping(messages: Sequence[Message], before: str, window: int) -> str:
    states = _grown(before, messages)
    return _shortened(states, messages, window, "d", int(window * 0.75)) if _size(messages, states) > window else states


def _sliding(messages: Sequence[Message], before: str, window: int) -> str:
    return _shortened("k" * len(messages), messages, window, "d", window)


def _masking(messages: Sequence[Message], before: str, window: int) -> str:
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    return "".join("c" if at in results[:-10] else "k" for at in range(len(messages)))


def _clearing(messages: Sequence[Message], before: str, window: int) -> str:
    states = _grown(before, messages)
    if _size(messages, states) <= window:
        return states
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    return "".join("c" if at in results[:-3] else state for at, state in enumerate(states))


def _clear_then_drop(messages: Sequence[Message], before: str, window: int) -> str:
    states = _grown(before, messages)
    if _size(messages, states) <= window:
        return states
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    states = "".join("c" if at in results[:-3] and state == "k" else state for at, state in enumerate(states))
    return (
        _shortened(states, messages, window, "d", int(window * 0.6))
        if _size(messages, states) > window * 0.7
        else states
    )


def _folding(messages: Sequence[Message], before: str, window: int) -> str:
    states = _grown(before, messages)
    return _shortened(states, messages, window, "f", int(window * 0.5)) if _size(messages, states) > window else states


RULES: Mapping[str, tuple[str, Rule]] = {
    "nothing": ("Sends everything as it is.", _sent),
    "guard": ("Leaves out the oldest messages that do not fit.", _dropping),
    "sliding-window": ("The system message, the task and the newest that fit, anew on each call.", _sliding),
    "rolling-masking": ("Masks all but the ten newest tool results, anew on each call.", _masking),
    "batch-clearing": ("Clears all but the three newest results when the window is full.", _clearing),
    "recommended": ("Clears, then drops, in one edit, and keeps the names that were in it.", _clear_then_drop),
    "summary": ("Folds old messages into a summary.", _folding),
}


ANEW = ("sliding-window", "rolling-masking")
"""They edit each request that leaves something out; the others only report what they decide anew."""


def _grown(before: str, messages: Sequence[Message]) -> str:
    return before + "k" * (len(messages) - len(before))


def _size(messages: Sequence[Message], states: str) -> int:
    edited = {"c": CLEARED_TOKENS, "f": 0, "d": 0}
    pairs = zip(messages, states, strict=True)
    sizes: list[int] = [edited[state] if state in edited else message["tokens"] for message, state in pairs]
    return int(sum(sizes)) + (SUMMARY_TOKENS if "f" in states else 0)


def _shortened(states: str, messages: Sequence[Message], window: int, letter: str, goal: int) -> str:
    """With the oldest messages gone, save the first two and the newest, until the rest is small enough."""
    done = list(states)
    for at in range(2, len(messages) - 1):
        if _size(messages, "".join(done)) <= goal:
            break
        done[at] = letter
    return "".join(done)


def message(role: str, text: str, tokens: int | None = None, name: str | None = None, **more: object) -> Message:
    """One message of a story."""
    kind = "result" if role == "tool" else "text"
    size = tokens or max(1, len(text) // 4)
    return {"role": role, "kind": kind, "name": name or "", **cut(text), "tokens": size, **more}


def cut(text: str) -> dict[str, Any]:
    """The beginning of a text and the length of all of it."""
    return {"text": text[:TEXT_CHARS], "chars": len(text)}


def _talk(rng: random.Random, length: int) -> list[Message]:
    def words(number: int) -> str:
        return " ".join(rng.choice(_WORDS) for _ in range(number))

    messages = [message("system", "You are an assistant with tools. " + words(120), rng.randint(300, 900))]
    messages.append(message("user", words(60), rng.randint(60, 1_400)))
    while len(messages) < length:
        messages.append(message("assistant", words(rng.randint(8, 60)), kind="call"))
        size = min(2_500, int(rng.lognormvariate(5.6, 1.0)))
        text = words(min(size, 300))
        name = rng.choice(("bash", "get_reservation_details", "search_direct_flight", "read_file"))
        messages.append(message("tool", text, max(8, size), name, chars=max(len(text), size * 4)))
        if rng.random() < 0.12:
            messages.append(message("user", words(rng.randint(4, 30))))
    return messages[:length]


def run_length(states: str) -> str:
    """As the report has it: ``kkc`` as ``2k1c``."""
    return "".join(f"{len(list(same))}{letter}" for letter, same in groupby(states))


def letters_of(states: str) -> str:
    """``2k1c`` as ``kkc``."""
    return "".join(int(times) * letter for times, letter in re.findall(r"(\d+)([a-z])", states))


def in_whole(calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls of a story, each with the states of all messages."""
    whole, before = list[dict[str, Any]](), ""
    for call in calls:
        states = before[: call.get("same", 0)] + letters_of(call.get("states", ""))
        before = before if call.get("refused") else states
        whole.append({**call, "same": 0, "states": run_length(states)})
    return whole


def rows_of(call: Mapping[str, Any]) -> list[str]:
    """What the rows of the page say of the messages at a call, the answer among them."""
    words = {"k": "sent", "c": "cleared", "f": "folded", "d": "dropped"}
    rows = [words[letter] for letter in letters_of(call["states"])]
    for each in reversed(call.get("added", ())):
        rows.insert(each["before"], "put in")
    return [*rows, "recorded" if call.get("refused") else "answer"]


def story_of(messages: Sequence[Message], names: Sequence[str], window: int, number: int = 0) -> dict[str, Any]:
    """A conversation through these policies."""
    calls = [at for at, each in enumerate(messages) if each["role"] == "assistant"]
    courses: list[dict[str, Any]] = [
        {"name": name, "calls": list(_course(messages, calls, name, window))} for name in names
    ]
    model = "google/gemini-3-pro-preview"
    return {
        "id": f"swe-gemini3-astropy__astropy-{12907 + 76 * number}",
        "file": "runs/swe_gemini3.jsonl.gz",
        "line": number + 1,
        "model": model,
        "messages": list(messages),
        "calls": calls,
        "policies": courses,
        "number": number,
        "weight": sum(len(call["why"]) + call["lost_count"] for each in courses for call in each["calls"]),
    }


def _course(messages: Sequence[Message], calls: Sequence[int], name: str, window: int) -> Iterator[dict[str, Any]]:
    before, last = "", 0
    for end in calls:
        there = messages[:end]
        states = RULES[name][1](there, before, window)
        changed = [at for at, state in enumerate(states) if state == "c" and before[at : at + 1] != "c"]
        same = next((at for at, (old, new) in enumerate(zip(before, states, strict=False)) if old != new), len(before))
        tokens = _size(there, states)
        kept = "k" * len(states) if name in ANEW else _grown(before, there)
        lost = ["gift_card_6941833", "astropy/modeling/separable.py"] if states != kept and "d" in states else []
        summary = {"before": states.find("f"), **cut("Summary: " + messages[1]["text"])}
        yield {
            "tokens": tokens,
            "cached": _size(there[:same], states[:same]) if last >= 1_024 else 0,
            "broken": same < len(before),
            "over": tokens > window,
            "refused": "",
            "same": same,
            "states": run_length(states[same:]),
            "changed": {
                str(at): cut(f"[cleared, {messages[at]['tokens']:,} tokens; it named HAT136]") for at in changed
            },
            "added": [summary] if "f" in states else [],
            "why": [f"more than {window:,} tokens: {tokens:,} are left"] if states != kept else [],
            "lost": lost,
            "lost_count": len(lost),
        }
        before, last = states, tokens


def _figures(name: str, stories: Sequence[Mapping[str, Any]], base: float, rng: random.Random) -> dict[str, Any]:
    calls = [call for story in stories for each in story["policies"] if each["name"] == name for call in each["calls"]]
    edits = sum(len(call["why"]) for call in calls)
    cost = sum(call["tokens"] - 0.9 * call["cached"] for call in calls)
    kept = sum(call["states"].count("d") + 2 * call["states"].count("f") for call in calls) / max(1, len(calls))
    found = max(0.5, 1 - 0.03 * kept - (0.0 if name == "nothing" else 0.001 * rng.randint(2, 30)))
    return {
        "name": name,
        "about": RULES[name][0],
        "is_yours": False,
        "conversations": len(stories),
        "calls": len(calls),
        "requests": len(calls),
        "tokens_sent": sum(call["tokens"] for call in calls),
        "peak_tokens": max((call["tokens"] for call in calls), default=0),
        "over_limit": sum(call["over"] for call in calls),
        "tokens_from_cache": sum(call["cached"] for call in calls),
        "tokens_to_cache": sum(call["tokens"] - call["cached"] for call in calls),
        "tokens_missed": sum(call["tokens"] - call["cached"] for call in calls if call["broken"]),
        "summary_input": edits * 5_000 if name == "summary" else 0,
        "summary_output": edits * SUMMARY_TOKENS if name == "summary" else 0,
        "prefix_breaks": sum(call["broken"] for call in calls),
        "cost_relative": round(cost / base, 6) if base else None,
        "cost_usd": round(cost * 2e-6, 6),
        "cost_usd_uncached": round(sum(call["tokens"] for call in calls) * 2e-6, 6),
        "grounding": 1.0 if name == "nothing" else round(found, 6),
        "grounding_values": 12_345,
        "grounding_far": 1.0 if name == "nothing" else round(max(0.3, found - 0.09), 6),
        "grounding_far_values": 2_345,
        "grounding_bare": 1.0 if name == "nothing" else round(found - (0.1 if name == "recommended" else 0.0), 6),
        "grounding_far_bare": 1.0 if name == "nothing" else round(max(0.2, found - 0.3), 6),
        "grounding_attributed": 1.0
        if name == "nothing"
        else round(found - (0.05 if name == "recommended" else 0.0), 6),
        "grounding_far_attributed": 1.0 if name == "nothing" else round(max(0.25, found - 0.2), 6),
        "invalid_requests": 0,
        "edits": edits,
        "refused": 0,
        "latest_user_lost": 3 if name == "sliding-window" else 0,
        "dearest": {"cost_relative": round(cost / base * 1.2, 6) if base else 1.0, "number": 1, "id": stories[0]["id"]},
        "cpu_ms_per_call": round(0.05 + rng.random() / 3, 4),
        "faults": {},
        "curve": _curve(name, stories),
    }


def _curve(name: str, stories: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    sizes = [
        [call["tokens"] for call in each["calls"]]
        for story in stories
        for each in story["policies"]
        if each["name"] == name
    ]
    at = [[one[number] for one in sizes if number < len(one)] for number in range(max(map(len, sizes), default=0))]
    return {"tokens": [round(sum(each) / len(each), 1) for each in at], "peak": [max(each) for each in at]}


def report(
    names: Sequence[str] = tuple(RULES), *, conversations: int = 60, shown: int = 6, window: int = 8_000, seed: int = 1
) -> Report:
    """A report of so many conversations, the first of which it shows."""
    rng = random.Random(seed)
    every = tuple(dict.fromkeys(("nothing", *names)))
    stories = [story_of(_talk(rng, int(rng.triangular(12, 130, 50))), every, window, at) for at in range(conversations)]
    base = _figures("nothing", stories, 0, rng)
    whole = base["tokens_sent"] - 0.9 * base["tokens_from_cache"]
    lengths = [len(story["calls"]) for story in stories]
    return {
        "version": 2,
        "counter": "o200k",
        "window": window,
        "model": None,
        "pause_seconds": 0.0,
        "long_cache": False,
        "shared_memory": False,
        "own_counter": False,
        "conversations": conversations,
        "calls": sum(lengths),
        "joined": 0,
        "left_out": {},
        "recorded": None,
        "files": ["runs/swe_gemini3.jsonl.gz"],
        "file_count": 1,
        "tools": {"file": "tools.json", "count": 14, "tokens": 1_872},
        "errors": [{"file": "runs/swe_gemini3.jsonl.gz", "line": 17, "error": "no messages"}],
        "error_count": 1,
        "prices": [
            {
                "model": "google/gemini-3-pro-preview",
                "input": 2.0,
                "read": 0.2,
                "write": None,
                "minimum_prefix_tokens": 1_024,
                "lifetime_seconds": 300,
                "source": "genai-prices",
            }
        ],
        "assumptions": [
            "Every call comes while the cache still lives.",
            "A summary has 400 tokens and holds no value.",
        ],
        "calls_at": [sum(number < each for each in lengths) for number in range(max(lengths, default=0))],
        "policies": [_figures(name, stories, whole, rng) for name in names],
        "stories": stories[:shown],
    }


def large_story(messages: int = 500, calls: int = 250, window: int = 40_000) -> dict[str, Any]:
    """A conversation of that size, through policies that leave few and many runs of states."""
    made = [message("user" if at % 2 == 0 else "assistant", f"message {at} " * 20, 120) for at in range(messages)]
    for at in range(3, messages, 4):
        made[at - 1] = message("tool", f"finding {at} " * 30, 500, "bash")
    story = story_of(made, ("rolling-masking", "recommended", "summary"), window)
    assert len(story["calls"]) == calls
    return story


HOSTILE = (
    "</script><script>hacked = 1</script>",
    "<img src=x onerror='hacked = 1'><svg onload='hacked = 1'>",
    "]]><!--<script>hacked = 1</script>-->",
    "${hacked = 1} {{hacked = 1}} javascript:hacked=1",
    "'\"><iframe srcdoc='<script>top.hacked=1</script>'></iframe><link rel=stylesheet href=//x.invalid/a.css>",
    "😀👩‍👩‍👧 مرحبا \u202eevil\u202c שלום",
    "long " + "x" * 3_000,
)


def hostile(told: Report) -> Report:
    """The report with hostile texts wherever a text can be."""
    texts = iter(HOSTILE * 100)
    messages = [message("user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(HOSTILE * 2)]
    for at in range(2, len(messages), 3):
        messages[at] = message("tool", messages[at]["text"], 900, next(texts))
    messages[1] = message("assistant", "long " + "x" * 1_000_000)
    names = ("recommended", "summary")
    story: dict[str, Any] = story_of(messages, names, 1_500)
    story |= {"id": HOSTILE[0], "model": HOSTILE[1], "file": HOSTILE[2]}
    calls = [call for each in story["policies"] for call in each["calls"]]
    for call in calls:
        changed = {at: cut(next(texts)) for at in call["changed"]}
        added = [{**each, **cut(next(texts))} for each in call["added"]]
        call |= {"why": [next(texts)], "lost": [next(texts), next(texts)], "changed": changed, "added": added}
    calls[-1] |= {"refused": HOSTILE[1]}
    policies = [{**each, "about": next(texts), "faults": {next(texts): 1}} for each in told["policies"]]
    policies.append({**policies[-1], "name": HOSTILE[1]})
    return told | {"stories": [story], "policies": policies, "counter": HOSTILE[0], "assumptions": list(HOSTILE)}
