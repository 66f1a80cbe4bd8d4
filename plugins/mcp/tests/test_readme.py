"""The program in the README runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def search(words: str) -> str:
    return "nothing"


server.run(transport="stdio")
"""


def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    program = text.split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "my_server.py").write_text(SERVER)
    (tmp_path / "program.py").write_text(program)

    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "Nothing yet.\n"), done.stderr
