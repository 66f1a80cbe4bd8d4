"""Tools with which a model works on the files of a workspace."""

from __future__ import annotations

from typing import Annotated, Any

from chatstack.client.options import check_arguments
from chatstack.errors import ToolError, WiringError
from chatstack.loop.paths import shown
from chatstack.loop.workspace import Workspace
from chatstack.tools.tool import Tool, tool

MAX_CHARS = 30_000
"""Approximate maximum length of a result; a model that wants more asks for the next lines."""
_TRIES = 100
"""Maximum number of attempts; each one that fails means that another writer's change was made."""


def workspace_tools(workspace: Workspace, *, read_only: bool = False) -> tuple[Tool[..., Any], ...]:
    """Return ``list_files``, ``read_file`` and, unless ``read_only``, ``write_file`` and ``replace_in_file``.

    For ``FunctionInvoker(tools=...)`` and the iterative loop; all of them work on this workspace. What the workspace
    refuses is an error result that the model reads. No result is much longer than 30,000 characters.
    """
    if not isinstance(workspace, Workspace):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WiringError(
            f"workspace_tools: {type(workspace).__name__} is no workspace; it lacks a method of Workspace",
            parameter="workspace",
        )
    check_arguments(workspace_tools, read_only=read_only)
    reading = (_list_files(workspace), _read_file(workspace))
    return reading if read_only else (*reading, _write_file(workspace), _replace_in_file(workspace))


def _list_files(workspace: Workspace) -> Tool[..., Any]:
    @tool(idempotent=True, description="Lists the paths of the files in the workspace, one a line.")
    def list_files(folder: Annotated[str, "Only what is below this folder; empty for everything."] = "") -> str:
        paths = workspace.list(folder)
        if not paths:
            return f"[no files below {shown(folder)}]" if folder else "[the workspace has no files yet]"
        listed = "\n".join(paths)
        if len(listed) <= MAX_CHARS:
            return listed
        kept = listed[: listed.rindex("\n", 0, MAX_CHARS)]
        left_out = len(paths) - kept.count("\n") - 1
        return f"{kept}\n[{left_out:,} more are left out; list one folder to see them]"

    return list_files


def _read_file(workspace: Workspace) -> Tool[..., Any]:
    @tool(
        idempotent=True,
        description="Reads a text file of the workspace. A long file comes in parts: "
        "the first line says how to get the next.",
    )
    def read_file(
        path: Annotated[str, "The file's path, as list_files gives it, such as 'notes/plan.md'."],
        start_line: Annotated[int, "The first line to read, from 1 on."] = 1,
        max_lines: Annotated[int | None, "How many lines at most; leave it out for as many as fit."] = None,
    ) -> str:
        text = workspace.read(path)
        lines = _lines(text)
        if max_lines is not None and max_lines < 1:
            raise ToolError("max_lines must be 1 or more. Call again with another number, or leave it out.")
        if not 1 <= start_line <= max(1, len(lines)):
            raise ToolError(
                f"there is no line {start_line}: {shown(path)} has {_counted(len(lines))}. Call again with one of them."
            )
        if not lines:
            return f"[{shown(path)} is empty]"
        count = _that_fit(lines, start_line - 1, max_lines)
        part = "".join(lines[start_line - 1 : start_line - 1 + count])
        if len(part) > MAX_CHARS:
            part = f"{part[:MAX_CHARS]}[the rest of this line is too long to be shown]"
        elif count == len(lines):
            return text
        last = start_line - 1 + count
        following = f"; for the next: start_line={last + 1}" if last < len(lines) else ""
        return f"[lines {start_line} to {last} of {len(lines)}{following}]\n{part}"

    return read_file


def _write_file(workspace: Workspace) -> Tool[..., Any]:
    @tool(
        idempotent=True,
        description="Writes a text file of the workspace. What the file held before is replaced; "
        "folders are made as needed.",
    )
    def write_file(
        path: Annotated[str, "The file's path, with '/' between names, such as 'notes/plan.md'."],
        content: Annotated[str, "All that the file is to hold."],
    ) -> str:
        workspace.write(path, content)
        return f"Wrote {shown(path)}: {_counted(len(_lines(content)))}."

    return write_file


def _replace_in_file(workspace: Workspace) -> Tool[..., Any]:
    @tool(description="Replaces one passage of a text file of the workspace and leaves the rest as it is.")
    def replace_in_file(
        path: Annotated[str, "The file's path, as list_files gives it."],
        old: Annotated[str, "The text to replace, exactly as it is in the file; it must occur there exactly once."],
        new: Annotated[str, "What stands there instead; empty to remove it."],
    ) -> str:
        for _ in range(_TRIES):
            text = workspace.read(path)
            at = _only(text, old, path)
            if workspace.compare_and_exchange(path, text, text[:at] + new + text[at + len(old) :]):
                return f"Replaced it in {shown(path)}, at line {text.count(chr(10), 0, at) + 1}."
        raise ToolError(
            f"{shown(path)} is being changed all the time by others; nothing was replaced. Try again later."
        )

    return replace_in_file


def _only(text: str, old: str, path: str) -> int:
    """Return the position of a text that must occur exactly once."""
    if not old:
        raise ToolError("old is empty. Give the text to replace; to write a whole file, use write_file.")
    at = text.find(old)
    if at < 0:
        raise ToolError(
            f"old does not occur in {shown(path)}; nothing was replaced. Read the file, and copy the text exactly, "
            "with its spaces and line ends."
        )
    if text.find(old, at + 1) >= 0:
        raise ToolError(
            f"old occurs more than once in {shown(path)}; nothing was replaced. Give more of the text around it, so "
            "that it occurs once."
        )
    return at


def _lines(text: str) -> list[str]:
    """Return the lines with their ends; only a newline ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _that_fit(lines: list[str], start: int, max_lines: int | None) -> int:
    """Return the number of lines that fit, from ``start`` on; at least one."""
    wanted = lines[start:] if max_lines is None else lines[start : start + max_lines]
    chars = 0
    for count, line in enumerate(wanted):
        chars += len(line)
        if chars > MAX_CHARS:
            return max(1, count)
    return len(wanted)


def _counted(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines:,} lines"
