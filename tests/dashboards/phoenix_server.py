"""Arize Phoenix, run for real: the server on loopback, its API, and its pages as a headless Chromium shows them.

``CHATSTACK_PHOENIX`` names the Python of an environment with ``arize-phoenix``; it is far too large for the environment
of the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tests.servers import free_port, stopped_at_the_end

PYTHON = os.environ.get("CHATSTACK_PHOENIX", "")
Json: TypeAlias = Any
Result = TypeVar("Result")

_START_SECONDS = 900.0
_ARRIVAL_SECONDS = 60.0
_PAGE_SECONDS = 300.0
_LAUNCH = """
import contextlib, sys
import phoenix.server.app as app
app.GrpcServer  # it would listen on all interfaces, whatever PHOENIX_HOST says: none is started
app.GrpcServer = lambda *given, **named: contextlib.nullcontext()
from phoenix.server.main import main
sys.argv = ["phoenix", "serve"]
main()
"""
_SPANS = """query ($project: ID!, $condition: String!) { node(id: $project) { ... on Project {
  spans(first: 1000, filterCondition: $condition) { edges { node { spanId } } } } } }"""
_TOKENS = """query ($project: ID!) { node(id: $project) { ... on Project { tokenCountPrompt tokenCountCompletion
  sessions(first: 100) { edges { node { sessionId tokenUsage { prompt completion } } } } } } }"""
_SESSIONS = """query ($project: ID!) { node(id: $project) { ... on Project { sessions(first: 100) {
  edges { node { sessionId firstInput { value } lastOutput { value } } } } } } }"""
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Span:
    """What Phoenix has made of a span of ours."""

    id: str
    trace_id: str
    parent_id: str | None
    name: str
    kind: str
    status: str
    attributes: Mapping[str, Json]


@dataclass(frozen=True)
class Tokens:
    """What Phoenix adds up by itself: input and output of a whole project, and by conversation."""

    total: tuple[int, int]
    by_conversation: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Phoenix:
    """A running server. Projects are named as in ``openinference.project.name``."""

    url: str

    def spans(self, project: str, **filters: str) -> list[Span]:
        """The spans of a project, by the filters of its REST API, in the order in which they began."""
        query = urllib.parse.urlencode({"limit": 1000, **filters})
        found = self._get(f"/v1/projects/{project}/spans?{query}")["data"]
        return [_span(each) for each in sorted(found, key=lambda each: str(each["start_time"]))]

    def arrived(self, project: str, number: int, **filters: str) -> list[Span]:
        """The same, once there are so many: what was exported shows a moment later. ``AssertionError`` if not."""

        def counted() -> list[Span] | None:
            found = self.spans(project, **filters) if project in self._project_ids() else []
            return found if len(found) >= number else None

        found = _waited_for(counted, f"{number} spans in {project}", _ARRIVAL_SECONDS)
        assert len(found) == number
        return found

    def where(self, project: str, condition: str) -> set[str]:
        """The ids of the spans for which a condition holds, as it is typed into the search box."""
        variables = {"project": self._project_ids()[project], "condition": condition}
        edges = self._graphql(_SPANS, variables)["node"]["spans"]["edges"]
        return {edge["node"]["spanId"] for edge in edges}

    def tokens(self, project: str) -> Tokens:
        """The sums that its pages show."""
        node = self._graphql(_TOKENS, {"project": self._project_ids()[project]})["node"]
        sessions = [edge["node"] for edge in node["sessions"]["edges"]]
        return Tokens(
            (int(node["tokenCountPrompt"]), int(node["tokenCountCompletion"])),
            {
                each["sessionId"]: (int(each["tokenUsage"]["prompt"]), int(each["tokenUsage"]["completion"]))
                for each in sessions
            },
        )

    def sessions(self, project: str) -> dict[str, tuple[str, str]]:
        """What its list of sessions shows of each: the first input and the last output."""
        node = self._graphql(_SESSIONS, {"project": self._project_ids()[project]})["node"]
        shown = [edge["node"] for edge in node["sessions"]["edges"]]
        return {each["sessionId"]: (_value(each["firstInput"]), _value(each["lastOutput"])) for each in shown}

    def traces_page(self, project: str) -> str:
        """Where the list of a project's traces is."""
        return f"{self.url}/projects/{self._project_ids()[project]}/traces"

    def span_page(self, span: Span) -> str:
        """Where a span is shown, in the tree of its trace."""
        return f"{self.url}/redirects/spans/{span.id}"

    def _project_ids(self) -> dict[str, str]:
        return {each["name"]: each["id"] for each in self._get("/v1/projects")["data"]}

    def _graphql(self, query: str, variables: Mapping[str, str]) -> Json:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with _direct.open(request, timeout=300) as answer:
            said = json.load(answer)
        assert "errors" not in said, said["errors"]
        return said["data"]

    def _get(self, path: str) -> Json:
        with _direct.open(self.url + path, timeout=300) as answer:
            return json.load(answer)


@contextmanager
def phoenix(folder: Path) -> Generator[Phoenix]:
    """Start Phoenix on a free port of loopback, with an empty database in that folder, and stop it at the end."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PHOENIX_", "OTEL_"))}
    environment |= {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    with (folder / "server.log").open("wb") as log:
        command = [PYTHON, "-c", _LAUNCH]
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    with stopped_at_the_end(process, 20):
        _wait_until_up(process, f"http://127.0.0.1:{port}/healthz", folder / "server.log")
        yield Phoenix(f"http://127.0.0.1:{port}")


def page_text(url: str, folder: Path, *, until: str) -> str:
    """The DOM of a page, as soon as that text is in it; at the latest, what the third try has shown."""
    shown = ""
    for _ in range(3):
        shown = _chromium(url, folder, "--dump-dom").decode()
        if until in shown:
            break
    return shown


def picture(url: str, file: Path, *, width: int = 1400, height: int = 900) -> Path:
    """A PNG of a page, of that many pixels."""
    _chromium(url, file.parent, f"--window-size={width},{height}", "--hide-scrollbars", f"--screenshot={file}")
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    return file


def both_pictures(listed: Path, opened: Path, file: Path) -> Path:
    """One picture of two pages of 1400 pixels, without the menu on their left and the charts above the list."""
    page = file.with_suffix(".html")
    cut = '<div style="width:{w}px;height:{h}px;background:url({src}) -{x}px -{y}px"></div>'.format
    pieces = [
        cut(src=listed.as_uri(), w=1140, h=84, x=260, y=0),
        cut(src=listed.as_uri(), w=1140, h=645, x=260, y=302),
        '<div style="height:14px"></div>',
        cut(src=opened.as_uri(), w=1140, h=570, x=260, y=40),
    ]
    page.write_text(f'<body style="margin:0;background:#777">{"".join(pieces)}</body>')
    try:
        return picture(page.as_uri(), file, width=1140, height=84 + 645 + 14 + 570)
    finally:
        page.unlink()


def _chromium(url: str, folder: Path, *options: str) -> bytes:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "the pages are looked at in Chromium: apt-get install chromium"
    # No sandbox: it needs rights that a container may lack, and the only page is our own, on loopback.
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    local = [f"--user-data-dir={folder / 'chromium'}", "--no-proxy-server", "--disable-dev-shm-usage"]
    # The page's own clock runs ahead: fifteen seconds of it pass as soon as nothing is left to load.
    command = [program, *quiet, *local, "--virtual-time-budget=15000", *options, url]
    return subprocess.run(command, capture_output=True, timeout=_PAGE_SECONDS, check=True).stdout


def _value(shown: Json) -> str:
    return str(shown["value"]) if shown else ""


def _span(found: Json) -> Span:
    context = found["context"]
    return Span(
        id=context["span_id"],
        trace_id=context["trace_id"],
        parent_id=found["parent_id"],
        name=found["name"],
        kind=found["span_kind"],
        status=found["status_code"],
        attributes=found["attributes"],
    )


def _wait_until_up(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    def is_up() -> bool | None:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            with _direct.open(url, timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return None

    _waited_for(is_up, "Phoenix", _START_SECONDS)


def _waited_for(look: Callable[[], Result | None], what: str, seconds: float) -> Result:
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} seconds"
        time.sleep(0.2)
    return found
