"""When the alerts fire and when they do not, by promtool's own unit tests of rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from chatstack import semconv
from tests.dashboards.shipped import ALERTS, RULES

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (apt-get install prometheus)"),
]

LAST_MINUTE = 90
ONCE = "_x20 1+0x70"
"""No series for twenty minutes; then the first warning, which makes one."""
AGAIN = "_x20 1+0x11 2+0x59"
"""And a second one twelve minutes after it."""
AND_AGAIN = "_x20 1+0x5 2+0x5 3+0x5 4+0x53"
"""Four of them, six minutes apart."""
RESTARTED = "_x20 1+0x20 _x20 1+0x29"
"""One, and one more from a process that was started in the place of the first."""


def minutes(first: int, last: int) -> frozenset[int]:
    return frozenset(range(first, last + 1))


NEVER: frozenset[int] = frozenset()


def warnings(code: str) -> str:
    return f'chatstack_warnings_total{{job="a",chatstack_warning_code="{code}"}}'


def calls(error: str = "") -> str:
    ended = f',error_type="{error}"' if error else ""
    return f'gen_ai_client_operation_duration_seconds_count{{job="a",gen_ai_request_model="m"{ended}}}'


def weighed(filled_90_percent: str, all_of_them: str) -> dict[str, str]:
    return {
        'chatstack_context_utilization_bucket{job="a",le="0.9"}': filled_90_percent,
        'chatstack_context_utilization_bucket{job="a",le="+Inf"}': all_of_them,
        'chatstack_context_utilization_count{job="a"}': all_of_them,
    }


@dataclass(frozen=True)
class Case:
    """What is exported, a value a minute, and the minutes in which the alert fires for it."""

    alert: str
    name: str
    series: dict[str, str]
    fires: frozenset[int] = NEVER
    labels: dict[str, str] = field(default_factory=lambda: {"job": "a"})

    def expected(self, minute: int) -> list[dict[str, dict[str, str]]]:
        if minute not in self.fires:
            return []
        rule = next(rule for rule in RULES if rule.get("alert") == self.alert)
        return [{"exp_labels": rule["labels"] | self.labels, "exp_annotations": rule["annotations"]}]


def of(code: str, alert: str, name: str, values: str, fires: frozenset[int] = NEVER) -> Case:
    return Case(alert, name, {warnings(code): values}, fires, {"job": "a", "chatstack_warning_code": code})


def of_calls(name: str, series: dict[str, str], fires: frozenset[int] = NEVER) -> Case:
    return Case("ChatModelErrors", name, series, fires, {"job": "a", "gen_ai_request_model": "m"})


EXCEEDED = warnings("context_window_exceeded")
CASES = [
    of("context_irreducible", "ChatContextIrreducible", "one alone", ONCE),
    of("context_irreducible", "ChatContextIrreducible", "two far apart", AGAIN),
    of("context_irreducible", "ChatContextIrreducible", "again and again", AND_AGAIN, minutes(35, 47)),
    of("summarizer_failed", "ChatSummarizerFailing", "one alone", ONCE),
    of("summarizer_failed", "ChatSummarizerFailing", "again and again", AND_AGAIN, minutes(35, 47)),
    of("store_unavailable", "ChatStoreUnavailable", "one alone", ONCE, minutes(21, 29)),
    of("context_window_near_limit", "ChatStoreUnavailable", "another warning", AND_AGAIN),
    of("plan_rejected", "ChatPlanRejected", "one alone", ONCE, minutes(21, 29)),
    of("plan_rejected", "ChatPlanRejected", "a new process", RESTARTED, minutes(21, 29) | minutes(62, 70)),
    of("summarizer_failed", "ChatPlanRejected", "another warning", AND_AGAIN),
    Case("ChatContextExceeded", "one call in ten", {EXCEEDED: "0+10x90", calls(): "0+100x90"}, minutes(16, 90)),
    Case("ChatContextExceeded", "one call in fifty", {EXCEEDED: "0+2x90", calls(): "0+100x90"}),
    Case("ChatWindowsNearLimit", "half of the requests", weighed("0+5x90", "0+10x90"), minutes(31, 90)),
    Case("ChatWindowsNearLimit", "one in ten", weighed("0+9x90", "0+10x90")),
    Case("ChatWindowsNearLimit", "ten minutes of it", weighed("0+10x30 300+0x9 310+10x50", "0+10x90")),
    of_calls("one in five fails", {calls(): "0+80x90", calls("ServerError"): "0+20x90"}, minutes(11, 90)),
    of_calls("one in fifty fails", {calls(): "0+98x90", calls("ServerError"): "0+2x90"}),
    of_calls("three minutes of it", {calls(): "0+10x90", calls("ServerError"): "0+0x30 10+10x2 30+0x60"}),
    of_calls("cancelled", {calls(): "0+10x90", calls("cancelled"): "0+10x90"}),
    of_calls("too long", {calls(): "0+10x90", calls("ContextOverflowError"): "0+10x90"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert} {case.name}")
def test_an_alert_fires_in_these_minutes_and_in_no_other(case: Case, tmp_path: Path) -> None:
    told = promtool("test", "rules", str(written(case, tmp_path)))
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}
    assert {case.alert for case in CASES if case.fires} == alerts
    assert {case.alert for case in CASES if not case.fires} == alerts


def test_the_rules_are_well_formed() -> None:
    told = promtool("check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))
    assert told.returncode == 0, told.stdout + told.stderr


def test_alerts_are_about_warnings_that_there_are() -> None:
    codes = set(re.findall(r'chatstack_warning_code="(\w+)"', ALERTS.read_text()))
    assert codes <= set(get_args(semconv.WarningCode))
    assert codes


@pytest.mark.parametrize("rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: Any) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["for"]


def written(case: Case, folder: Path) -> Path:
    """The case as promtool wants it."""
    tests = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": case.expected(minute)}
            for minute in range(LAST_MINUTE + 1)
        ],
    }
    path = folder / "case.yml"
    path.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [tests]}))
    return path


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=300, check=False)
