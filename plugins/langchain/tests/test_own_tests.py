"""LangChain's own tests with the layer put in, where their source is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.own_tests import run

SOURCE = os.environ.get("CHATSTACK_LANGCHAIN_SOURCE", "")


@pytest.mark.skipif(not SOURCE, reason="CHATSTACK_LANGCHAIN_SOURCE names no unpacked source of langchain")
@pytest.mark.timeout(1_800)
def test_with_the_middleware_they_come_out_as_without_it() -> None:
    source = Path(SOURCE)
    found = run(source, "middleware")
    assert found.failed == run(source, "").failed
    assert int(found.through.split(" requests")[0].split()[-1]) > 200
