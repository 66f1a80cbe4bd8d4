"""Windows: what was learnt, stated, told by the API, or published, in this order; and nobody is asked twice."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from chatstack.client.protocol import ChatClient, CountsTokens, ProviderInfo, TellsWindow
from chatstack.client.stream import ChatStream
from chatstack.errors import AuthenticationError, RateLimitError
from chatstack.testing import ScriptedClient
from chatstack.tokens.windows import Windows, window_of
from chatstack.values.requests import ChatRequest

HERE = ProviderInfo(name="openai", model="house-model", server_address="127.0.0.1", server_port=8000)
PUBLISHED = "gpt-4o"


class Telling(ScriptedClient):
    """A provider whose API tells windows, and that counts how often it is asked."""

    def __init__(
        self, answer: Callable[[str], Awaitable[Any]] | object = 4_096, *, info: ProviderInfo | None = HERE
    ) -> None:
        super().__init__(info=info)
        self.answer = answer
        self.asked: list[str] = []

    async def window_tokens(self, model: str = "") -> int | None:
        self.asked.append(model)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return await self.answer(model) if callable(self.answer) else self.answer  # type: ignore[return-value]


class Layer:
    """A layer of somebody's: nothing but a client around another one."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        raise NotImplementedError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def of(windows: Windows, client: ChatClient, model: str | None = None) -> int | None:
    return asyncio.run(windows.of(client, model))


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until that is so."""
    for step in range(30_000):
        if condition():
            return
        await asyncio.sleep(0 if step < 100 else 0.01)
    raise AssertionError("it never was")


def test_what_the_api_tells_is_the_window() -> None:
    provider = Telling(4_096)
    assert of(Windows(), Layer(Layer(provider))) == 4_096
    assert provider.asked == ["house-model"]


def test_what_is_stated_is_not_asked_for() -> None:
    provider = Telling(info=ProviderInfo(name="openai", model="house-model", window_tokens=9_000))
    windows = Windows()
    assert (of(windows, provider), windows.known(provider), provider.asked) == (9_000, 9_000, [])


def test_what_is_stated_is_about_the_providers_own_model_only() -> None:
    provider = Telling(4_096, info=ProviderInfo(name="openai", model="house-model", window_tokens=9_000))
    assert of(Windows(), provider, "house-model") == 9_000
    assert of(Windows(), provider, "another-model") == 4_096
    assert provider.asked == ["another-model"]


def test_what_a_refusal_told_beats_all() -> None:
    provider = Telling(4_096, info=ProviderInfo(name="openai", model=PUBLISHED, window_tokens=9_000))
    windows = Windows()
    windows.learn(provider, None, 2_000)
    assert (of(windows, provider), windows.known(Layer(provider), PUBLISHED)) == (2_000, 2_000)
    windows.learn(provider, PUBLISHED, 3_000)
    assert of(windows, provider) == 3_000
    windows.learn(provider, "unstated-model", 4_000)
    assert of(windows, provider, "unstated-model") == 4_000
    assert provider.asked == []


@pytest.mark.parametrize("limit", [0, -1, True, None, "8000", 8e3])
def test_a_limit_that_is_none_is_not_learnt(limit: Any) -> None:
    windows = Windows()
    windows.learn(Telling(), None, limit)
    assert windows.known(Telling()) is None


def test_what_was_learnt_is_about_one_model_of_one_server() -> None:
    windows = Windows()
    windows.learn(ScriptedClient(info=HERE), None, 2_000)
    others = [
        ProviderInfo(name="anthropic", model="house-model", server_address="127.0.0.1", server_port=8000),
        ProviderInfo(name="openai", model="house-model", server_address="127.0.0.2", server_port=8000),
        ProviderInfo(name="openai", model="house-model", server_address="127.0.0.1", server_port=8001),
        ProviderInfo(name="openai", model="other-model", server_address="127.0.0.1", server_port=8000),
    ]
    assert [windows.known(ScriptedClient(info=info)) for info in others] == [None] * 4
    assert windows.known(ScriptedClient(info=HERE), "other-model") is None
    assert windows.known(ScriptedClient(info=HERE), "house-model") == 2_000


def test_what_was_refused_and_taken_without_a_limit_bounds_the_window_for_an_hour() -> None:
    seconds = [0.0]
    windows, provider = Windows(clock=lambda: seconds[0]), ScriptedClient(info=HERE)
    windows.bound(provider, None, refused=10_000, taken=4_000)
    assert (windows.known(provider), windows.learnt(provider)) == (7_500, 7_500)
    windows.bound(provider, None, refused=20_000, taken=9_000)
    assert windows.learnt(provider) == 9_000  # the smallest that was refused, and the largest that was taken
    windows.bound(provider, None, refused=8_000, taken=3_000)
    assert windows.learnt(provider) == 6_000  # they contradict each other: the latest count
    windows.bound(provider, None, refused=2_000, taken=3_000)
    assert windows.learnt(provider) == 6_000
    seconds[0] = 3_599.0
    assert windows.learnt(provider) == 6_000
    seconds[0] = 3_600.0
    assert (windows.known(provider), windows.learnt(provider)) == (None, None)
    windows.bound(provider, None, refused=10_000, taken=4_000)
    windows.learn(provider, None, 12_000)
    assert windows.learnt(provider) == 12_000


def test_bounds_make_a_known_window_smaller_unless_it_contradicts_them_by_far() -> None:
    windows, provider = Windows(), ScriptedClient(info=msgspec.structs.replace(HERE, window_tokens=40_000))
    windows.bound(provider, None, refused=20_000, taken=15_500)
    assert (of(windows, provider), windows.learnt(provider)) == (15_500, 15_500)
    windows.bound(provider, None, refused=9_999, taken=0)  # its size was not what it was estimated at
    assert (of(windows, provider), windows.learnt(provider)) == (40_000, None)


def test_providers_that_say_nothing_are_told_apart_by_their_class() -> None:
    class One(Layer): ...

    class Two(Layer): ...

    windows = Windows()
    windows.learn(Layer(One(None)), "m", 2_000)
    assert windows.known(One(None), "m") == 2_000
    assert (windows.known(Two(None), "m"), windows.known(One(None), "n"), windows.known(One(None))) == (None,) * 3


@pytest.mark.parametrize("answer", [None, OSError(), TimeoutError(), ValueError(), 0, -1, True, "4096", 4e3, [4_096]])
def test_where_the_api_tells_nothing_the_published_table_counts(answer: object) -> None:
    """Nor is a failure ever raised."""
    provider = Telling(answer, info=ProviderInfo(name="openai", model=PUBLISHED))
    windows = Windows()
    assert of(windows, provider) == window_of(PUBLISHED) == 128_000
    assert of(windows, provider) == 128_000
    assert provider.asked == [PUBLISHED]


def test_the_published_window_is_that_of_the_provider_that_serves_the_model() -> None:
    """By its name alone nobody would know it."""
    provider = Telling(None, info=ProviderInfo(name="openai", model="sonar", server_address="api.perplexity.ai"))
    assert window_of("sonar") is None
    assert of(Windows(), provider) == Windows().known(provider) == 128_000


@pytest.mark.parametrize(
    ("model", "window"),
    [("gpt-5-mini", 272_000), ("openai/gpt-5.2", 272_000), ("gpt-5.4", 922_000), ("gpt-5.3", 128_000)],
)
def test_of_gpt_5_it_is_what_openai_takes_as_input(model: str, window: int) -> None:
    """The published windows count 128,000 tokens of output, beyond which every request is refused."""
    assert window_of(model) == window


def test_nobody_knows_the_window_of_a_model_that_is_nowhere() -> None:
    assert of(Windows(), ScriptedClient()) is None
    assert of(Windows(), Layer(None)) is None


def test_a_number_under_that_name_is_no_api() -> None:
    class Numbered(Layer):
        window_tokens = 12

    provider = Telling(4_096)
    assert of(Windows(), Numbered(provider)) == 4_096


def test_an_api_that_takes_too_long_is_given_up() -> None:
    async def never(model: str) -> int:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    provider = Telling(never)
    windows = Windows(ask_seconds=0.01)
    assert (of(windows, provider), of(windows, provider), len(provider.asked)) == (None, None, 1)


def test_the_api_is_asked_once_and_again_five_minutes_after_it_told_nothing() -> None:
    clock, provider = Clock(), Telling(None)
    windows = Windows(clock=clock)
    assert (of(windows, provider), of(windows, provider), len(provider.asked)) == (None, None, 1)
    clock.now = 299.0
    assert (of(windows, provider), len(provider.asked)) == (None, 1)
    clock.now, provider.answer = 300.0, 4_096
    assert (windows.known(provider), len(provider.asked)) == (None, 1)
    assert (of(windows, provider), len(provider.asked)) == (4_096, 2)
    clock.now, provider.answer = 1e9, 8_192
    assert (of(windows, provider), windows.known(provider), len(provider.asked)) == (4_096, 4_096, 2)


@pytest.mark.parametrize("error", [AuthenticationError("no"), RateLimitError("not now")])
def test_a_key_that_may_not_ask_says_nothing_of_the_window(error: Exception) -> None:
    clock, provider = Clock(), Telling(error)
    windows = Windows(clock=clock)
    assert (of(windows, provider), of(windows, provider), len(provider.asked)) == (None, None, 1)
    clock.now, provider.answer = 30.0, 4_096
    assert (of(windows, provider), len(provider.asked)) == (4_096, 2)


def test_what_is_told_to_one_caller_of_a_provider_is_not_told_to_another() -> None:
    provider, windows = Telling(RuntimeError("not with this key")), Windows()
    one, other = (msgspec.structs.replace(HERE, scope=each) for each in ("one", "other"))
    provider.info = one
    assert of(windows, provider) is None
    provider.info, provider.answer = other, 4_096
    assert of(windows, provider) == 4_096
    windows.learn(provider, None, 2_048)
    windows.bound(provider, "more", refused=1_000, taken=100)
    assert (windows.learnt(provider), windows.learnt(provider, "more")) == (2_048, 750)
    provider.info = one
    assert (windows.known(provider), windows.learnt(provider), windows.learnt(provider, "more")) == (None, None, None)


def test_another_client_of_the_same_provider_need_not_ask_again() -> None:
    first, second = Telling(4_096), Telling(8_192)
    windows = Windows()
    assert (of(windows, first), of(windows, second), second.asked) == (4_096, 4_096, [])


def test_those_who_ask_together_share_one_request() -> None:
    async def asked() -> None:
        told = asyncio.get_running_loop().create_future()
        provider = Telling(lambda model: told)
        windows = Windows()
        askers = [asyncio.create_task(windows.of(provider)) for _ in range(50)]
        other = asyncio.create_task(windows.of(provider, "other-model"))
        await until(lambda: len(provider.asked) == 2)
        told.set_result(4_096)
        assert await asyncio.gather(*askers, other) == [4_096] * 51
        assert provider.asked == ["house-model", "other-model"]

    asyncio.run(asked())


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_who_gives_up_leaves_no_task_behind_and_fails_nobody_else(cancelled: int) -> None:
    """Whether it is the one that asks or one that waits."""

    async def asked() -> None:
        told = asyncio.Event()

        async def answer(model: str) -> int:
            await told.wait()
            return 4_096

        provider = Telling(answer)
        windows = Windows()
        askers = [asyncio.create_task(windows.of(provider)) for _ in range(3)]
        await until(lambda: provider.asked)
        askers[cancelled].cancel()
        with pytest.raises(asyncio.CancelledError):
            await askers.pop(cancelled)
        assert asyncio.all_tasks() == {asyncio.current_task(), *askers}
        await asyncio.sleep(0)
        told.set()
        assert await asyncio.gather(*askers) == [4_096, 4_096]
        assert len(provider.asked) == (2 if cancelled == 0 else 1)

    asyncio.run(asked())


def test_when_all_give_up_nothing_is_left_and_the_next_one_asks_anew() -> None:
    async def asked() -> None:
        never = asyncio.Event()

        async def silent(model: str) -> int:
            await never.wait()
            return 1

        provider = Telling(silent)
        windows = Windows()
        askers = [asyncio.create_task(windows.of(provider)) for _ in range(3)]
        await until(lambda: provider.asked)
        for asker in askers:
            asker.cancel()
        await asyncio.gather(*askers, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        provider.answer = 4_096
        assert await windows.of(provider) == 4_096

    asyncio.run(asked())


def test_a_known_window_is_told_without_waiting_or_a_task() -> None:
    windows, provider = Windows(), Telling(4_096)
    assert of(windows, provider) == 4_096
    with pytest.raises(StopIteration) as ended:
        windows.of(provider).send(None)  # no loop runs: whatever waits, or makes a task, fails here
    assert ended.value.value == 4_096


def test_every_thread_with_a_loop_of_its_own_gets_the_answer() -> None:
    """None waits for the loop of another, which may never run again."""
    all_ask = threading.Barrier(4)

    async def answer(model: str) -> int:
        await asyncio.to_thread(all_ask.wait, 5)
        return 4_096

    provider, windows, found = Telling(answer), Windows(), list[int | None]()
    threads = [threading.Thread(target=lambda: found.append(of(windows, provider)), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == [4_096] * 4


def test_nothing_is_kept_of_a_loop_that_has_ended() -> None:
    windows = Windows()

    async def asked() -> weakref.ref[asyncio.AbstractEventLoop]:
        await windows.of(Telling(4_096))
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(asked())
    gc.collect()
    assert loop() is None
    assert repr(windows) == "Windows(0 learnt, 1 told)"


def test_what_is_remembered_is_bounded_oldest_out_first() -> None:
    windows, provider = Windows(), Telling(4_096)
    windows.learn(provider, "first", 2_000)
    windows.learn(provider, "second", 2_000)
    for number in range(998):
        windows.learn(provider, f"model-{number}", 2_000)
    windows.learn(provider, "first", 2_000)
    windows.learn(provider, "last", 2_000)
    assert [windows.known(provider, name) for name in ("first", "second", "last")] == [2_000, None, 2_000]
    assert repr(windows) == "Windows(1000 learnt, 0 told)"


def test_a_stack_shares_one_without_being_told_how_to_make_it() -> None:
    assert Windows.shared_by_stack
    assert repr(Windows()) == "Windows(0 learnt, 0 told)"


def test_what_a_provider_can_do_shows_in_its_methods() -> None:
    class Counting(Layer):
        async def count_tokens(self, request: ChatRequest, /) -> int | None:
            return 3

    assert isinstance(Telling(), TellsWindow)
    assert isinstance(Counting(None), CountsTokens)
    assert not isinstance(ScriptedClient(), TellsWindow | CountsTokens)


def test_a_known_model_has_its_window() -> None:
    assert window_of("gpt-4o") == 128_000


def test_a_vendor_before_a_slash_is_understood() -> None:
    assert window_of("openai/gpt-4o") == window_of("gpt-4o")


@pytest.mark.parametrize("model", ["", "/", "no-such-model", "vendor/no-such-model"])
def test_an_unknown_model_has_none(model: str) -> None:
    assert window_of(model) is None


def test_nothing_is_known_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)

    assert window_of.__wrapped__("gpt-4o") is None
