"""``chatstack demo``: its arguments, and the run from the first line to the last.

Dependencies beyond the library itself are imported when the demo runs, so that a missing extra is one clear line.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from typing import TYPE_CHECKING

from chatstack.errors import ChatStackError
from chatstack.providers.registry import PROVIDERS

if TYPE_CHECKING:
    from chatstack.cli import Subparsers

_DEFAULT = "openai"
_DESCRIPTION = """\
A travel assistant plans a dozen cities in one conversation, until the conversation is longer than the model's context
window. Old tool results are cleared, the oldest turns are summarized, and a guard warns. Shown are the conversation
while it runs, what the model still knows at the end and from which summary, its trace with the warnings marked, and the
tokens that were sent, beside those of the whole conversation. It needs no key, no network: a small program on this
machine stands in for the model. To see a real one, name it by --model.
"""
_EPILOG = """\
next: --otlp URL sends the spans to a dashboard; docs/tutorial.md in a checkout builds this assistant step by step
"""


def register(subparsers: Subparsers) -> None:
    """Add ``demo`` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="watch a conversation outgrow its context window; needs no key",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="a real model instead of the stand-in; its provider's key is taken from the environment",
    )
    parser.add_argument(
        "--provider", choices=PROVIDERS.keys(), help="whose model it is (default: openai); needs --model"
    )
    parser.add_argument(
        "--base-url", metavar="URL", help="another server with the same API as the provider's; needs --model"
    )
    parser.add_argument(
        "--all-spans", action="store_true", help="trace every city, not only those with a warning or an edit"
    )
    parser.add_argument(
        "--live", action="store_true", help="watch the window fill, in a view that any client can have (chatstack.live)"
    )
    parser.add_argument(
        "--otlp",
        type=_address,
        metavar="URL",
        help="send the spans to a dashboard there, too, by OTLP over HTTP, as http://127.0.0.1:6006 for Phoenix or "
        "http://127.0.0.1:4318 for Jaeger",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo and return 0, or 1 if the dashboard did not take its spans.

    Raises ``ChatStackError`` for a missing extra or key, and for a model's refusal.
    """
    if args.model is None and (args.provider or args.base_url):
        raise ChatStackError("demo: --provider and --base-url are for a real model; name it with --model")
    _check_extras(args.provider or _DEFAULT, otlp=args.otlp is not None)
    from chatstack.workbench.demo.assistant import run_demo

    outcome = run_demo(
        args.provider, args.model, args.base_url, every_turn=args.all_spans, live=args.live, otlp=args.otlp
    )
    return asyncio.run(outcome)


def _address(text: str) -> str:
    from chatstack.providers.settings import fault_in_address

    if fault_in_address(text):
        raise argparse.ArgumentTypeError("not an address such as http://127.0.0.1:6006")
    return text


def _check_extras(provider: str, *, otlp: bool = False) -> None:
    entry = PROVIDERS[provider]
    wanted = ["rich", entry.sdk, "opentelemetry.sdk", *(["opentelemetry.exporter.otlp.proto.http"] if otlp else [])]
    missing = [name for name in wanted if not _is_installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        extras = "demo" if entry.extra == PROVIDERS[_DEFAULT].extra else f"demo,{entry.extra}"
        raise ChatStackError(f"demo: {', '.join(missing)} {verb} not installed: pip install 'chatstack-core[{extras}]'")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False
