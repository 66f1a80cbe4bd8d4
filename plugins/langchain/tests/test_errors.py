"""What a provider refuses, as LangChain's errors."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core import exceptions
from langchain_core.messages import HumanMessage

from chatstack import (
    AuthenticationError,
    BrokenStreamError,
    ContextOverflowError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
)
from chatstack.testing import ScriptedClient
from chatstack_langchain import ChatStackModel

needs_theirs = pytest.mark.skipif(not hasattr(exceptions, "ModelError"), reason="langchain-core 1.6 has these errors")
TOLD = [
    (AuthenticationError("no key"), "ModelAuthenticationError"),
    (AuthenticationError("not yours", status=403), "ModelPermissionDeniedError"),
    (RequestRefusedError("bad", status=400), "ModelInvalidRequestError"),
    (RequestRefusedError("no such model", status=404), "ModelNotFoundError"),
    (ContextOverflowError(9, 5), "ContextOverflowError"),
    (RateLimitError("slow down", retry_after_seconds=3.0), "ModelRateLimitError"),
    (ProviderTimeoutError("late"), "ModelTimeoutError"),
    (ProviderConnectionError("gone"), "ModelConnectionError"),
    (ServerError("down", status=500), "ModelAPIError"),
]
AGAIN = (RateLimitError, ProviderTimeoutError, ProviderConnectionError, ServerError)


def raised(error: ProviderError, *, streamed: bool = False) -> Exception:
    model = ChatStackModel(client=ScriptedClient([error]))
    with pytest.raises(ProviderError) as found:
        list(model.stream("hi")) if streamed else model.invoke("hi")
    return found.value


@needs_theirs
@pytest.mark.parametrize(("error", "name"), TOLD)
def test_an_error_is_of_both_streamed_or_not_and_pickled(error: ProviderError, name: str) -> None:
    found = raised(error)
    for each in (found, raised(error, streamed=True), pickle.loads(pickle.dumps(found))):
        assert isinstance(each, type(error))
        assert isinstance(each, getattr(exceptions, name))
        assert (type(each).__name__, each.args, vars(each)) == (type(error).__name__, error.args, vars(error))


def test_its_cause_stays_and_an_error_that_langchain_has_no_name_for() -> None:
    error = AuthenticationError("no key")
    error.__cause__ = KeyError("what the SDK said")
    assert raised(error).__cause__ is error.__cause__
    broken = BrokenStreamError("cut")
    assert raised(broken) is broken


@needs_theirs
@pytest.mark.parametrize("error", [error for error, _ in TOLD])
@pytest.mark.parametrize("is_async", [True, False])
def test_langchains_retries_ask_again_only_where_that_may_help(error: ProviderError, is_async: bool) -> None:
    provider = ScriptedClient([error, "fine"])
    layer: Any = ModelRetryMiddleware(initial_delay=0.0)
    agent: Any = create_agent(ChatStackModel(client=provider), middleware=[layer])
    given = {"messages": [HumanMessage("hi")]}

    def ask() -> Any:
        return asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)

    if isinstance(error, AGAIN):
        assert ask()["messages"][-1].text == "fine"
    else:
        with pytest.raises(type(error)):
            ask()
    assert len(provider.requests) == (2 if isinstance(error, AGAIN) else 1)
