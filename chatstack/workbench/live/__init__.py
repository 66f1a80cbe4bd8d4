"""A view of running conversations for the terminal, fed by progress events alone.

It needs the extra ``cli``, which is loaded when ``LiveView`` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatstack.workbench.live.view import LiveView as LiveView

__all__ = ["LiveView"]


def __getattr__(name: str) -> object:
    if name != "LiveView":
        raise AttributeError(f"module 'chatstack.workbench.live' has no attribute {name!r}")
    try:
        from chatstack.workbench.live.view import LiveView
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        from chatstack.cli.terminal import missing_extra

        raise missing_extra("rich", "cli") from error
    globals()[name] = LiveView
    return LiveView
