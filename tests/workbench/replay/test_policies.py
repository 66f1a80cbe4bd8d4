"""The built-in policies, by name: what each sends of small conversations; and those from files beside them."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatstack import ContextWindowGuard, InputError, Message, ToolCall, find
from chatstack.layers.summarizing import SummaryClient
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import ScriptedClient
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.policies import BUILT_IN, policies_for
from chatstack.workbench.replay.recorder import EditLog, Recorder
from chatstack.workbench.replay.summaries import StandInWriter
from tests.plugin_fixtures import Shop
from tests.plugin_fixtures import shop as shop  # a fixture

RULE, TASK = Message.system("Be brief."), Message.user("Find the fault.")
CLEARED = "[cleared]"


def rounds(count: int, words: int = 40, first: int = 10) -> list[Message]:
    """Calls with their results, all of the same size and under one id."""
    found: list[Message] = []
    for number in range(first, first + count):
        found += [
            Message.assistant(ToolCall("a", "look", f'{{"at": "src/part_{number}.py"}}')),
            Message.tool("a", f"helper_{number} is here " * words, name="look"),
        ]
    return found


def talk(count: int, words: int = 40) -> list[Message]:
    return [RULE, TASK, *rounds(count, words)]


def size_of(messages: Sequence[Message]) -> int:
    return sum(map(WireCounter.best().count_message, messages))


def sent_by(name: str, ceiling: int, *histories: Sequence[Message]) -> tuple[list[list[Message]], int]:
    """What the policy of that name sends of these histories, one call after the other, and how many edits it makes."""
    (policy,) = policies_for([], [name])
    model, telemetry = Recorder(ceiling), EditLog()
    services: dict[type, object] = {Telemetry: telemetry}
    client = policy.stack(ceiling, model).build(services.__getitem__)
    sent: list[list[Message]] = []

    async def ask() -> None:
        for history in histories:
            model.expect(Message.assistant("fine"))
            await client.get_response(history, conversation_id="one")
            sent.append(list(model.requests[-1].messages))

    asyncio.run(ask())
    return sent, len(telemetry.edits)


def outputs(messages: Sequence[Message]) -> list[str]:
    return [result.text for message in messages for result in message.results]


def test_all_built_in_policies_are_there_unless_some_are_named() -> None:
    names = [policy.name for policy in BUILT_IN]

    assert [policy.name for policy in policies_for([])] == names
    assert names == ["nothing", "guard", "sliding-window", "rolling-masking", "batch-clearing", "recommended"]
    assert [policy.name for policy in policies_for([], ["guard", "nothing", "guard"])] == ["guard", "nothing"]


def test_a_name_that_no_policy_has_is_told_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"^--policy 'gard': no such policy; there are nothing, guard, sliding-window"):
        policies_for([], ["gard"])


def test_every_built_in_policy_can_be_built_for_any_ceiling() -> None:
    for policy in BUILT_IN:
        for ceiling in (1, 128_000):
            assert policy.stack(ceiling, Recorder(ceiling)).build()


@pytest.mark.parametrize("name", ["nothing", "guard", "sliding-window", "recommended"])
def test_what_just_fits_the_ceiling_is_sent_as_it_is(name: str) -> None:
    """To the token: they count by what they are measured by."""
    history = talk(8)

    assert sent_by(name, size_of(history), history) == ([history], 0)


@pytest.mark.parametrize("name", ["guard", "sliding-window", "recommended"])
def test_one_token_more_than_the_ceiling_is_cut_to_fit(name: str) -> None:
    history = talk(8)

    (sent,), edits = sent_by(name, size_of(history) - 1, history)

    assert edits == 1
    assert size_of(sent) <= size_of(history) - 1
    assert sent[:2] == [RULE, TASK]
    assert sent[-2:] == history[-2:]


def test_nothing_sends_everything_whatever_the_ceiling() -> None:
    history = talk(8)

    assert sent_by("nothing", 1, history[:6], history) == ([history[:6], history], 0)


def test_the_guard_prunes_at_the_ceiling() -> None:
    (guard,) = policies_for([], ["guard"])

    built = find(guard.stack(1_234, Recorder(1_234)).build(), ContextWindowGuard)

    assert built is not None
    assert (built.max_context_tokens, built.prune_on_overflow) == (1_234, True)


def test_the_guard_removes_the_oldest_units_and_the_same_ones_again() -> None:
    history = talk(10)
    ceiling = size_of(history[:-2]) - 1

    (first, second), edits = sent_by("guard", ceiling, history[:-2], history)

    gone = len(history[:-2]) - len(first)
    assert first == [RULE, TASK, *history[2 + gone : -2]]
    assert gone > 2  # down to a low-water mark
    assert second == [*first, *history[-2:]]
    assert edits == 1


def test_the_sliding_window_keeps_what_fits_of_the_newest_and_decides_anew() -> None:
    history = talk(10)
    ceiling = size_of(history[:10])

    (first, second), edits = sent_by("sliding-window", ceiling, history[:12], history[:14])

    assert first == [RULE, TASK, *history[4:12]]
    assert second == [RULE, TASK, *history[6:14]]
    assert edits == 2


def test_rolling_masking_masks_all_but_the_ten_newest_whatever_the_ceiling() -> None:
    history = talk(12)

    (few, first, second), edits = sent_by("rolling-masking", 1_000_000, history[:22], history[:24], history)

    assert few == history[:22]
    assert outputs(first) == [CLEARED, *outputs(history)[1:11]]
    assert outputs(second) == [CLEARED, CLEARED, *outputs(history)[2:]]
    assert edits == 2


def test_batch_clearing_clears_all_but_three_at_the_ceiling_and_remembers() -> None:
    history = talk(8)
    ceiling = size_of(history[:-2])

    (before, first, second), edits = sent_by("batch-clearing", ceiling, history[:-4], history[:-2], history)

    assert before == history[:-4]
    assert outputs(first) == [CLEARED] * 4 + outputs(history)[4:7]
    assert second == [*first, *history[-2:]]
    assert edits == 1


def test_batch_clearing_may_stay_over_the_ceiling() -> None:
    """It drops nothing: a figure of the comparison, and no error."""
    history = [*talk(2), Message.user("go on " * 200)]

    (sent,), edits = sent_by("batch-clearing", 100, history)

    assert (sent, edits) == (history, 0)


def test_recommended_goes_down_below_a_half_in_one_edit_and_remembers() -> None:
    """It clears what is old and drops what tells least; the newest units stay as they are."""
    history = talk(22)
    ceiling = size_of(history[:-2]) - 1

    (first, second), edits = sent_by("recommended", ceiling, history[:-2], history)

    assert edits == 1
    assert size_of(first) <= 0.44 * ceiling
    assert first[:2] == [RULE, TASK]
    assert first[-2:] == history[-4:-2]
    assert second == [*first, *history[-2:]]


def test_recommended_leaves_the_names_of_what_is_gone() -> None:
    """In the place of one cleared result, in a tenth of the ceiling; those still in sight are not listed."""
    history = talk(30)

    (sent,), _ = sent_by("recommended", size_of(history) - 1, history)

    (listing,) = [text for text in outputs(sent) if "Words in what was left out" in text]
    names = [f"helper_{number}" for number in range(10, 40)]
    left = [name for name in names if any(name in text for text in outputs(sent) if text is not listing)]
    assert 0 < len(left) < 10
    listed = [name for name in names if name in listing]
    assert not set(listed).intersection(left)
    assert len(listed) >= 0.9 * (len(names) - len(left))
    assert WireCounter.best().count_text(listing) <= 0.09 * size_of(history)


def test_recommended_lists_no_more_than_a_tenth_of_the_ceiling() -> None:
    history = talk(200, words=5)

    (sent,), _ = sent_by("recommended", size_of(history) - 1, history)

    (listing,) = [text for text in outputs(sent) if "Words in what was left out" in text]
    assert 0.07 * size_of(history) <= WireCounter.best().count_text(listing) <= 0.09 * size_of(history)
    assert size_of(sent) <= 0.62 * size_of(history)  # it was edited on the way, and has grown since


def test_recommended_clears_before_it_drops() -> None:
    """Where clearing alone comes down to the target, every call stays."""
    history = [RULE, TASK, *rounds(12, words=40), *rounds(1, words=10, first=50)]

    (sent,), edits = sent_by("recommended", size_of(history) - 1, history)

    assert edits == 1
    assert [message.calls for message in sent] == [message.calls for message in history]
    assert all(text.startswith(CLEARED) for text in outputs(sent)[:-1])
    assert sent[-1] is history[-1]


def test_recommended_takes_the_middle_out_of_a_new_result_that_is_too_large() -> None:
    """Rather than push out all the rest, or send more than fits."""
    history = [*talk(3), *rounds(1, words=2_000, first=90)]
    ceiling = size_of(history) // 2

    (sent,), _ = sent_by("recommended", ceiling, history)

    new = outputs(history)[-1]
    assert size_of(sent) <= ceiling
    assert outputs(sent)[-1][:20] == new[:20]
    assert outputs(sent)[-1][-20:] == new[-20:]
    assert "bytes left out" in outputs(sent)[-1]


@pytest.mark.parametrize(("ceiling", "most"), [(3_000, 1_000), (8_000, 2_000), (128_000, 4_000)])
def test_recommended_bounds_new_results_by_a_share_of_the_ceiling(ceiling: int, most: int) -> None:
    history = [RULE, TASK, *rounds(1, words=20_000)]
    assert 0.9 * most < len(outputs(sent_by("recommended", ceiling, history)[0][0])[0]) <= most


def test_ours_is_what_recommended_was_called() -> None:
    assert policies_for([], ["ours", "recommended", "nothing"]) == policies_for([], ["recommended", "nothing"])


def test_the_sizes_of_recommended_are_shares_of_the_ceiling() -> None:
    """Of a conversation with more rounds, at a ceiling that is as much higher, the same share is left."""
    shares: list[float] = []
    for count in (15, 40):
        history = talk(count, words=10)
        (sent,), _ = sent_by("recommended", size_of(history) - 1, history)
        shares.append(size_of(sent) / size_of(history))

    assert shares[1] == pytest.approx(shares[0], abs=0.05)


def test_a_pipeline_called_like_a_built_in_policy_keeps_its_path(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    path.write_text("{}")

    assert [policy.name for policy in policies_for([path], ["nothing"])] == ["nothing", str(path)]
    assert policies_for([path])[-1].name == str(path)


@pytest.mark.parametrize("layer", ["Summarizer", "ContextWindow"])
def test_a_pipeline_that_has_summaries_written_gets_them_from_the_replay(layer: str, tmp_path: Path) -> None:
    """And from nobody else, whom it may name; without one, its model is asked, as everywhere."""
    file = tmp_path / "folded.json"
    named = {"use": "openai", "model": "gpt-5-mini"}
    file.write_text(json.dumps({"layers": [{"use": layer, "max_tokens": 500, "summary_client": named}]}))
    (policy,) = [each for each in policies_for([file]) if each.name == "folded"]
    model, writer = ScriptedClient(["fine"]), ScriptedClient(["all that was said"])
    services: dict[type, object] = {SummaryClient: writer}

    client = policy.stack(1_000, model).build(services.__getitem__)
    asyncio.run(client.get_response(talk(8)))

    assert len(writer.requests) == len(model.requests) == 1
    assert any("all that was said" in message.text for message in model.requests[0].messages)


def test_a_policy_says_in_a_few_words_what_it_does(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")

    told = [policy.about for policy in policies_for([path])]

    assert all(told)
    assert told[-1] == "the stack in mine.json"


def test_every_policy_can_go_to_another_process(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")
    policies = policies_for([path])

    assert pickle.loads(pickle.dumps(policies)) == policies


def test_two_pipelines_of_one_name_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")

    names = [policy.name for policy in policies_for([path, path, path, path], ["nothing"])]

    assert names == ["nothing", "mine", str(path), f"{path}'", f"{path}''"]


WAITS = """
class Waits:
    kind = "plain"

    def __init__(self, inner):
        self.inner = inner

    async def send(self, request, /):
        raise AssertionError("a replay does not wait")
"""


def test_a_pipeline_is_replayed_without_its_plain_layers(shop: Shop, tmp_path: Path) -> None:
    """They change no message; a rate limiter among them would wait."""
    shop.install("acme", {"layers: Waits": "acme_waits:Waits"}, {"acme_waits": WAITS})
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"layers": ["Waits", {"use": "ContextWindowGuard", "max_context_tokens": 5_000}]}))

    *_, mine = policies_for([path])

    assert [layer.name for layer in mine.stack(1_000, Recorder(1_000)).layers] == ["ContextWindowGuard"]
    assert mine.left_out == ("Waits",)


def book_flight(number: str) -> str:
    """A tool that must not run in a replay."""
    raise AssertionError(f"{number} was booked")


def test_a_pipeline_is_replayed_without_its_tool_loop_its_budget_and_its_other_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each recorded call is one round, which has been answered: its tools ran when it was recorded."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "mine.json"
    layers = [
        {"use": "Budget", "name": "purse", "max_cost": 5},
        {"use": "FunctionInvoker", "tools": [f"{__name__}:book_flight"]},
        {"use": "ContextWindowGuard", "max_context_tokens": 5_000},
        {"use": "Fallback", "clients": [{"use": "openai", "model": "gpt-5-mini"}]},
    ]
    path.write_text(json.dumps({"layers": layers}))
    *_, mine = policies_for([path])
    model = Recorder(1_000)
    model.expect(Message.assistant(ToolCall("a", "book_flight", '{"number": "BA 1"}')))

    client = mine.stack(1_000, model).build()
    response = asyncio.run(client.get_response("Book it.", conversation_id="one"))

    assert [call.name for call in response.messages[-1].calls] == ["book_flight"]
    assert len(model.requests) == 1
    assert find(client, ContextWindowGuard) is not None
    assert mine.left_out == ("purse", "FunctionInvoker", "Fallback")
    assert mine.about == "the stack in mine.json, without its purse, FunctionInvoker, Fallback"


@pytest.mark.parametrize(
    ("layer", "left_out"),
    [
        ({"use": "ToolResultClearer", "native": "on"}, "native of ToolResultClearer"),
        ({"type": "ContextEditingMiddleware", "options": {"native": "on"}}, "native of ToolResultClearer"),
        ({"use": "Summarizer", "max_tokens": 60_000, "native": "on"}, "native of Summarizer"),
        ({"use": "Summarizer", "max_tokens": 500, "cache_aligned": True}, "cache_aligned of Summarizer"),
        ({"use": "ContextWindow", "max_tokens": 500, "cache_aligned": True}, "cache_aligned of ContextWindow"),
    ],
)
def test_what_a_layer_leaves_to_its_model_is_done_by_the_layer_in_a_replay(
    tmp_path: Path, layer: dict[str, object], left_out: str
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"provider": {"use": "anthropic", "model": "claude-sonnet-4-5"}, "layers": [layer]}))
    *_, mine = policies_for([path])
    writer = StandInWriter(WireCounter.best())

    client = mine.stack(1_000, Recorder(1_000)).build({SummaryClient: writer}.__getitem__)
    response = asyncio.run(client.get_response("Hello", conversation_id="one"))

    assert response.applied_edits == ()
    assert mine.left_out == (left_out,)
