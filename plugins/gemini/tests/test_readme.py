"""The program in the README runs as it stands there."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from standin import chunk

from chatstack.testing.provider_server import Delivery, ScriptedServer, ServerReply


def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    (tmp_path / "program.py").write_text(text.split("```python\n")[2].split("```")[0])
    reply = ServerReply.json(chunk([{"text": "At the station."}], finishReason="STOP"))
    # The window is asked for with a request of its own.
    card = ServerReply.json({"name": "models/gemini-3.8-flash", "inputTokenLimit": 1_000_000})

    async def work() -> tuple[int | None, bytes, bytes]:
        async with ScriptedServer(lambda request: Delivery(reply if request.body else card)) as server:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "program.py"),
                cwd=tmp_path,
                env={**os.environ, "GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": server.base_url},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            said, told = await process.communicate()
            return process.returncode, said, told

    code, said, told = asyncio.run(work())
    assert (code, said) == (0, b"At the station.\n"), told.decode()
