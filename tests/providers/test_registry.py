"""What else has to know of a provider that is in the table: each place fails with the provider's name."""

from __future__ import annotations

import re
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
HTTP_LIBRARIES = ("aiohttp", "httpx", "httpx2")
"""What an API without an SDK is called with: their objects are no messages."""


def converter(entry: ProviderEntry, prefix: str) -> Callable[..., object] | None:
    found = getattr(chatstack, f"{prefix}_{entry.converters}", None)
    return found if callable(found) else None


def without(has: Callable[[ProviderEntry], object]) -> list[str]:
    """The names of the providers of which that is not true."""
    return [name for name, entry in PROVIDERS.items() if not has(entry)]


def expect_none(names: list[str], what_to_do: str) -> None:
    """Fail with the names of the providers that are not whole, and what to do for each of them."""
    assert not names, f"{', '.join(names)}: {what_to_do}"


def installs(entry: ProviderEntry) -> bool:
    """Whether the extra installs the distribution of the module: both have the same name, but for the hyphens."""
    wanted = (re.split(r"[^\w-]", each)[0].replace("-", "_") for each in EXTRAS.get(entry.extra, ()))
    return entry.sdk.partition(".")[0] in wanted


def test_every_provider_has_an_extra_which_is_in_all() -> None:
    expect_none(
        without(installs),
        "pyproject.toml, [project.optional-dependencies]: add the entry's extra, with what installs its sdk",
    )
    (everything,) = EXTRAS["all"]
    expect_none(
        without(lambda entry: entry.extra in everything.partition("[")[2].rstrip("]").split(",")),
        "pyproject.toml, [project.optional-dependencies]: put the entry's extra into all",
    )


def test_the_extra_need_not_have_the_name_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    by_http = PROVIDERS["openai"]._replace(sdk="httpx", extra="parley")
    assert not installs(by_http)
    monkeypatch.setitem(EXTRAS, "parley", ["httpx>=0.27"])
    assert installs(by_http)
    assert not installs(by_http._replace(extra="openai"))


def test_whoever_looks_for_a_provider_in_the_package_is_told_where_it_is() -> None:
    def told(entry: ProviderEntry) -> bool:
        with pytest.raises(AttributeError) as caught:
            getattr(chatstack, entry.class_name)
        return str(caught.value).endswith(f"{entry.class_name} is in {entry.module}")

    expect_none(without(told), "chatstack/__init__.py: put class_name and module of the entry into _ELSEWHERE")


def test_every_provider_has_converters_both_ways() -> None:
    expect_none(
        without(lambda entry: converter(entry, "from") and converter(entry, "to")),
        "chatstack/providers/converters.py: write from_... and to_..., ending as the entry's converters say, and make "
        "both public in chatstack/__init__.py",
    )


def test_a_message_goes_to_the_form_of_every_provider_and_back() -> None:
    for name, entry in PROVIDERS.items():
        there, back = converter(entry, "to"), converter(entry, "from")
        assert there is not None, f"{name}: chatstack/providers/converters.py: write to_{entry.converters}"
        assert back is not None, f"{name}: chatstack/providers/converters.py: write from_{entry.converters}"
        wire = there([Message.user("hello")])
        found = back(**wire) if isinstance(wire, dict) else back(wire)
        told = f"{name}: chatstack/providers/converters.py: from_{entry.converters} does not read what to_... wrote"
        assert found == [Message.user("hello")], told


def test_an_object_of_an_sdk_in_the_place_of_a_message_is_told_its_converter() -> None:
    def told(entry: ProviderEntry) -> bool:
        foreign = type("Foreign", (), {"__module__": f"{entry.sdk}.types"})()
        return f"from_{entry.converters}" in remedy_for({} if entry.sdk in HTTP_LIBRARIES else foreign)

    expect_none(without(told), "chatstack/values/mistakes.py: from_... in _OF_APIS, and an SDK in remedy_for")


def test_the_wire_of_every_provider_is_documented_where_extra_fields_are() -> None:
    documented = chatstack.values.parts.__doc__ or ""
    expect_none(
        without(lambda entry: f"``{entry.wire}``" in documented),
        "chatstack/values/parts.py: name the entry's wire in the docstring of the module, in double backquotes",
    )


def test_every_provider_says_its_name() -> None:
    where = "http://127.0.0.1:9/v1"
    expect_none(
        without(lambda entry: entry.load()("m", api_key="k", base_url=where).info.name == entry.provider),
        "the name of its Sdk and the provider of its entry in chatstack/providers/registry.py have to be the same",
    )


def test_the_page_of_config_files_names_every_provider() -> None:
    page = (ROOT / "docs" / "how-to" / "config-file.md").read_text()
    names = [name for name in PROVIDERS if f'"{name}"' not in page]
    expect_none(names, "docs/how-to/config-file.md: show a config with it, its name in quotation marks")
