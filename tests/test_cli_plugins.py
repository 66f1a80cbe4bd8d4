"""Commands of other distributions: listed by --help, imported when they are named, no trouble when they are broken."""

from __future__ import annotations

import pytest

from chatstack.cli import main
from tests.command_line import error_of
from tests.plugin_fixtures import Shop
from tests.plugin_fixtures import shop as shop  # a fixture

WAVE = """
def register(subparsers):
    parser = subparsers.add_parser("wave", help="wave")
    parser.add_argument("--times", type=int, default=1)
    parser.set_defaults(run=lambda arguments: print("o/ " * arguments.times) or 1)
"""


def test_a_distribution_adds_a_command(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.install("acme-waves", {"commands: wave": "acme_wave"}, {"acme_wave": WAVE})

    assert main(["wave", "--times", "2"]) == 1
    assert capsys.readouterr().out == "o/ o/ \n"


def test_help_names_it_with_its_distribution_and_imports_it_not(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.install("acme-waves", {"commands: wave": "acme_wave"}, {"acme_wave": WAVE})

    assert main(["--help"]) == 0
    assert "wave" in (said := capsys.readouterr().out)
    assert "(from acme-waves)" in said
    assert not shop.was_imported("acme_wave")


def test_a_built_in_command_is_nobody_elses(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.install("acme-waves", {"commands: schema": "acme_wave"}, {"acme_wave": WAVE})

    assert main(["schema"]) == 0
    assert "$schema" in capsys.readouterr().out
    assert not shop.was_imported("acme_wave")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import no_such_module_anywhere", "'wave' of acme-waves 1.0 cannot be loaded: ModuleNotFoundError"),
        ("nothing = 1", "'wave' of acme-waves 1.0 is no command: it has no register()"),
    ],
)
def test_a_broken_command_is_one_line(shop: Shop, capsys: pytest.CaptureFixture[str], code: str, told: str) -> None:
    shop.install("acme-waves", {"commands: wave": "acme_wave"}, {"acme_wave": code})

    assert told in error_of(capsys, "wave")


def test_what_may_not_be_loaded_is_not(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.install("acme-waves", {"commands: wave": "acme_wave"}, {"acme_wave": WAVE})
    monkeypatch.setenv("CHATSTACK_PLUGINS", "")

    assert "may not be loaded" in error_of(capsys, "wave")
    assert not shop.was_imported("acme_wave")
