"""What single pages promise, beyond that their code runs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import types
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatstack import ChatRequest, ChatStack, ChatStream, ChatUpdate, ServerError
from chatstack.cli import main
from chatstack.testing import ScriptedClient
from chatstack.workbench.demo.stand_in import StandIn
from scripts.pictures import FOLDER as PICTURES
from scripts.pictures import pictures
from tests.docs.pages import DOCS, README, ROOT, Block, programs
from tests.docs.test_code import run


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with StandIn(window_tokens=100_000) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield


def program(page: str, words: str) -> list[Block]:
    """The one program of a page that has these words in it."""
    (found,) = (each for each in programs(ROOT / page) if words in each[0].code)
    return found


def test_the_readme_has_at_most_200_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


def test_the_quickstart_streams_two_answers_each_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(program("README.md", "get_streaming_response"), monkeypatch).splitlines()
    assert "Dubai" in first
    assert second


def test_the_override_of_the_container_example_reaches_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(program("docs/how-to/any-container.md", "services.__getitem__"), monkeypatch)
    assert printed.startswith("ContextWindowGuard(max_context_tokens=8000, counter=CharCounter(chars_per_token=3)")
    assert "strict=True" in printed


def test_the_clearing_example_clears_and_names_the_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    example = program("docs/how-to/long-conversations.md", "recall(handle=")
    whole = [block._replace(code=block.code.replace("[:40]", "[:90]")) for block in example]
    printed = run(whole, monkeypatch)
    assert len(re.findall(r"read_page: [\d,]+ tokens cleared; recall\(handle='[0-9a-f]{10}'", printed)) == 3
    assert len(re.findall(r"\['page [34]: turn the valve", printed)) == 2
    assert (tmp_path / "decisions.sqlite").exists()


def test_what_the_recording_example_writes_down_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        run(program("docs/how-to/replay.md", "requests.jsonl"), monkeypatch)
    assert main(["replay", "requests.jsonl", "--window", "8000", "--policy", "guard"]) == 1
    assert "1 conversation, 0 calls" in capsys.readouterr().out


class Slow:
    """A model that says a word, then waits until it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._updates())

    async def _updates(self) -> AsyncGenerator[ChatUpdate, None]:
        try:
            yield ChatUpdate(text="Take ")
            await asyncio.Event().wait()
        finally:
            self.is_closed = True


def test_a_browser_that_goes_away_stops_the_model_and_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    page: list[Block] = program("docs/how-to/fastapi.md", "StreamingResponse")[:1]
    run(page, monkeypatch)
    endpoint: Any = sys.modules["__main__"]
    model = Slow()

    async def browse() -> None:
        endpoint.app.state.chat = state = endpoint.State(ChatStack(model).build())
        response = await endpoint.chat("c-42", endpoint.Question(text="What should I wear?"))
        first = asyncio.get_running_loop().create_future()

        async def served() -> None:
            async for event in response.body_iterator:
                first.set_result(event)

        serving = asyncio.create_task(served())
        assert await first == 'data: "Take "\n\n'
        serving.cancel()  # as Starlette does where the client disconnects
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert state.histories == {}

    asyncio.run(browse())
    assert model.is_closed


def test_a_provider_that_refuses_is_an_error_event_and_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    page: list[Block] = program("docs/how-to/fastapi.md", "StreamingResponse")[:1]
    run(page, monkeypatch)
    endpoint: Any = sys.modules["__main__"]

    async def browse() -> list[str]:
        client = ChatStack(ScriptedClient([ServerError("overloaded")])).build()
        endpoint.app.state.chat = state = endpoint.State(client)
        response = await endpoint.chat("c-42", endpoint.Question(text="What should I wear?"))
        events = [event async for event in response.body_iterator]
        assert state.histories == {}
        return events

    assert asyncio.run(browse()) == ['event: error\ndata: "ServerError"\n\n']


@pytest.mark.slow
@pytest.mark.parametrize("page", ["test-your-app", "write-a-layer", "write-a-store"])
def test_the_examples_keep_their_contracts(page: str, tmp_path: Path) -> None:
    (example,) = programs(DOCS / "how-to" / f"{page}.md")
    (tmp_path / "test_example.py").write_text("\n".join(block.code for block in example), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout


def test_the_pictures_are_what_the_script_draws() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert there == pictures(), "run 'uv run poe reference'"
