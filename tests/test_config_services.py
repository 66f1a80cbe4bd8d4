"""What a config describes beside layers: counters, the memory with its store, the client that writes summaries."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chatstack import (
    ContextMemory,
    ContextWindowGuard,
    Message,
    Summarizer,
    TableCounter,
    ToolCall,
    ToolResultClearer,
    WiringError,
    find,
)
from chatstack.config import recipes as config
from chatstack.config.recipes import from_config
from chatstack.providers.openai import OpenAIChatClient
from chatstack.stack.recipe import ChatStack
from chatstack.testing import ScriptedClient

GUARD: dict[str, object] = {"use": "ContextWindowGuard", "max_context_tokens": 900}


@pytest.fixture
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def guard_of(counter: object) -> ContextWindowGuard:
    built = from_config({"layers": [{**GUARD, "counter": counter}]}, ScriptedClient()).build()
    found = find(built, ContextWindowGuard)
    assert found is not None
    return found


def wrong(recipe: object) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(recipe, provider=ScriptedClient())  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("counter", "shown"),
    [
        ("chars", "CharCounter(chars_per_token=4)"),
        ({"use": "chars"}, "CharCounter(chars_per_token=4)"),
        ({"use": "chars", "chars_per_token": 3}, "CharCounter(chars_per_token=3)"),
        ("table", "TableCounter()"),
        ("tokenizer", "TokenizerCounter()"),
        ("estimating", "EstimatingCounter('generic')"),
        ({"use": "estimating", "dialect": "claude-4.5"}, "EstimatingCounter('claude-4.5')"),
        (None, "None"),
    ],
)
def test_a_counter_is_a_name_or_a_table(counter: object, shown: str) -> None:
    assert repr(guard_of(counter).counter) == shown


@pytest.mark.parametrize("name", sorted(config.COUNTERS))
def test_every_counter_that_can_be_named_counts(name: str) -> None:
    found = guard_of(name).counter
    assert found is not None
    assert found.count_text("four words of text") > 0


def test_a_counter_object_is_taken_as_it_is() -> None:
    counter = TableCounter()

    assert guard_of(counter).counter is counter


def test_layers_that_count_alike_share_one_counter_so_that_a_message_is_counted_once() -> None:
    layers = [
        {"use": "ToolResultClearer", "counter": "table"},
        {"use": "Truncate", "max_tokens": 5, "counter": "table"},
        {"use": "ClearThenDrop", "max_tokens": 5, "counter": {"use": "chars", "chars_per_token": 2}},
        {"use": "OldestFirst", "max_tokens": 5, "target_tokens": 3, "counter": {"use": "chars", "chars_per_token": 3}},
        {**GUARD, "counter": {"use": "table"}},
    ]
    built = from_config({"layers": layers}, provider=ScriptedClient()).build()

    clearer, truncate, two, three, guard = (each.counter for each in built.layers[:5])  # type: ignore[attr-defined]

    assert clearer is guard is truncate
    assert (repr(two), repr(three)) == ("CharCounter(chars_per_token=2)", "CharCounter(chars_per_token=3)")


def test_an_option_of_a_counter_is_checked_although_an_equal_one_is_there() -> None:
    """``True == 1``: what is looked up by equality alone would be found before it is checked."""
    layers = [
        {"use": "Truncate", "name": str(size), "counter": {"use": "chars", "chars_per_token": size}}
        for size in (1, 1.0, True)
    ]
    first, second = (each.options["counter"] for each in from_config({"layers": layers[:2]}, ScriptedClient()).layers)

    assert first is second
    assert wrong({"layers": layers}) == "config: layers[2].counter.chars_per_token: expected float, got bool: True"


@pytest.mark.parametrize(
    ("counter", "told"),
    [
        ("tabel", "config: layers[0].counter: 'tabel' is no counter; did you mean 'table'?"),
        ({"use": "tabel"}, "config: layers[0].counter.use: 'tabel' is no counter; did you mean 'table'?"),
        ({"chars_per_token": 3}, "config: layers[0].counter: has no 'use': what is it to be?"),
        (
            {"use": "chars", "char_per_token": 3},
            "config: layers[0].counter.char_per_token: unknown option of CharCounter; did you mean 'chars_per_token'?",
        ),
        (
            {"use": "chars", "chars_per_token": "3"},
            "config: layers[0].counter.chars_per_token: expected float, got str: '3'",
        ),
        (
            {"use": "chars", "chars_per_token": 0},
            "config: layers[0].counter.chars_per_token: expected a number > 0.0: 0.0",
        ),
        (
            {"use": "estimating", "dialect": "klingon"},
            "config: layers[0].counter.dialect: expected 'generic' | 'openai' | 'openai-reasoning' | ",
        ),
        (3, "config: layers[0].counter: wants an object that no config can hold, got 3; give it in code: "),
        ({"use": ["table"]}, "config: layers[0].counter.use: ['table'] is no counter; known: "),
    ],
)
def test_what_is_wrong_with_a_counter_is_told_with_its_place(counter: object, told: str) -> None:
    assert wrong({"layers": [{**GUARD, "counter": counter}]}).startswith(told)


def test_functions_and_services_cannot_be_written_in_a_config_and_it_says_where_they_go() -> None:
    assert wrong({"layers": [{"use": "FunctionInvoker", "name": "loop", "tools": ["os.system"]}]}) == (
        "config: layers[0].tools[0]: 'os.system' names no tool; write 'package.module:function'"
    )
    assert wrong({"layers": [{"use": "ProgressReporter", "on_progress": "print"}]}).startswith(
        "config: layers[0].on_progress: wants an object that no config can hold, got a str; "
    )
    assert wrong({"layers": [{**GUARD, "services": {}}]}).startswith("config: layers[0].services: wants an object ")
    assert wrong({"layers": [{**GUARD, "telemetry": {}}]}) == (
        "config: layers[0].telemetry: all layers of a stack share one telemetry; build the stack with a container that "
        "has it"
    )
    assert wrong({"layers": [{**GUARD, "memory": {"max_entries": 3}}]}) == (
        "config: layers[0].memory: all layers of a stack share one memory; put it at the top of the config, beside "
        "'layers'"
    )


def test_tools_are_added_in_code() -> None:
    def look(city: str) -> str:
        """Look."""
        return city

    stack = from_config({"layers": [{"use": "FunctionInvoker", "max_concurrency": 2}]}, ScriptedClient())

    built = stack.override("FunctionInvoker", tools=[look]).build()

    assert [each.name for each in built.layers[0].tools] == ["look"]  # type: ignore[attr-defined]
    assert built.layers[0].max_concurrency == 2  # type: ignore[attr-defined]


def test_objects_in_a_dict_from_code_are_taken_as_they_are() -> None:
    def look(city: str) -> str:
        """Look."""
        return city

    built = from_config({"layers": [{"use": "FunctionInvoker", "tools": [look]}]}, ScriptedClient()).build()

    assert [each.name for each in built.layers[0].tools] == ["look"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("with_key")
@pytest.mark.parametrize("layer", ["Summarizer", "ContextWindow"])
def test_the_client_that_writes_summaries_is_a_provider_table(layer: str) -> None:
    entry = {"use": layer, "max_tokens": 500, "summary_client": {"use": "openai", "model": "gpt-5-nano"}}

    stack = from_config({"layers": [entry]}, provider=ScriptedClient())

    writer = stack.layers[0].options["summary_client"]
    assert isinstance(writer, OpenAIChatClient)
    assert writer.model == "gpt-5-nano"
    stack.build()


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("openai", "config: layers[0].summary_client: expected a table, got text; write {use = 'openai'"),
        ({"use": "opena", "model": "m"}, "config: layers[0].summary_client.use: 'opena' is no provider; did you mean "),
        (
            {"use": "openai", "model": "m", "api_key": "sk-1"},
            "config: layers[0].summary_client: unknown key 'api_key'; a config holds no keys",
        ),
        ({"use": "openai"}, "config: layers[0].summary_client.model: expected the name of a model, got None"),
    ],
)
def test_what_is_wrong_with_it_is_told_with_its_place(section: object, told: str) -> None:
    entry = {"use": "Summarizer", "max_tokens": 500, "summary_client": section}

    assert wrong({"layers": [entry]}).startswith(told)


def test_a_missing_key_is_told_with_its_place_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(WiringError, match=r"^config: provider: no API key; set OPENAI_API_KEY"):
        from_config({"provider": {"use": "openai", "model": "m"}})


def test_a_client_object_is_taken_as_it_is() -> None:
    writer = ScriptedClient(["short"])
    entry = {"use": "Summarizer", "max_tokens": 500, "summary_client": writer}

    summarizer = find(from_config({"layers": [entry]}, provider=ScriptedClient()).build(), Summarizer)

    assert summarizer is not None
    assert summarizer.summary_client is writer


def long_conversation() -> list[Message]:
    history = [Message.user("Which way does the valve turn?")]
    for number in range(6):
        call = ToolCall(f"call-{number}", "read_page", "{}")
        history += [Message.assistant(call), Message.tool(call.id, f"page {number} " * 200, name="read_page")]
    return history


def test_the_memory_at_the_top_is_shared_by_the_layers_and_kept_in_its_store(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    recipe = {
        "memory": {"store": {"use": "sqlite", "path": str(path), "max_records": 50}, "scope": "tenant-7"},
        "layers": [
            {"use": "ToolResultClearer", "trigger": {"tokens": 500}, "keep": {"messages": 1}},
            {"use": "ContextWindowGuard", "max_context_tokens": 90_000},
        ],
    }

    async def one_process() -> tuple[Message, ...]:
        provider = ScriptedClient(["fine"])
        stack = from_config(recipe, provider=provider)
        async with stack.open() as client:
            clearer, guard = find(client, ToolResultClearer), find(client, ContextWindowGuard)
            assert clearer is not None
            assert guard is not None
            assert clearer.memory is guard.memory is stack.memory
            await client.get_response(long_conversation())
        assert isinstance(stack.memory, ContextMemory)
        await stack.memory.aclose()
        return provider.requests[0].messages

    first = asyncio.run(one_process())

    assert path.stat().st_size > 0
    assert asyncio.run(one_process()) == first
    assert any("[cleared]" in str(message.results) for message in first)


def test_a_memory_without_a_store_has_its_bounds_from_the_config() -> None:
    stack = from_config({"memory": {"max_entries": 7}}, provider=ScriptedClient())

    assert isinstance(stack.memory, ContextMemory)
    assert repr(stack) == repr(ChatStack(stack.provider, memory=stack.memory))


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ("sqlite", "config: memory: expected a table of names and values, got a str"),
        ({"stor": {}}, "config: memory.stor: unknown option of ContextMemory; did you mean 'store'?"),
        ({"max_entries": 0}, "config: memory.max_entries: expected an integer >= 1: 0"),
        ({"max_entries": "7"}, "config: memory.max_entries: expected int, got str: '7'"),
        ({"store": {"use": "sqlite", "path": "a"}}, "config: memory.scope: scope='' must name whose decisions "),
        (
            {"scope": "t"},
            "config: memory.scope: scope=... names whose decisions a store holds, and there is none: pass store=... ",
        ),
        ({"store": "sqlite", "scope": "t"}, "config: memory.store.path: is missing"),
        ({"store": {"use": "sqlit", "path": "a"}, "scope": "t"}, "config: memory.store.use: 'sqlit' is no store; did "),
        (
            {"store": {"use": "sqlite", "path": ":memory:"}, "scope": "t"},
            "config: memory.store.path: path must name a file; memory is shared with nobody",
        ),
        ({"store": {"use": "sqlite", "path": 3}, "scope": "t"}, "config: memory.store.path: expected str, got int: 3"),
        ({"clock": "time.time"}, "config: memory.clock: wants an object that no config can hold, got a str"),
        ({"clock": None}, "config: memory.clock: wants an object that no config can hold, got None"),
        (
            {"store": {"use": "sqlite", "path": "a"}, "scope": "t", "store_timeout_seconds": 0},
            "config: memory.store_timeout_seconds: expected a number > 0.0: 0.0",
        ),
    ],
)
def test_what_is_wrong_with_the_memory_is_told_with_its_place(memory: object, told: str) -> None:
    assert wrong({"memory": memory}).startswith(told)


def test_reading_a_config_opens_no_store(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "folder.sqlite"

    from_config({"memory": {"store": {"use": "sqlite", "path": str(path)}, "scope": "t"}}, provider=ScriptedClient())

    assert not path.parent.exists()


def test_whether_model_calls_are_traced_can_be_said() -> None:
    provider = ScriptedClient()

    untraced = from_config({"trace_model_calls": False}, provider)

    assert repr(untraced.build()) == repr(ChatStack(provider, trace_model_calls=False).build())
    assert wrong({"trace_model_calls": "no"}) == "config: trace_model_calls: expected bool, got str: 'no'"
