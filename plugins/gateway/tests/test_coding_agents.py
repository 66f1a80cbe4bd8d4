"""Coding agents that know nothing of a gateway do a job with a shell behind one that edits what they send.

What is not installed is skipped. ``CHATSTACK_NODE_MODULES`` names a folder in which ``npm install`` of their packages
was run. Each gets a home of its own, and is told to ask nobody else.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_model import ScriptedModel
from upstreams import Upstream as Api
from upstreams import serving, upstream

from chatstack import ChatClient, ChatStack, ClearThenDrop
from chatstack_gateway import Settings, Upstream

COMMANDS = (
    "seq 1 900",
    "seq 900 1800",
    "printf 'def half(n):\\n    return n / 2\\n' > half.py",
    "python3 -c 'import half; print(half.half(4))'",
)
DONE = "The function half is in half.py."
FOLDER = os.environ.get("CHATSTACK_NODE_MODULES", "")
LONGEST_SECONDS = 110


def clearing(provider: ChatClient) -> ChatStack:
    return ChatStack(provider).use(ClearThenDrop, max_tokens=2_000)


def works(api: Api, model: ScriptedModel, command: list[str], folder: Path, **told: str) -> str:
    """Let an agent write ``half.py`` behind a gateway, and return its output. ``GATEWAY`` stands for the address."""
    home, work = folder / "home", folder / "work"
    home.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_COLOR": "1"}
    with serving(Settings(Upstream(api.url)), clearing) as running:
        for path in work.glob("*.json"):
            path.write_text(path.read_text().replace("GATEWAY", running.url))
        done = subprocess.run(
            [each.replace("GATEWAY", running.url) for each in command],
            cwd=work,
            env=environment | {name: value.replace("GATEWAY", running.url) for name, value in told.items()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
        )
        running.settled()
        said = done.stdout + done.stderr
        assert (work / "half.py").read_text() == "def half(n):\n    return n / 2\n", said[-3000:]
        assert model.asked == len(model.arguments) + (bool(model.done)), said[-3000:]
        outcomes = running.gateway.activity.outcomes
        assert outcomes["edited"] >= 2
        assert set(outcomes) <= {"edited", "as it came"}, outcomes
        return said


@pytest.mark.skipif(importlib.util.find_spec("minisweagent") is None, reason="not installed: minisweagent")
def test_mini_swe_agent(tmp_path: Path) -> None:
    """It asks for no streams."""
    last = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat half.py"
    model = ScriptedModel("bash", [{"command": each} for each in (*COMMANDS, last)], done="")
    agent = [sys.executable, "-m", "minisweagent.run.mini", "-m", "openai/m", "-t", "write half.py", "-y"]
    told = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "GATEWAY/v1", "MSWEA_CONFIGURED": "1"}
    told |= {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path / "config")}
    told |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with upstream(model) as api:
        works(api, model, [*agent, "--exit-immediately", "-o", str(tmp_path / "out.json")], tmp_path, **told)


def codex(folder: Path) -> tuple[list[str], dict[str, str]]:
    gateway = '{name="gateway",base_url="GATEWAY/v1",wire_api="responses",env_key="OPENAI_API_KEY"}'
    settings = ('model_provider="gateway"', f"model_providers.gateway={gateway}", "check_for_update_on_startup=false")
    options = [each for setting in (*settings, "analytics.enabled=false") for each in ("-c", setting)]
    options += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "m"]
    return ["codex", "exec", *options, "write half.py"], {"OPENAI_API_KEY": "k"}


def _opencode(folder: Path, package: str) -> tuple[list[str], dict[str, str]]:
    provider = {"npm": package, "options": {"baseURL": "GATEWAY/v1", "apiKey": "k"}, "models": {"m": {"name": "m"}}}
    settings: dict[str, Any] = {"provider": {"gateway": provider}, "model": "gateway/m", "small_model": "gateway/m"}
    settings |= {"autoupdate": False, "share": "disabled", "permission": "allow", "agent": {"title": {"disable": True}}}
    (folder / "work" / "opencode.json").write_text(json.dumps(settings))
    off = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    return ["opencode", "run", "-m", "gateway/m", "write half.py"], {f"OPENCODE_DISABLE_{each}": "1" for each in off}


def opencode_chat(folder: Path) -> tuple[list[str], dict[str, str]]:
    return _opencode(folder, "@ai-sdk/openai-compatible")


def opencode_messages(folder: Path) -> tuple[list[str], dict[str, str]]:
    return _opencode(folder, "@ai-sdk/anthropic")


def qwen(folder: Path) -> tuple[list[str], dict[str, str]]:
    (folder / "home" / ".qwen").mkdir(parents=True)
    settings = {"privacy": {"usageStatisticsEnabled": False}, "general": {"disableAutoUpdate": True}}
    (folder / "home" / ".qwen" / "settings.json").write_text(json.dumps(settings))
    told = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "GATEWAY/v1", "OPENAI_MODEL": "m"}
    return ["qwen", "--yolo", "-p", "write half.py", "--auth-type", "openai"], told


def claude(folder: Path) -> tuple[list[str], dict[str, str]]:
    off = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "IS_SANDBOX")
    told = {"ANTHROPIC_BASE_URL": "GATEWAY", "ANTHROPIC_API_KEY": "k", **dict.fromkeys(off, "1")}
    return ["claude", "-p", "write half.py", "--model", "m", "--dangerously-skip-permissions"], told


AGENTS: dict[str, tuple[Any, str, str, dict[str, object], str]] = {
    "codex": (codex, "exec_command", "cmd", {}, "/v1/responses"),
    "opencode_chat": (opencode_chat, "bash", "command", {"description": "x"}, "/v1/chat/completions"),
    "opencode_messages": (opencode_messages, "bash", "command", {"description": "x"}, "/v1/messages"),
    "qwen": (qwen, "run_shell_command", "command", {"is_background": False}, "/v1/chat/completions"),
    "claude": (claude, "Bash", "command", {"description": "x"}, "/v1/messages"),
}


def program(name: str) -> Path:
    return Path(FOLDER) / "node_modules" / ".bin" / name.partition("_")[0]


@pytest.mark.parametrize("name", AGENTS)
def test_coding_agents(name: str, tmp_path: Path) -> None:
    """They ask for streams, and call their own tools."""
    if not FOLDER or not program(name).exists():
        pytest.skip(f"not installed: {name}")
    made, tool, field, fields, route = AGENTS[name]
    (tmp_path / "work").mkdir()
    (_, *arguments), told = made(tmp_path)
    model = ScriptedModel(tool, [{field: each, **fields} for each in COMMANDS], done=DONE)
    with upstream(model) as api:
        assert DONE in works(api, model, [str(program(name)), *arguments], tmp_path, **told)
        asked = [each for each in api.requests if each.line.startswith(f"POST {route}")]
        assert [json.loads(each.body)["stream"] for each in asked] == [True] * model.asked
