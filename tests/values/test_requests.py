"""Options and requests: immutable, checked where users make them."""

from __future__ import annotations

import pickle

import pytest

from chatstack import ChatOptions, ChatRequest, InputError, Message, OutputSchema, ProviderItem, ToolDeclaration


def test_whatever_is_not_set_is_left_to_the_provider() -> None:
    options = ChatOptions()
    assert options.model is None
    assert options.max_tokens is None
    assert options.temperature is None
    assert options.tool_choice is None
    assert (options.tools, options.stop, options.instructions, dict(options.extra)) == ((), (), "", {})


@pytest.mark.parametrize("name", ["tools", "stop"])
def test_a_list_where_a_tuple_belongs_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError) as caught:
        ChatOptions(**{name: []})  # type: ignore[arg-type]
    assert str(caught.value) == f"ChatOptions: {name} must be a tuple, not list"


def test_a_negative_reservation_is_refused_with_its_value() -> None:
    with pytest.raises(InputError, match="max_tokens=-1 must not be negative"):
        ChatOptions(max_tokens=-1)
    assert ChatOptions(max_tokens=0).max_tokens == 0


def test_but_replaces_some_and_keeps_the_rest() -> None:
    before = ChatOptions(model="m", temperature=0.5, extra={"user": "u"})
    after = before.but(model="n")
    assert (after.model, after.temperature, dict(after.extra)) == ("n", 0.5, {"user": "u"})
    assert before.model == "m"


def test_but_is_checked_like_the_constructor() -> None:
    with pytest.raises(InputError, match="tools must be a tuple"):
        ChatOptions().but(tools=[ToolDeclaration("f")])


def test_extra_is_the_options_own_and_cannot_be_written() -> None:
    inner = {"user": "u", "tags": ["a"]}
    given: dict[str, object] = {"user": "u", "metadata": inner}
    options = ChatOptions(extra=given)
    given["user"] = inner["user"] = inner["tags"][0] = "other"  # type: ignore[index]
    assert options.extra == {"user": "u", "metadata": {"user": "u", "tags": ["a"]}}
    with pytest.raises(TypeError):
        options.extra["user"] = "x"  # type: ignore[index]


def test_the_repr_of_options_tells_the_names_in_extra_and_nothing_that_may_be_a_key() -> None:
    key = "sk-SECRET"
    hosted = ProviderItem("openai", f'{{"type":"mcp","authorization":"{key}"}}')
    options = ChatOptions(
        model="m", tools=(hosted,), extra={"mcp_servers": [{"authorization_token": key}], "user": key}
    )
    assert repr(options).startswith("ChatOptions(model='m', instructions='', tools=(ProviderItem(")
    assert repr(options).endswith(", extra={'mcp_servers': '...', 'user': '...'})")
    for shown in (repr(options), repr(ChatRequest((), options)), repr(options.__rich_repr__())):
        assert key not in shown
    assert repr(ChatOptions()).endswith(", extra={})")


def test_options_survive_pickle() -> None:
    options = ChatOptions(
        model="m",
        tools=(ToolDeclaration("f", "does f", "{}"),),
        stop=("END",),
        output_schema=OutputSchema("answer", "{}"),
        extra={"nested": {"a": [1]}},
    )
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_request_survives_pickle() -> None:
    request = ChatRequest((Message.user("a"),), ChatOptions(extra={"k": 1}), "c-1", True)
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_request_is_changed_by_making_another() -> None:
    request = ChatRequest((Message.user("a"),), ChatOptions(model="m"), "c-1", True)
    other = request.but(messages=(Message.user("b"),))
    assert other.messages == (Message.user("b"),)
    assert (other.options, other.conversation_id, other.stream) == (request.options, "c-1", True)
    assert request.messages == (Message.user("a"),)
    with pytest.raises(AttributeError):
        request.messages = ()  # type: ignore[misc]


def test_requests_that_share_default_options_do_not_share_anything_that_changes() -> None:
    one, other = ChatRequest((Message.user("a"),)), ChatRequest((Message.user("b"),))
    assert one.options == other.options
    assert one.options.but(model="m") != other.options
