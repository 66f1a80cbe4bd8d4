"""``chatstack schema``: the JSON schema of config files, for editors."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatstack.cli import Subparsers

_DESCRIPTION = """\
Prints the JSON schema of config files: what there is to name, with its options
and their types. Editors complete and check by it. The names that installed
plugins offer are in it, too, without their options: no plugin is imported. Set
CHATSTACK_PLUGINS to the empty text to leave them out.
"""
_EPILOG = """\
examples:
  chatstack schema > pipeline.schema.json
  in a JSON file: "$schema": "pipeline.schema.json"
  in a YAML file: # yaml-language-server: $schema=pipeline.schema.json
  in a TOML file: #:schema pipeline.schema.json

next: chatstack inspect FILE shows what a file makes
"""


def register(subparsers: Subparsers) -> None:
    """Add ``schema`` to the command line."""
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON schema of config files, for editors",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the schema and return 0."""
    from chatstack.config.schema import pipeline_schema, written

    sys.stdout.write(written(pipeline_schema(with_plugins=True)))
    return 0
