"""``chatstack demo``: its arguments, and the run from the first line to the last.

What it needs beyond the library itself is imported when it runs, so that a missing extra is one clear line.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from typing import TYPE_CHECKING

from chatstack.errors import ChatStackError

if TYPE_CHECKING:
    from chatstack.cli import Subparsers

PROVIDERS = ("openai", "openai-responses", "anthropic")
_DESCRIPTION = """\
A travel assistant plans a dozen cities in one conversation, and the conversation outgrows the window that the guard
watches over. You see it happen: live, as a tree of spans with the warnings marked, and in tokens, sent against what
would have been sent without the guard. Without --model it runs against a small rule-based stand-in for a model that it
starts on this machine: no key, no network.
"""


def register(subparsers: Subparsers) -> None:
    """Add ``demo`` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="a travel assistant outgrows its window while you look on; needs no key",
        description=_DESCRIPTION,
    )
    parser.add_argument("--model", help="run on this model instead of the stand-in (needs its provider's key)")
    parser.add_argument("--provider", choices=PROVIDERS, help="whose model it is (default: openai)")
    parser.add_argument("--base-url", help="another server that speaks the provider's protocol; needs --model")
    parser.add_argument("--all-spans", action="store_true", help="show the spans of quiet turns, too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if all went well. Raises ``ChatStackError`` for what is missing and for what a model refuses."""
    if args.model is None and (args.provider or args.base_url):
        raise ChatStackError("demo: --provider and --base-url are for a real model; name it with --model")
    _check_extras(args.provider or "openai")
    from chatstack.demo.assistant import run_demo

    return asyncio.run(run_demo(args.provider, args.model, args.base_url, every_turn=args.all_spans))


def _check_extras(provider: str) -> None:
    sdk = "anthropic" if provider == "anthropic" else "openai"
    missing = [name for name in ("rich", sdk, "opentelemetry.sdk") if not _is_installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ChatStackError(f"demo: {', '.join(missing)} {verb} not installed: pip install 'chatstack-core[all]'")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is not there
        return False
