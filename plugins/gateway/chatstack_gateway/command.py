"""``chatstack serve``: the gateway as a command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chatstack import WiringError

if TYPE_CHECKING:
    from chatstack.cli import Subparsers
    from chatstack_gateway.settings import Settings

_TOKEN, _ADMIN = "CHATSTACK_GATEWAY_TOKEN", "CHATSTACK_ADMIN_TOKEN"
_LAST_PORT = 65_535
_DESCRIPTION = f"""\
Stand in front of an API of OpenAI's or Anthropic's. Apps change one line: their base URL, to http://127.0.0.1:PORT/v1
(OpenAI's clients) or http://127.0.0.1:PORT (Anthropic's). With --observe all is forwarded untouched, and reported what
the pipeline would have done; with a pipeline alone its layers edit what is sent. Secrets come from the environment:
{_TOKEN}, which callers have to show; {_ADMIN}, for /chatstack/editing; --key-env.
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="stand in front of an API, watch or edit what apps send",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from chatstack_gateway.serving import serve

    own = vars(_parser().parse_args([]))
    return serve(settings_of(arguments), [word for name in own for word in _words(name, getattr(arguments, name))])


def settings_from(words: Sequence[str]) -> Settings:
    """Return the settings that a worker was told by these words of the command line."""
    return settings_of(_parser().parse_args(words))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    _add_arguments(parser)
    return parser


def _words(name: str, value: object) -> list[str]:
    """Return an argument as it stands on the command line."""
    if name == "pipeline":
        return [str(value)] if value else []
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option] if value else []
    return [f"{option}={value}"] if value not in (None, "") else []


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pipeline", nargs="?", default="", help="the recipe, a file; its provider names the upstream")
    add("--observe", metavar="URL", default="", help="forward to URL untouched; report what would have been done")
    add("--upstream", metavar="URL", default="", help="forward to URL, in the place of the pipeline's provider")
    add(
        "--api",
        choices=("chat", "responses", "messages"),
        help="the one API that upstream speaks: requests of the two others are converted, as far as that can be",
    )
    add("--model", metavar="NAME", default="", help="model for converted requests, in the place of the callers'")
    add(
        "--rewrite-answers",
        action="store_true",
        help="hand on what the layers make of answers, written anew, in the place of upstream's bytes",
    )
    add("--port", type=int, default=8080, help="(8080)")
    add("--host", default="127.0.0.1", help="address to listen at (127.0.0.1); another one wants a token")
    add("--workers", type=int, default=1, help="processes (1)")
    add("--record", type=Path, metavar="FOLDER", help="write requests and answers, in full, for replay and tune")
    add(
        "--key-env",
        metavar="NAME",
        default="",
        help="variable with a key to send in the place of callers'",
    )
    add("--max-body-mib", type=int, default=64, help="largest body of a request (64)")
    add("--max-open", type=int, default=2_000, help="most open requests of a process (2000)")
    add("--head-seconds", type=float, default=60, help="time for the head of a request (60)")
    add("--stall-seconds", type=float, default=600, help="longest silence of the upstream (600)")
    add("--drain-seconds", type=float, default=30, help="time for open answers after SIGTERM (30)")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that the arguments and the environment tell. Raises ``WiringError``."""
    from chatstack_gateway.settings import Limits, Settings, Upstream
    from chatstack_gateway.stacks import named_upstream

    if arguments.observe and arguments.upstream:
        raise WiringError("--observe and --upstream both name a server; leave one out")
    if not arguments.pipeline and not arguments.observe:
        raise WiringError("name a pipeline file, or --observe URL to watch without one")
    for name, least in (("port", 0), ("workers", 1), ("max_body_mib", 1), ("max_open", 1)):
        if getattr(arguments, name) < least:
            raise WiringError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be {least} or more")
    if arguments.port > _LAST_PORT:
        raise WiringError(f"--port {arguments.port}: must be {_LAST_PORT} or less")
    for name in ("head_seconds", "stall_seconds", "drain_seconds"):
        if not getattr(arguments, name) > 0:
            raise WiringError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be greater than 0")
    if arguments.model and not arguments.api:
        raise WiringError("--model is for converted requests; name upstream's API by --api, or leave it out")
    address = arguments.observe or arguments.upstream
    key = _secret(arguments.key_env) if arguments.key_env else ""
    if arguments.key_env and not key:
        raise WiringError(f"--key-env: {arguments.key_env} is not set")
    limits = replace(
        Limits(),
        body_bytes=arguments.max_body_mib * 1024 * 1024,
        open_requests=arguments.max_open,
        head_seconds=arguments.head_seconds,
        stall_seconds=arguments.stall_seconds,
        drain_seconds=arguments.drain_seconds,
    )
    return Settings(
        Upstream(address) if address else named_upstream(arguments.pipeline)[0],
        pipeline=arguments.pipeline,
        api=arguments.api,
        model=arguments.model,
        rewrite_answers=arguments.rewrite_answers,
        observe=bool(arguments.observe),
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        record=arguments.record,
        key=key,
        token=_secret(_TOKEN),
        admin_token=_secret(_ADMIN),
        limits=limits,
    )


def _secret(name: str) -> str:
    """Return a variable's value without white space around it, as files end in a line's end. Raises ``WiringError`` for
    one that cannot stand in a header."""
    value = os.environ.get(name, "").strip()
    if not value.isascii() or not value.isprintable():
        raise WiringError(f"{name}: holds a character that cannot stand in a header")
    return value
