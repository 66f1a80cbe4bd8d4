"""The code on README's pages and the site's: ours runs as printed, others' compiles, commands and configs are known."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import io
import re
import shlex
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from chatstack import from_config
from chatstack.cli import COMMANDS, command_parser
from chatstack.workbench.demo.stand_in import StandIn
from tests.docs.pages import README, ROOT, Block, blocks, pages, programs

PROGRAMS = [program for page in pages() for program in programs(page)]
FOREIGN = [block for page in pages() for block in blocks(page) if block.foreign]
CONFIGS = [block for page in pages() for block in blocks(page) if block.language == "toml" and not block.foreign]
OURS_IN_CONSOLES = re.compile(
    r"^\$ (?:.*\buv run (?:--?[\w-]+(?: extra| full| demo)? )*)?chatstack\b(?P<rest>[^|>&#]*)"
)


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandIn]:
    with StandIn(window_tokens=100_000) as server:
        yield server


@pytest.fixture(autouse=True)
def _a_folder_and_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: StandIn) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("OPENAI_BASE_URL", stand_in.base_url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    # A dashboard of the reader's may listen at the port that pages name, and waiting for one that does not takes long.
    monkeypatch.setattr(OTLPSpanExporter, "export", lambda *_: SpanExportResult.SUCCESS)


def place(program: list[Block]) -> str:
    return program[0].place


def run(program: list[Block], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a program's blocks as one main module; return what they print, and compare it with what the page shows."""
    main, printed = types.ModuleType("__main__"), ""
    monkeypatch.setitem(sys.modules, "__main__", main)
    for block in program:
        code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec", dont_inherit=True)
        with redirect_stdout(io.StringIO()) as shown:
            exec(code, vars(main))
        printed += shown.getvalue()
        if block.output is not None:
            assert lines_of(shown.getvalue()) == lines_of(block.output), block.place
    return printed


def lines_of(text: str) -> list[str]:
    """The lines of a text, without spaces at their ends, which editors take away."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.parametrize("program", PROGRAMS, ids=place)
def test_code_of_ours_runs_as_printed(program: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"fastapi": "fastapi"}
    for name in imported(program[0].code) & needed.keys():
        pytest.importorskip(name)
    threads = threading.active_count()
    run(program, monkeypatch)
    vars(sys.modules["__main__"]).clear()
    if threading.active_count() > threads:
        gc.collect()  # what a program leaves open ends with it, or tests that follow would find its threads


def imported(code: str) -> set[str]:
    """The top-level packages that code imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("block", FOREIGN, ids=lambda block: block.place)
@pytest.mark.filterwarnings("ignore")  # they are other people's
def test_code_of_others_compiles_and_imports_what_there_is(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # or importing it asks the network
    if block.language != "python":
        return
    tree = ast.parse(block.code, block.place)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        home = node.module.partition(".")[0]
        assert home == "chatstack" or home in block.foreign or home in sys.stdlib_module_names, (block.place, home)
        if importlib.util.find_spec(home) is None:
            continue
        module = importlib.import_module(node.module)
        assert [each.name for each in node.names if not hasattr(module, each.name)] == [], block.place


@pytest.mark.parametrize("block", CONFIGS, ids=lambda block: block.place)
def test_a_config_can_be_read(block: Block, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("")
    (tmp_path / "pipeline.toml").write_text(block.code, encoding="utf-8")
    assert from_config(tmp_path / "pipeline.toml").layers


def commands() -> Iterator[tuple[str, str]]:
    for page in pages():
        for block in blocks(page):
            for line in block.code.splitlines() if block.language == "console" and not block.foreign else ():
                if found := OURS_IN_CONSOLES.match(line):
                    yield f"{block.place}: {line}", found["rest"]


@pytest.mark.parametrize(("where", "arguments"), list(commands()))
def test_a_command_on_a_page_is_one_with_these_options(where: str, arguments: str) -> None:
    given = shlex.split(arguments)
    assert {"--help", "--version"} & {*given} or command_parser(given[0]).parse_args(given[1:]).run, where


def test_every_command_is_on_some_page() -> None:
    shown = {shlex.split(rest)[0] for _, rest in commands() if rest.strip()}
    assert not set(COMMANDS) - shown, f"show how it is called: {sorted(set(COMMANDS) - shown)}"


def test_ci_runs_the_readmes_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8") if (ROOT / ".ci").is_dir() else None
    if script is None:
        pytest.skip("away from the checkout there is no CI script")
    readme = README.read_text(encoding="utf-8")
    found = re.findall(r"^\$ (?:pip install uv && )?(uv run .*(?:demo|pytest).*)$", readme, re.MULTILINE)
    assert found == [
        "uv run --no-dev --extra demo chatstack demo",
        "uv run pytest",
        "uv run --group full pytest --full",
    ]
    for command in found:
        assert re.search(rf"^(\w+=\w+ )?{re.escape(command)}$", script, re.MULTILINE)


def test_nothing_was_left_to_be_filled_in() -> None:
    for page in pages():
        assert re.findall(r"[A-Z]+_TABLE|TODO|FIXME", page.read_text(encoding="utf-8")) == [], page
