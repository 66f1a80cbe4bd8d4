"""``chatstack.live.LiveView``: the view of running conversations, under its short name."""

from __future__ import annotations

from chatstack.workbench.live import LiveView as LiveView
