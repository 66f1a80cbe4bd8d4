"""Pydantic AI's own tests with the layer put in, where their source is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.own_tests import run

SOURCE = os.environ.get("CHATSTACK_PYDANTIC_AI_SOURCE", "")


@pytest.mark.skipif(not SOURCE, reason="CHATSTACK_PYDANTIC_AI_SOURCE names no checkout of pydantic-ai")
@pytest.mark.timeout(3_600)
def test_with_the_layer_they_come_out_as_without_it() -> None:
    source = Path(SOURCE)
    found = run(source, "wrapper")
    assert found.failed == run(source, "").failed
    assert int(found.through.split(" requests")[0].split()[-1]) > 200
