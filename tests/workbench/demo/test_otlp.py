"""``chatstack demo --otlp``: its spans arrive at a dashboard, and where none is there it says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chatstack import semconv
from chatstack.cli import main
from chatstack.workbench.demo.otlp import target_of


class Dashboard(HTTPServer):
    """Takes OTLP over HTTP, and keeps what it was sent; or refuses everything with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.taken: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Taker)


class Taker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Dashboard)
        self.server.taken.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def dashboard(status: int = 200) -> Iterator[Dashboard]:
    with Dashboard(status) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")


def test_all_spans_arrive_with_their_warnings_and_the_name_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with dashboard() as server:
        assert main(["demo", "--otlp", f"http://127.0.0.1:{server.server_port}"]) == 0
    ((path, body),) = server.taken
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    spans = [span for scope in sent.scope_spans for span in scope.spans]
    codes = {each.value.string_value for span in spans for each in span.attributes if each.key == semconv.WARNING_CODE}
    project = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert path == "/v1/traces"
    assert codes == {"context_window_near_limit"}
    assert project["service.name"] == project["openinference.project.name"] == "chatstack-demo"
    shown = capsys.readouterr().out
    assert f"Sent {len(spans)} spans to http://127.0.0.1:{server.server_port}: project chatstack-demo" in shown


@pytest.mark.slow
def test_a_dashboard_that_does_not_take_them_is_said_without_what_may_be_a_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with dashboard(status=403) as server:
        address = f"http://user:secret@127.0.0.1:{server.server_port}/v1/traces?key=secret"
        assert main(["demo", "--otlp", address]) == 1
    assert len(server.taken) == 1
    shown = capsys.readouterr()
    assert f"No server accepted the spans at http://127.0.0.1:{server.server_port}. Is it running?" in shown.out
    assert "secret" not in shown.out + shown.err


@pytest.mark.parametrize("address", ["127.0.0.1:6006", "http://127.0.0.1:99999", "http://[::1"])
def test_what_is_no_address_is_refused_before_anything_runs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--otlp", address]) == 2
    assert "--otlp: not an address such as http://127.0.0.1:6006" in capsys.readouterr().err


def test_an_address_with_a_path_is_taken_as_it_is() -> None:
    assert target_of("http://127.0.0.1:6006/") == "http://127.0.0.1:6006/v1/traces"
    assert target_of("http://127.0.0.1:4318") == "http://127.0.0.1:4318/v1/traces"
    assert target_of("https://api.example/otlp/v1/traces") == "https://api.example/otlp/v1/traces"
