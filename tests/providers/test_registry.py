"""What else has to know of a provider that is in the table: each place fails with the provider's name."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import chatstack
import chatstack.values.parts
from chatstack import Message
from chatstack.providers.registry import PROVIDERS, ProviderEntry
from chatstack.values.mistakes import remedy_for

ROOT = Path(chatstack.__file__).parent.parent
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def converter(entry: ProviderEntry, prefix: str) -> Callable[..., object] | None:
    found = getattr(chatstack, f"{prefix}_{entry.converters}", None)
    return found if callable(found) else None


def without(has: Callable[[ProviderEntry], object]) -> list[str]:
    """The names of the providers of which that is not true."""
    return [name for name, entry in PROVIDERS.items() if not has(entry)]


def test_every_provider_has_an_extra_which_is_in_all() -> None:
    assert without(lambda entry: any(each.startswith(entry.sdk) for each in EXTRAS.get(entry.sdk, ()))) == []
    (everything,) = EXTRAS["all"]
    assert without(lambda entry: entry.sdk in everything.partition("[")[2].rstrip("]").split(",")) == []


def test_whoever_looks_for_a_provider_in_the_package_is_told_where_it_is() -> None:
    for entry in PROVIDERS.values():
        with pytest.raises(AttributeError, match=f"{entry.class_name} is in {entry.module}$"):
            getattr(chatstack, entry.class_name)


def test_every_provider_has_converters_both_ways() -> None:
    assert without(lambda entry: converter(entry, "from") and converter(entry, "to")) == []


def test_a_message_goes_to_the_form_of_every_provider_and_back() -> None:
    for name, entry in PROVIDERS.items():
        there, back = converter(entry, "to"), converter(entry, "from")
        assert there is not None, name
        assert back is not None, name
        wire = there([Message.user("hello")])
        found = back(**wire) if isinstance(wire, dict) else back(wire)
        assert found == [Message.user("hello")], name


def test_an_object_of_an_sdk_in_the_place_of_a_message_is_told_its_converter() -> None:
    def told(entry: ProviderEntry) -> bool:
        foreign = type("Foreign", (), {"__module__": f"{entry.sdk}.types"})()
        return f"from_{entry.converters}" in remedy_for(foreign)

    assert without(told) == []


def test_the_wire_of_every_provider_is_documented_where_extra_fields_are() -> None:
    documented = chatstack.values.parts.__doc__ or ""
    assert without(lambda entry: f"``{entry.wire}``" in documented) == []


def test_every_provider_says_its_name() -> None:
    where = "http://127.0.0.1:9/v1"
    assert without(lambda entry: entry.load()("m", api_key="k", base_url=where).info.name == entry.provider) == []


def test_the_readme_names_every_provider() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in PROVIDERS if f'"{name}"' not in readme] == []
