"""Tools over a workspace: what a model gets to read, and that two who edit one file lose nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from chatstack import (
    ChatStack,
    FunctionInvoker,
    MemoryWorkspace,
    Message,
    ToolCall,
    ToolContext,
    ToolResult,
    WiringError,
    Workspace,
    workspace_tools,
)
from chatstack.loop.workspace_tools import MAX_CHARS
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.tools.execution import ToolRunner


def ran(workspace: Workspace, name: str, **arguments: Any) -> ToolResult:
    """What the model gets for that call."""
    call = ToolCall("call-1", name, json.dumps(arguments))
    context = ToolContext(conversation_id=None, call_id=call.id, tool_name=name, round=0, messages=())
    runner = ToolRunner({each.name: each for each in workspace_tools(workspace)}, TelemetryCapture().telemetry)
    return asyncio.run(asyncio.wait_for(runner.run(call, context), 300)).result


def said(workspace: Workspace, name: str, **arguments: Any) -> str:
    result = ran(workspace, name, **arguments)
    assert not result.is_error
    assert isinstance(result.output, str)
    return result.output


def refused(workspace: Workspace, name: str, **arguments: Any) -> str:
    result = ran(workspace, name, **arguments)
    assert result.is_error
    assert isinstance(result.output, str)
    return result.output


def test_there_are_two_tools_to_read_and_two_to_write() -> None:
    workspace = MemoryWorkspace()
    names = [each.name for each in workspace_tools(workspace)]
    assert names == ["list_files", "read_file", "write_file", "replace_in_file"]
    assert [each.name for each in workspace_tools(workspace, read_only=True)] == names[:2]


def test_every_tool_and_every_parameter_says_what_it_is_for() -> None:
    for each in workspace_tools(MemoryWorkspace()):
        declared = each.declaration()
        assert len(declared.description) > 40
        for about in json.loads(declared.parameters)["properties"].values():
            assert about["description"]


def test_a_model_works_on_the_files_through_the_tool_loop() -> None:
    workspace = MemoryWorkspace({"plan.md": "1. look\n2. see\n"})
    calls = [
        ToolCall("1", "list_files", "{}"),
        ToolCall("2", "read_file", '{"path": "plan.md"}'),
        ToolCall("3", "write_file", '{"path": "notes/a.md", "content": "seen"}'),
        ToolCall("4", "replace_in_file", '{"path": "plan.md", "old": "2. see", "new": "2. seen"}'),
        ToolCall("5", "read_file", '{"path": "../plan.md"}'),
    ]
    model = ScriptedClient([*(Message.assistant(call) for call in calls), "done"])
    client = ChatStack(model).use(FunctionInvoker, tools=workspace_tools(workspace)).build()
    assert asyncio.run(client.get_response("go on")).text == "done"
    results = [each.output for message in model.requests[-1].messages for each in message.results]
    assert results[:4] == [
        "plan.md",
        "1. look\n2. see\n",
        "Wrote 'notes/a.md': 1 line.",
        "Replaced it in 'plan.md', at line 2.",
    ]
    assert str(results[4]).startswith("Error: the path '../plan.md' holds '..'")
    assert {path: workspace.read(path) for path in workspace.list()} == {
        "plan.md": "1. look\n2. seen\n",
        "notes/a.md": "seen",
    }


# list_files


def test_files_are_listed_one_a_line() -> None:
    workspace = MemoryWorkspace({"b": "", "a/c": "", "a/b": ""})
    assert said(workspace, "list_files") == "a/b\na/c\nb"
    assert said(workspace, "list_files", folder="a/") == "a/b\na/c"
    assert said(workspace, "list_files", folder="x") == "[no files below 'x']"
    assert said(MemoryWorkspace(), "list_files") == "[the workspace has no files yet]"


def test_a_long_list_is_cut_and_says_how_much_is_missing() -> None:
    paths = [f"{number:04}{'x' * 96}" for number in range(1_000)]
    listed = said(MemoryWorkspace(dict.fromkeys(paths, "")), "list_files").split("\n")
    assert listed[:-1] == paths[: len(listed) - 1]
    assert listed[-1] == f"[{1_000 - len(listed) + 1} more are left out; list one folder to see them]"
    assert MAX_CHARS - 200 < len("\n".join(listed[:-1])) <= MAX_CHARS


# read_file


@pytest.mark.parametrize("text", ["a", "a\n", "a\r\nb\x0bc\u2028d\n\n", "\n", "[lines 1 to 2 of 3]\n"])
def test_a_short_file_is_read_to_the_letter(text: str) -> None:
    assert said(MemoryWorkspace({"a": text}), "read_file", path="a") == text


def test_an_empty_file_is_said_to_be_empty() -> None:
    assert said(MemoryWorkspace({"a": ""}), "read_file", path="a") == "['a' is empty]"


def test_some_lines_of_a_file_say_where_they_are_and_how_to_go_on() -> None:
    workspace = MemoryWorkspace({"a": "1\n2\n3\n4"})
    assert (
        said(workspace, "read_file", path="a", max_lines=2) == "[lines 1 to 2 of 4; for the next: start_line=3]\n1\n2\n"
    )
    assert said(workspace, "read_file", path="a", start_line=3) == "[lines 3 to 4 of 4]\n3\n4"
    assert said(workspace, "read_file", path="a", start_line=4, max_lines=9) == "[lines 4 to 4 of 4]\n4"
    assert said(workspace, "read_file", path="a", max_lines=4) == "1\n2\n3\n4"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"start_line": 0}, "there is no line 0: 'a' has 2 lines"),
        ({"start_line": 3}, "there is no line 3: 'a' has 2 lines"),
        ({"start_line": -1}, "there is no line -1"),
        ({"max_lines": 0}, "max_lines must be 1 or more"),
    ],
)
def test_lines_that_are_not_there_are_an_error_that_says_which_are(arguments: dict[str, int], why: str) -> None:
    assert why in refused(MemoryWorkspace({"a": "1\n2\n"}), "read_file", path="a", **arguments)


def test_a_long_file_comes_in_parts_that_are_all_of_it() -> None:
    lines = [f"{number} {'x' * (number % 300)}\n" for number in range(2_000)]
    workspace = MemoryWorkspace({"a": "".join(lines)})
    parts: list[str] = []
    start = 1
    while start <= len(lines):
        head, part = said(workspace, "read_file", path="a", start_line=start).split("\n", 1)
        assert head.startswith(f"[lines {start} to ")
        assert len(part) <= MAX_CHARS
        parts.append(part)
        start += part.count("\n")
    assert "".join(parts) == "".join(lines)
    assert len(parts) == 11


def test_a_line_that_is_too_long_is_cut_and_does_not_hide_the_next() -> None:
    workspace = MemoryWorkspace({"a": "x" * 100_000 + "\nlast\n"})
    read = said(workspace, "read_file", path="a")
    assert read.startswith("[lines 1 to 1 of 2; for the next: start_line=2]\nxxx")
    assert read.endswith("x[the rest of this line is too long to be shown]")
    assert len(read) < MAX_CHARS + 200
    assert said(workspace, "read_file", path="a", start_line=2) == "[lines 2 to 2 of 2]\nlast\n"
    one = said(MemoryWorkspace({"a": "x" * 100_000}), "read_file", path="a")
    assert len(one) < MAX_CHARS + 200


# write_file and replace_in_file


def test_a_file_is_written_and_written_anew() -> None:
    workspace = MemoryWorkspace()
    assert said(workspace, "write_file", path="./a//b", content="1\n2\n") == "Wrote './a//b': 2 lines."
    assert said(workspace, "write_file", path="a/b", content="") == "Wrote 'a/b': 0 lines."
    assert workspace.read("a/b") == ""


def test_what_the_workspace_refuses_is_what_the_model_reads() -> None:
    workspace = MemoryWorkspace(max_file_bytes=3)
    assert refused(workspace, "write_file", path="a", content="1234").startswith("Error: 'a' would have 4 bytes")
    assert refused(workspace, "read_file", path="a").startswith("Error: there is no file 'a'.")
    assert refused(workspace, "replace_in_file", path="a", old="1", new="2").startswith("Error: there is no file 'a'.")
    assert "a backslash" in refused(workspace, "write_file", path="a\\b", content="")


@pytest.mark.parametrize(
    ("old", "why"),
    [
        ("", "old is empty"),
        ("x", "old does not occur in 'a'; nothing was replaced"),
        ("one\ntwo", "old does not occur"),
        ("o", "old occurs more than once in 'a'; nothing was replaced"),
        ("aa", "old occurs more than once"),
    ],
)
def test_a_passage_that_is_not_there_once_is_not_replaced(old: str, why: str) -> None:
    workspace = MemoryWorkspace({"a": "one\r\ntwo\r\naaa"})
    assert why in refused(workspace, "replace_in_file", path="a", old=old, new="new")
    assert workspace.read("a") == "one\r\ntwo\r\naaa"


def test_the_rest_of_the_file_stays_as_it_is() -> None:
    workspace = MemoryWorkspace({"a": "\ufeffone\r\ntwo \\1 {x}\n\n"})
    assert said(workspace, "replace_in_file", path="a", old="two", new=r"\g<0>\n") == "Replaced it in 'a', at line 2."
    assert workspace.read("a") == "\ufeffone\r\n\\g<0>\\n \\1 {x}\n\n"
    said(workspace, "replace_in_file", path="a", old="one\r\n", new="")
    assert workspace.read("a") == "\ufeff\\g<0>\\n \\1 {x}\n\n"


def test_many_who_replace_in_one_file_lose_nothing() -> None:
    workspace = MemoryWorkspace({"a": "".join(f"<{number}:0>" for number in range(8))})
    replace = {each.name: each for each in workspace_tools(workspace)}["replace_in_file"]

    def count(number: int) -> None:
        for turn in range(20):
            replace("a", f"<{number}:{turn}>", f"<{number}:{turn + 1}>")

    threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    assert workspace.read("a") == "".join(f"<{number}:20>" for number in range(8))


class Contended(MemoryWorkspace):
    """Somebody else always writes first."""

    tries = 0

    def compare_and_exchange(self, path: str, expected: str | None, text: str) -> bool:
        self.tries += 1
        self.write(path, f"{self.tries} old")
        return super().compare_and_exchange(path, expected, text)


def test_whoever_is_always_too_late_gives_up_and_says_so() -> None:
    workspace = Contended({"a": "old"})
    assert "is being changed all the time by others" in refused(
        workspace, "replace_in_file", path="a", old="old", new="x"
    )
    assert workspace.tries == 100


def test_what_is_no_workspace_fails_at_once() -> None:
    anything: Any = {"a": "text"}
    with pytest.raises(WiringError, match="workspace_tools: dict is no workspace"):
        workspace_tools(anything)


def test_the_tools_are_described_where_docstrings_are_stripped() -> None:
    script = """
from chatstack import MemoryWorkspace, workspace_tools
print([each.description for each in workspace_tools(MemoryWorkspace())])
"""
    told = [
        subprocess.run([sys.executable, *flags, "-c", script], capture_output=True, text=True, timeout=100, check=True)
        for flags in ([], ["-OO"])
    ]
    assert told[0].stdout == told[1].stdout
    assert "''" not in told[0].stdout
