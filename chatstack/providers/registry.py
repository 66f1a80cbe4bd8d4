"""The providers of this package, in one table that configs, the demo and the tests read.

Nothing is imported for it; ``load`` imports the client. The SDK is imported when a client is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from chatstack.providers.sdk import SdkClient
    from chatstack.providers.sdk_provider import SdkProvider


class ProviderEntry(NamedTuple):
    """The place of a provider's client, and its names.

    ``sdk`` is the module that has to be installed for it, its SDK or an HTTP library, and ``extra`` the extra of ours
    that installs it. ``provider`` is its GenAI name, which is on spans, errors and items; ``wire`` is the key of its
    fields in ``extra_json``, ``converters`` the ending of the names ``from_...`` and ``to_...``.
    """

    module: str
    class_name: str
    sdk: str
    extra: str
    provider: str
    wire: str
    converters: str

    def load(self) -> type[SdkProvider[SdkClient]]:
        """Return the class of the client. Imports its module, but not the SDK."""
        return cast("type[SdkProvider[SdkClient]]", getattr(importlib.import_module(self.module), self.class_name))


PROVIDERS: Final[Mapping[str, ProviderEntry]] = MappingProxyType(
    {
        "anthropic": ProviderEntry(
            module="chatstack.providers.anthropic",
            class_name="AnthropicChatClient",
            sdk="anthropic",
            extra="anthropic",
            provider="anthropic",
            wire="anthropic",
            converters="anthropic",
        ),
        "openai": ProviderEntry(
            module="chatstack.providers.openai",
            class_name="OpenAIChatClient",
            sdk="openai",
            extra="openai",
            provider="openai",
            wire="openai-chat",
            converters="openai_chat",
        ),
        "openai-responses": ProviderEntry(
            module="chatstack.providers.openai",
            class_name="OpenAIResponsesClient",
            sdk="openai",
            extra="openai",
            provider="openai",
            wire="openai-responses",
            converters="openai_responses",
        ),
    }
)
"""Providers by their names in a config."""
