"""Estimates without a tokenizer: text against exact counts, and what providers wrap around it."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatstack import (
    ChatOptions,
    File,
    Image,
    Message,
    OutputSchema,
    ProviderItem,
    Reasoning,
    Text,
    TokenizerCounter,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    WiringError,
)
from chatstack.tokens.estimating import DialectName, EstimatingCounter
from chatstack.tokens.pieces import estimated_tokens
from chatstack.values.parts import Part

DIALECTS: tuple[DialectName, ...] = (
    "generic",
    "openai",
    "openai-reasoning",
    "claude-3",
    "claude-4",
    "claude-4.5",
    "claude-4.6",
    "claude-4.7",
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where to look"},
            "days": {"type": "integer", "default": 3},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    }
)
FORECAST = ToolDeclaration("get_forecast", "Look up the weather of the coming days.", SCHEMA)
CALLED = Message.assistant(ToolCall("a", "get_forecast", '{"city": "Oslo"}'))


def counter(dialect: DialectName) -> EstimatingCounter:
    return EstimatingCounter(dialect)


def seeded(size: int) -> bytes:
    return random.Random(4).randbytes(size)


# Which dialect


@pytest.mark.parametrize(
    ("provider", "model", "dialect"),
    [
        ("openai", "gpt-4o", "openai"),
        ("openai", "gpt-4.1-mini-2025-04-14", "openai"),
        ("openai", "chatgpt-4o-latest", "openai"),
        ("azure.ai.openai", "our-deployment", "openai"),
        ("openai", "", "openai"),
        ("openai", "gpt-5", "openai-reasoning"),
        ("openrouter", "openai/gpt-5-mini", "openai-reasoning"),
        ("openai", "o3-mini", "openai-reasoning"),
        ("groq", "gpt-oss-120b", "openai-reasoning"),
        ("openai", "meta-llama/llama-3.3-70b", "generic"),
        ("gcp.gemini", "gemini-3-pro", "generic"),
        ("", "", "generic"),
        ("anthropic", "claude-3-5-haiku-latest", "claude-3"),
        ("anthropic", "claude-3-7-sonnet-20250219", "claude-3"),
        ("anthropic", "claude-sonnet-4-20250514", "claude-4"),
        ("anthropic", "claude-sonnet-4-0", "claude-4"),
        ("anthropic", "claude-opus-4-1-20250805", "claude-4"),
        ("aws.bedrock", "us.anthropic.claude-sonnet-4-20250514-v1:0", "claude-4"),
        ("anthropic", "claude-sonnet-4-5-20250929", "claude-4.5"),
        ("openrouter", "anthropic/claude-haiku-4.5", "claude-4.5"),
        ("anthropic", "claude-opus-4-5", "claude-4.6"),
        ("anthropic", "claude-sonnet-4-6", "claude-4.6"),
        ("anthropic", "claude-opus-4-7", "claude-4.7"),
        ("anthropic", "claude-opus-5", "claude-4.7"),
        ("anthropic", "", "claude-4.7"),
    ],
)
def test_the_dialect_follows_from_provider_and_model(provider: str, model: str, dialect: str) -> None:
    assert EstimatingCounter.of(provider, model).dialect == dialect


def test_models_that_are_counted_alike_share_one_counter() -> None:
    assert EstimatingCounter.of("openai", "gpt-4o") is EstimatingCounter.of("azure.ai.openai", "gpt-4.1")
    assert EstimatingCounter.of("openai", "gpt-4o") is not EstimatingCounter.of("openai", "gpt-5")


def test_a_dialect_that_there_is_not_is_refused() -> None:
    with pytest.raises(WiringError, match=r"dialect='klingon' must be 'generic', 'openai'") as caught:
        EstimatingCounter("klingon")  # type: ignore[arg-type]
    assert caught.value.parameter == "dialect"


def test_the_repr_says_all_that_decides_a_count() -> None:
    assert repr(EstimatingCounter()) == "EstimatingCounter('generic')"
    assert {repr(counter(each)) for each in DIALECTS} == {f"EstimatingCounter({each!r})" for each in DIALECTS}
    assert EstimatingCounter.source == "estimated"


# Text, against exact counts by o200k

ENGLISH = (
    "The harbour master had kept a record of every ship since the spring of 1987, when the old lighthouse was turned "
    "into a museum. Nobody asked him to; he simply believed that somebody, some day, would want to know. Last week a "
    "student came up the stairs, out of breath, and asked whether the blue trawler had really returned that November."
)
CODE = """\
class RingBuffer:
    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} must be positive")
        self._items: list[object] = [None] * capacity
        self._next_index = 0

    def append(self, item: object) -> None:
        self._items[self._next_index % len(self._items)] = item
        self._next_index += 1
"""
JSON_LINES = "\n".join(
    json.dumps({"order_id": 48_000 + n, "status": "shipped", "lines": [{"sku": f"AX-{n}", "quantity": n % 7}]})
    for n in range(30)
)
LOG = "\n".join(
    f"2026-03-{1 + n % 28:02d}T08:{n:02d}:11.{n}Z INFO worker[{n}] fetched /api/v2/items/{n}" for n in range(40)
)
SAMPLES: dict[str, tuple[str, float, float]] = {
    "English": (ENGLISH, -0.1, 0.1),
    "code": (CODE, -0.1, 0.1),
    "JSON lines": (JSON_LINES, -0.1, 0.1),
    "log lines": (LOG, -0.15, 0.15),
    "indented JSON": (json.dumps(json.loads(SCHEMA), indent=2), -0.15, 0.15),
    "base64": (base64.b64encode(seeded(3_000)).decode(), -0.25, 0.1),
    "hex": (seeded(2_000).hex(), -0.1, 0.1),
    "digits": ("31415926535897932384626433832795028841971693993751" * 20, -0.02, 0.02),
    "numbers": (" ".join(f"{n * 7.31:.2f}" for n in range(300)), -0.05, 0.05),
    "Chinese": (
        "这座图书馆建于一九二三年，曾经是一家银行。现在每个星期六上午，志愿者都会给孩子们读故事。"
        "二楼的阅览室安静而明亮，窗外可以看到河边的老树。如果你想借书，只需要带上身份证办理一张卡。",
        -0.2,
        0.2,
    ),
    "Japanese": (
        "この図書館は百年前に建てられ、もともとは銀行でした。今では毎週土曜日の朝、ボランティアが子どもたちに物語を"
        "読んでいます。二階の閲覧室は静かで明るく、窓からは川沿いの古い木が見えます。",
        -0.2,
        0.2,
    ),
    "Korean": (
        "이 도서관은 백 년 전에 지어졌으며 원래는 은행이었습니다. 지금은 매주 토요일 아침마다 자원봉사자들이 "
        "아이들에게 이야기를 읽어 줍니다. 이층 열람실은 조용하고 밝으며 창밖으로 강가의 오래된 나무가 보입니다.",
        -0.2,
        0.2,
    ),
    "Russian": (
        "Эта библиотека была построена сто лет назад, и раньше здесь находился банк. Теперь каждую субботу утром "
        "добровольцы читают детям сказки. Читальный зал на втором этаже тихий и светлый, из окна видны старые деревья.",
        -0.2,
        0.25,
    ),
    "Arabic": (
        "بنيت هذه المكتبة قبل مئة عام وكانت في الأصل مصرفا. واليوم يقرأ المتطوعون القصص للأطفال صباح كل سبت، "
        "وقاعة القراءة في الطابق الثاني هادئة ومضيئة.",
        -0.2,
        0.3,
    ),
    "German": (
        "Diese Bücherei wurde vor hundert Jahren gebaut und war ursprünglich eine Bank. Heute lesen Freiwillige jeden "
        "Samstagmorgen den Kindern Geschichten vor. Der Lesesaal im zweiten Stock ist ruhig und hell.",
        -0.25,
        0.15,
    ),
    "Finnish": (
        "Tämä kirjasto rakennettiin sata vuotta sitten, ja se oli alun perin pankki. Nykyään vapaaehtoiset lukevat "
        "lapsille satuja joka lauantaiaamu.",
        -0.4,
        0.1,
    ),
    "emoji": (
        "Well done 🎉👏 all tests green ✅ shipping today 🚀🔥 see you at the party 🥳🍕 bring 👨‍👩‍👧 and 🐶",
        -0.25,
        0.25,
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_within_its_bounds_of_the_exact_count(name: str) -> None:
    pytest.importorskip("bpe_openai")
    text, low, high = SAMPLES[name]
    exact = TokenizerCounter().count_text(text)
    assert low <= counter("openai").count_text(text) / exact - 1 <= high


@pytest.mark.parametrize("blank", [" " * 500, "\n" * 300, "\t" * 200, (" " * 30 + "\n") * 10], ids=repr)
def test_runs_of_white_space_are_nearly_free(blank: str) -> None:
    assert 1 <= counter("openai").count_text(blank) <= 25


def test_indentation_costs_a_token_a_line_as_it_does() -> None:
    pytest.importorskip("bpe_openai")
    text = "\n".join(" " * (4 * (n % 5)) + "total += 1" for n in range(100))
    assert counter("openai").count_text(text) == pytest.approx(TokenizerCounter().count_text(text), rel=0.05)


def test_claude_counts_more_than_openai_and_the_newest_most() -> None:
    by_age = [counter(each).count_text(ENGLISH * 10) for each in ("openai", "claude-4", "claude-4.7")]
    assert by_age[1] == pytest.approx(1.12 * by_age[0], rel=0.01)
    assert by_age[2] == pytest.approx(1.42 * by_age[0], rel=0.01)


def test_an_empty_text_is_nothing() -> None:
    assert {counter(each).count_text("") for each in DIALECTS} == {0}


@given(st.text(st.characters(exclude_categories=())))
@example("𐌰𐍄𐍄𐌰 𐌿𐌽𐍃𐌰𐍂")
def test_any_text_is_counted_lone_surrogates_too(text: str) -> None:
    """No text is refused, less than nothing, or more than four tokens a character."""
    assert 0 <= counter("claude-4.7").count_text(text) <= 4 * len(text)


class Watched(str):
    """A text that knows how much of it was looked at."""

    __slots__ = ("seen",)

    def __getitem__(self, at: Any) -> str:
        part = super().__getitem__(at)
        self.seen = getattr(self, "seen", 0) + len(part)
        return part


def test_a_very_long_text_is_sampled_always_alike() -> None:
    text = Watched(ENGLISH * 10_000)
    first = estimated_tokens(text)
    assert text.seen == 100_000
    assert first == estimated_tokens(str(text))
    assert first == pytest.approx(10_000 * estimated_tokens(ENGLISH), rel=0.03)


def test_the_sample_sees_the_end_of_the_text_too() -> None:
    blank = " " * 3_000_000
    assert estimated_tokens(blank + "x y z " * 500_000) > 10 * estimated_tokens(blank + blank)


# Messages


@pytest.mark.parametrize(("dialect", "tokens"), [("openai", 3 + 4 + 1), ("openai-reasoning", 2 + 4 + 1)])
def test_one_word_to_openai_is_what_the_counting_rule_says(dialect: DialectName, tokens: int) -> None:
    asked = counter(dialect)
    assert asked.count_options(ChatOptions()) + asked.count_message(Message.user("hello")) == tokens


def test_a_system_message_frames_less_at_anthropic() -> None:
    claude = counter("claude-4.5")
    assert claude.count_message(Message.user("hello")) - claude.count_message(Message.system("hello")) == 2


def test_openai_names_a_result_after_its_call() -> None:
    unnamed, named = Message.tool("a", "fine"), Message.tool("a", "fine", name="get_forecast")
    assert counter("openai").count_message(named) > counter("openai").count_message(unnamed)
    assert counter("claude-4.5").count_message(named) == counter("claude-4.5").count_message(unnamed)


@pytest.mark.parametrize("dialect", ["openai", "claude-4.5"])
def test_calls_in_parallel_cost_more_than_one_after_the_other(dialect: DialectName) -> None:
    asked, call = counter(dialect), ToolCall("a", "get_forecast", "{}")
    together = asked.count_message(Message.assistant(call, call))
    assert together > 2 * asked.count_message(Message.assistant(call)) - asked.count_message(Message.assistant())


def test_what_rides_along_as_a_mark_is_free_and_what_is_longer_is_not() -> None:
    asked = counter("claude-4.5")
    plain = asked.count_message(Message.user("hello"))
    marked = Message("user", (Text("hello", '{"anthropic":{"cache_control":{"type":"ephemeral","ttl":"1h"}}}'),))
    cited = Message("user", (Text("hello", json.dumps({"anthropic": {"citations": [ENGLISH] * 10}})),))
    assert asked.count_message(marked) == plain
    assert asked.count_message(cited) > plain + 300


def test_thinking_of_a_turn_that_is_over_is_dropped_before_claude_46() -> None:
    thought = Reasoning(ENGLISH, item_json=json.dumps({"signature": "s" * 4_000}), provider="anthropic")
    over, within = Message.assistant(thought, "Done."), Message.assistant(thought, *CALLED.parts)
    dropping: tuple[DialectName, ...] = ("claude-3", "claude-4", "claude-4.5")
    keeping: tuple[DialectName, ...] = ("openai", "claude-4.6", "claude-4.7")
    for dialect in dropping:
        assert counter(dialect).count_message(over) < 15
        assert counter(dialect).count_message(within) > 60
    for dialect in keeping:
        assert counter(dialect).count_message(over) > 60


def test_thought_is_counted_by_its_text_not_by_its_seal() -> None:
    sealed = Reasoning("Two plus two.", item_json=json.dumps({"signature": "s" * 100_000}))
    assert counter("claude-4.6").count_part(sealed) < 10


# What is no text


MEGABYTE = base64.b64encode(seeded(750_000)).decode()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "part",
    [
        Image(data=MEGABYTE, media_type="image/png"),
        Image(url="data:image/png;base64," + MEGABYTE),
        File(data=MEGABYTE, media_type="application/octet-stream", name="a.bin"),
        ToolResult("a", "look", (Image(data=MEGABYTE, media_type="image/png"),)),
        ProviderItem("openai", json.dumps({"type": "input_audio", "data": MEGABYTE})),
        Reasoning("", item_json=json.dumps({"encrypted_content": MEGABYTE})),
        Text("hello", extra_json=json.dumps({"openai-chat": {"audio": MEGABYTE}})),
    ],
    ids=lambda part: type(part).__name__,
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_megabyte_that_is_no_text_stays_small(part: Part, dialect: DialectName) -> None:
    asked = counter(dialect)
    assert 0 < asked.count_part(part) <= 25_000
    assert asked.count_message(Message("user", (part,))) <= 25_000


def test_pictures_cost_what_other_counters_say() -> None:
    assert counter("openai").count_part(Image(url="u")) == TokenizerFree().count_part(Image(url="u"))


class TokenizerFree(EstimatingCounter):
    """A counter derived from ours, as users may."""


# Options


def test_a_bare_request_costs_the_start_of_the_answer() -> None:
    assert counter("openai").count_options(ChatOptions()) == 3


def test_instructions_cost_a_system_message() -> None:
    for dialect in DIALECTS:
        asked = counter(dialect)
        bare = asked.count_options(ChatOptions())
        assert asked.count_options(ChatOptions(instructions=ENGLISH)) - bare == pytest.approx(
            asked.count_message(Message.system(ENGLISH)), abs=1
        )


def test_tools_at_openai_cost_their_types_and_a_namespace() -> None:
    pytest.importorskip("bpe_openai")
    shown = (
        "# Tools\n\n## functions\n\nnamespace functions {\n\n// Look up the weather of the coming days.\n"
        "type get_forecast = (_: {\n// Where to look\ncity: string,\ndays?: number, // default: 3\n"
        'unit?: "celsius" | "fahrenheit",\n}) => any;\n\n} // namespace functions'
    )
    counted = counter("openai").count_options(ChatOptions(tools=(FORECAST,))) - 3
    assert counted == pytest.approx(TokenizerCounter().count_text(shown), rel=0.1)


@pytest.mark.parametrize(
    ("dialect", "preamble"),
    [("openai", 15), ("openai-reasoning", 98), ("claude-3", 264), ("claude-4", 330), ("claude-4.5", 498)],
)
def test_the_first_tool_brings_a_preamble(dialect: DialectName, preamble: int) -> None:
    asked = counter(dialect)
    none, one, two = (asked.count_options(ChatOptions(tools=(FORECAST,) * number)) for number in range(3))
    assert (one - none) - (two - one) == pytest.approx(preamble, abs=1)


def test_a_tool_costs_more_the_more_its_schema_says() -> None:
    wordy = ToolDeclaration("get_forecast", FORECAST.description, SCHEMA.replace("Where to look", ENGLISH))
    for dialect in DIALECTS:
        asked = counter(dialect)
        more = asked.count_options(ChatOptions(tools=(wordy,))) - asked.count_options(ChatOptions(tools=(FORECAST,)))
        assert more == pytest.approx(asked.count_text(ENGLISH), abs=5)


def test_a_nested_schema_is_counted_to_its_leaves() -> None:
    inner = {"type": "array", "items": {"anyOf": [json.loads(SCHEMA), {"type": "string"}]}}
    nested = json.dumps({"type": "object", "properties": {"stops": inner, "unit": {"$ref": "#/$defs/Unit"}}})
    flat = counter("openai").count_options(ChatOptions(tools=(FORECAST,)))
    deep = counter("openai").count_options(ChatOptions(tools=(ToolDeclaration("get_forecast", "", nested),)))
    assert deep > flat - 10  # the description's


def test_every_choice_of_a_parameter_is_counted() -> None:
    many = json.dumps({"type": "object", "properties": {"unit": {"enum": [f"choice {n}" for n in range(50)]}}})
    for dialect in DIALECTS:
        assert counter(dialect).count_options(ChatOptions(tools=(ToolDeclaration("x", "", many),))) > 200


def test_what_a_schema_defines_apart_is_counted_once() -> None:
    city = {"type": "object", "properties": {"name": {"type": "string", "description": ENGLISH}}}
    properties = {name: {"$ref": "#/$defs/City"} for name in ("start", "end")}
    apart = json.dumps({"type": "object", "properties": properties, "$defs": {"City": city}})
    for dialect in DIALECTS:
        asked = counter(dialect)
        size = asked.count_options(ChatOptions(tools=(ToolDeclaration("x", "", apart),)))
        plain = asked.count_options(ChatOptions(tools=(ToolDeclaration("x", "", SCHEMA),)))
        assert 0.5 < (size - plain) / asked.count_text(ENGLISH) < 1.5


def test_a_call_that_is_forced_changes_the_preamble() -> None:
    def size(dialect: DialectName, choice: str | None) -> int:
        return counter(dialect).count_options(ChatOptions(tools=(FORECAST,), tool_choice=choice))

    for dialect in DIALECTS:
        assert size(dialect, None) == size(dialect, "auto") == size(dialect, "none")
    assert size("claude-4", "required") == size("claude-4", "auto") - 33
    assert size("claude-4.5", "get_forecast") == size("claude-4.5", "required") == size("claude-4.5", "auto") + 92
    assert size("openai", "get_forecast") > size("openai", "required") == size("openai", "auto")


def test_a_choice_without_tools_costs_nothing() -> None:
    for dialect in DIALECTS:
        asked = counter(dialect)
        assert asked.count_options(ChatOptions(tool_choice="required")) == asked.count_options(ChatOptions())


def test_a_tool_that_has_to_be_searched_for_is_not_there_yet() -> None:
    later = ToolDeclaration("x", "y", SCHEMA, extra_json='{"anthropic": {"defer_loading": true}}')
    claude = counter("claude-4.5")
    assert claude.count_options(ChatOptions(tools=(later,))) == claude.count_options(ChatOptions())
    both = ChatOptions(tools=(FORECAST, later))
    assert claude.count_options(both) == claude.count_options(ChatOptions(tools=(FORECAST,)))


def test_a_tool_of_the_servers_brings_instructions_of_its_own() -> None:
    bash = ProviderItem("anthropic", '{"type": "bash_20250124", "name": "bash"}')
    claude = counter("claude-4")
    assert claude.count_options(ChatOptions(tools=(bash,))) > claude.count_options(ChatOptions()) + 330 + 245


def test_the_shape_of_an_answer_is_counted() -> None:
    shape = OutputSchema("forecast", SCHEMA, description="What the weather will be")
    for dialect in DIALECTS:
        asked = counter(dialect)
        assert asked.count_options(ChatOptions(output_schema=shape)) > asked.count_options(ChatOptions()) + 35
    claude = counter("claude-4.5")
    ours = claude.count_options(ChatOptions(output_schema=OutputSchema("", SCHEMA)))
    spelled = {"output_format": {"type": "json_schema", "schema": json.loads(SCHEMA)}}
    assert claude.count_options(ChatOptions(extra=spelled)) == pytest.approx(ours, abs=2)


def test_telling_claude_to_think_costs_a_few_words() -> None:
    claude = counter("claude-4")
    bare = claude.count_options(ChatOptions())
    assert claude.count_options(ChatOptions(extra={"thinking": {"type": "enabled", "budget_tokens": 9}})) == bare + 29
    assert claude.count_options(ChatOptions(extra={"thinking": {"type": "disabled"}})) == bare


CIRCLE: dict[str, Any] = {}
CIRCLE["schema"] = CIRCLE
DEEP = '{"properties":{"a":' * 5_000 + "{}" + "}}" * 5_000
NESTED = '{"type":"object","properties":{"a":' * 300 + "{}" + "}}" * 300


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "no JSON",
        "[]",
        "7",
        "null",
        '"\\ud83d"',
        "\ud83d",
        DEEP,
        NESTED,
        '{"properties": 3}',
        '{"properties": {"a": 3, "b": null, "c": {"type": ["string", "null"], "anyOf": "?", "enum": {}}}}',
        '{"properties": {"a": {"default": {"\\udc00": []}, "enum": [{}, "\\ud800"]}}, "required": "a"}',
        '{"type": "object", "x": ' + "9" * 10_000 + "}",
    ],
    ids=lambda odd: odd[:20],
)
@pytest.mark.parametrize("dialect", ["openai", "claude-4.5", "generic"])
def test_no_schema_is_too_odd_to_be_counted(odd: str, dialect: DialectName) -> None:
    options = ChatOptions(tools=(ToolDeclaration("x", "\ud83d", odd),), output_schema=OutputSchema("x", odd))
    assert counter(dialect).count_options(options) > 0


@pytest.mark.parametrize("extra", [{"output_format": CIRCLE}, {"output_format": {"schema": {1, 2}}}, {"thinking": 3}])
def test_no_extra_is_too_odd_to_be_counted(extra: dict[str, Any]) -> None:
    assert counter("claude-4.5").count_options(ChatOptions(extra=extra)) > 0


PARTS = (Text(""), ToolCall("", "", ""), ToolResult("", "", ""), File(), Reasoning(""), ProviderItem("", ""), Image())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_counts_less_than_zero(dialect: DialectName) -> None:
    asked = counter(dialect)
    assert min(asked.count_part(part) for part in PARTS) >= 0
    assert asked.count_message(Message("assistant", ())) > 0
    assert asked.count_options(ChatOptions(tools=(FORECAST,), tool_choice="required")) > 0
