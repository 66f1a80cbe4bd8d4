"""Where the names of an SDK come from: its own module, or a small client of ours for an API without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from chatstack import WiringError
from chatstack.errors import ServerError
from chatstack.providers.sdk import Sdk

ASKED = {"api_key": "k", "base_url": "http://127.0.0.1:9/v1", "timeout": None, "max_retries": None, "http_client": None}
CLIENT = """
class ParleyError(Exception):
    message = body = None

class APIError(ParleyError): ...
class APIStatusError(APIError): ...
class APIConnectionError(APIError): ...
class APITimeoutError(APIConnectionError): ...
class APIResponseValidationError(APIError): ...

class Parley: ...

class AsyncParley:
    def __init__(self, *, api_key=None, base_url=None):
        self.api_key, self.base_url = api_key, base_url
"""


class ParleySdk(Sdk[Any]):
    name = "parley"
    module = "parley_over_http"
    client_name = "Parley"
    key_error = "ParleyError"
    keys = ("api_key",)
    resource = "talk"
    default_url = "https://api.parley.invalid"
    dict_options: ClassVar[Mapping[str, object]] = MappingProxyType({})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, ParleySdk.module, raising=False)
    yield tmp_path
    sys.modules.pop(ParleySdk.module, None)


def test_a_client_of_ours_stands_in_its_own_module(folder: Path) -> None:
    (folder / "parley_over_http.py").write_text(CLIENT)
    sdk = ParleySdk()
    client = sdk.client("ParleyClient", None, ASKED)
    assert (type(client).__module__, client.api_key) == ("parley_over_http", "k")
    assert (sdk.info(client, "m", None).name, sdk.info(client, "m", None).server_port) == ("parley", 9)
    module = sys.modules["parley_over_http"]
    error = sdk.translated(module.APIResponseValidationError())
    assert isinstance(error, ServerError)
    assert error.provider == "parley"
    wanted = r"^ParleyClient: client is synchronous; pass parley_over_http\.AsyncParley\(\.\.\.\)$"
    with pytest.raises(WiringError, match=wanted):
        sdk.client("ParleyClient", module.Parley(), dict.fromkeys(ASKED))


def test_a_package_that_the_client_needs_is_named_beside_the_extra(folder: Path) -> None:
    (folder / "parley_over_http.py").write_text("import a_package_that_nobody_has")
    told = r"^ParleyClient: the package a_package_that_nobody_has is missing; pip install 'chatstack-core\[parley\]'$"
    with pytest.raises(WiringError, match=told):
        ParleySdk().client("ParleyClient", None, ASKED)


def test_a_missing_sdk_is_called_one() -> None:
    class NoSdk(ParleySdk):
        name = "a_package_that_nobody_has"
        module = ""

    told = (
        r"^C: the a_package_that_nobody_has SDK is missing; pip install 'chatstack-core\[a_package_that_nobody_has\]'$"
    )
    with pytest.raises(WiringError, match=told):
        NoSdk().client("C", None, ASKED)


def test_an_sdk_in_a_package_of_packages_is_missing_by_its_whole_name() -> None:
    class Nested(ParleySdk):
        module = "email.parley_over_http"

    with pytest.raises(WiringError, match=r"the package email\.parley_over_http is missing"):
        Nested().client("C", None, ASKED)


@pytest.mark.parametrize("line", ["import email.nowhere", "import chatstack.nowhere"])
def test_a_fault_in_what_is_installed_is_not_taken_for_a_missing_package(folder: Path, line: str) -> None:
    (folder / "parley_over_http.py").write_text(line)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        ParleySdk().client("C", None, ASKED)
