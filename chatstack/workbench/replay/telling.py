"""The format of figures in text."""

from __future__ import annotations

import math
from fractions import Fraction


def percent(share: Fraction | float) -> str:
    """Format a share in percent, to one decimal and rounded down, so that 100 means all."""
    thousandths = math.floor(share * 1_000 + (0 if isinstance(share, Fraction) else 1e-6))
    return f"{thousandths / 10:g}" if thousandths >= 1_000 else f"{thousandths / 10:.1f}"
