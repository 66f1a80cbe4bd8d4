"""What a configuration says is something that singletons are made with, too."""

from __future__ import annotations

from typing import Any

from dependency_injector import containers, providers

from chatstack import ChatStack, ContextWindowGuard, find
from chatstack.di.dependency_injector import chat_client
from chatstack.testing import ScriptedClient


def make(limit: int) -> ChatStack:
    return ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=limit)


def container() -> Any:
    class App(containers.DeclarativeContainer):
        config = providers.Configuration()
        stack = providers.ThreadSafeSingleton(make, limit=config.limit)
        chat = chat_client(stack)

    app = App()
    app.config.from_dict({"limit": 100})
    return app


def limit_of(app: Any) -> object:
    guard = find(app.chat(), ContextWindowGuard)
    assert guard is not None
    return guard.max_context_tokens


def test_an_option_that_is_set_anew_reaches_the_next_client() -> None:
    app = container()
    assert limit_of(app) == 100
    app.config.from_dict({"limit": 200})
    assert limit_of(app) == 200


def test_an_option_that_is_overridden_in_a_test_is_back_behind_it() -> None:
    app = container()
    with app.config.limit.override(300):
        assert limit_of(app) == 300
    assert limit_of(app) == 100


def test_nothing_is_made_anew_while_no_option_changes() -> None:
    app = container()
    app.chat()
    stack = app.stack()
    app.chat()
    assert app.stack() is stack
