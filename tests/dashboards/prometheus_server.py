"""A real Prometheus on loopback, from the machine's own packages, that scrapes one address every second."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.servers import free_port, stopped_at_the_end

Labels: TypeAlias = dict[str, str]

_START_SECONDS = 300.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class PrometheusServer:
    """A running Prometheus."""

    url: str

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """The series that an expression gives now. Raises ``AssertionError`` with what is wrong with it."""
        return [(each["metric"], float(each["value"][1])) for each in self._ask("query", query=expression)["result"]]

    def values_of(self, label: str, metric: str) -> list[str]:
        """The values that a label has: what a dashboard offers to choose from."""
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": metric})
        return found

    def rules(self) -> list[dict[str, Any]]:
        """The rules that it evaluates, each with its name, state and health."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def wait_until(self, reached: Callable[[], bool], *, timeout_seconds: float = 300) -> None:
        """Wait for what comes with one of the next scrapes or evaluations."""
        deadline = time.monotonic() + timeout_seconds
        while not reached():
            assert time.monotonic() < deadline, f"not within {timeout_seconds:g} seconds"
            time.sleep(0.1)

    def _ask(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with _DIRECT.open(url, timeout=300) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise AssertionError(f"{parameters}: {refusal.read().decode()}") from None


@contextmanager
def prometheus_server(folder: Path, *, scrapes: str, rules: Path, job: str) -> Generator[PrometheusServer]:
    """Start one on a free port, with its data in a folder, and stop it at the end. ``scrapes`` is host and port."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [scrapes]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    with stopped_at_the_end(process):
        _wait_for(process, f"http://{address}/-/ready", folder / "log")
        yield PrometheusServer(f"http://{address}")


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"prometheus stopped at once, with code {process.returncode}: {log.read_text()}")
        try:
            with _DIRECT.open(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"prometheus was not ready within {_START_SECONDS:g} seconds")
