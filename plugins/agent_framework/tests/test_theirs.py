"""Agent Framework's own tests pass with layers put in: run from a checkout of theirs, skipped where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = os.environ.get("CHATSTACK_AGENT_FRAMEWORK_SOURCE", "")
"""A checkout of github.com/microsoft/agent-framework, of the version that is installed."""
FILES = (
    *("test_agents", "test_as_tool_kwargs_propagation", "test_clients", "test_compaction"),
    *("test_function_invocation_logic", "test_harness_agent", "test_harness_loop", "test_harness_tool_approval"),
    *("test_middleware_context_result", "test_middleware_with_agent", "test_middleware_with_chat"),
    *("test_observability", "test_sessions", "test_tools"),
)
DIFFERENT = {
    # Summaries that a strategy of theirs puts into the caller's list: any middleware has 1.13 put them into a copy.
    "middleware": {
        "test_function_loop_persists_inserted_summaries_across_iterations",
        "test_function_loop_persists_inserted_summaries_across_iterations_streaming",
    },
    # An agent's compaction_strategy runs in the client that the agent has, which is the stack; a span of a model call
    # is the stack's, whose usage attributes leave out what is zero.
    "client": {
        "test_chat_agent_compaction_overrides_client_defaults",
        "test_agent_invoke_span_aggregates_usage_across_tool_calls[False]",
    },
}
THROUGH = {"middleware": 280, "client": 100}
"""How many tests send a request through a stack. Of the ``client`` there are fewer: only agents get it."""


@cache
def run(place: str) -> tuple[set[str], int]:
    """Return the tests that fail, and how many of those that pass have sent a request through a stack."""
    core = Path(SOURCE, "python", "packages", "core").resolve()
    files = [f"tests/core/{name}.py" for name in FILES] + ["tests/workflow"]
    options = [
        "-q",
        "-m",
        "not integration",
        "--tb=no",
        "-p",
        "with_layer",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:warnings",
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, *files],  # of what is installed, not of the checkout
        cwd=core,
        env={**os.environ, "CHATSTACK_IN_PLACE": place, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = {line.split("::", 1)[1].split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    through = re.search(r"in (\d+) tests that passed", done.stdout)
    assert through, done.stdout[-2_000:] + done.stderr[-2_000:]
    return failed, int(through[1])


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("place", list(DIFFERENT))
def test_their_tests_give_the_same_results_with_layers_put_in(place: str) -> None:
    if not SOURCE or find_spec("pytest_asyncio") is None:
        pytest.skip("set CHATSTACK_AGENT_FRAMEWORK_SOURCE, and run with pytest-asyncio, mcp and aiohttp")
    bare, _ = run("")
    failed, through = run(place)
    assert failed - bare <= DIFFERENT[place]
    assert through >= THROUGH[place]
