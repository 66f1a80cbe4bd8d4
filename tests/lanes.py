"""Cases of a family that a plain run has, and those that only ``--full`` has."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest


def in_lanes(cases: Iterable[str], plain: Container[str]) -> list[object]:
    """Return all cases, for ``parametrize``: those that are not in ``plain`` are marked slow.

    Where it does not matter which cases of many a plain run has, ``@pytest.mark.sampled(every)`` is shorter.
    """
    return [each if each in plain else pytest.param(each, marks=pytest.mark.slow) for each in cases]
