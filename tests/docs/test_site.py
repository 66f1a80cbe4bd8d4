"""The site is built without a network, by zensical and by mkdocs, and nothing in it leads nowhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

BUILDERS = {"zensical": ["build", "--strict"], "mkdocs": ["build", "--strict", "--quiet"]}


@pytest.mark.slow
@pytest.mark.parametrize("builder", BUILDERS)
def test_the_site_is_built_offline_without_a_warning(builder: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(builder) is None:
        pytest.skip(f"{builder} is not installed: uv sync --group docs")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, "-m", builder, *BUILDERS[builder]]
    proxy = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NO_MKDOCS_2_WARNING": "1", **proxy}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    made = {page.relative_to(tmp_path / "site") for page in (tmp_path / "site").rglob("*.html")}
    assert pages <= made
    assert (tmp_path / "site" / "llms.txt").is_file()
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', home)
    assert fetched == [], "a page of the site fetches something from elsewhere"
