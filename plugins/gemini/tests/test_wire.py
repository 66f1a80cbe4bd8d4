"""Requests as Gemini takes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standin import check_body, check_order

from chatstack.errors import InputError
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatOptions, ChatRequest, OutputSchema, ToolDeclaration
from chatstack_gemini.parts import UNCHECKED_SIGNATURE
from chatstack_gemini.wire import request_to_wire

TOOL = ToolDeclaration("look_up", "Looks up.", '{"type":"object","properties":{"city":{"type":"string"}}}')
CALLS = (ToolCall("a1", "look_up", '{"city": "Oslo"}'), ToolCall("b2", "look_up", '{"city": "Bern"}'))


def body_of(*messages: Message, model: str = "gemini-2.5-flash", **options: Any) -> dict[str, Any]:
    return check_body(request_to_wire(ChatRequest(messages, ChatOptions(**options)), model))


def contents_of(*messages: Message, model: str = "gemini-2.5-flash") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body_of(*messages, model=model)["contents"]
    return found


def responses_in(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]


def test_leading_system_messages_are_the_system_instruction() -> None:
    body = body_of(Message.system("be brief"), Message.user("hi"), instructions="be kind")
    assert body["systemInstruction"] == {"parts": [{"text": "be kind"}, {"text": "be brief"}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


def test_a_later_system_message_stays_at_its_place() -> None:
    contents = contents_of(Message.user("hi"), Message.assistant("yes"), Message.system("be brief"), Message.user("so"))
    assert contents[-1]["parts"] == [{"text": "<system>\nbe brief\n</system>"}, {"text": "so"}]


PICTURE = Image(data="aGk=", media_type="image/png")
WRITTEN = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}


def test_pictures_and_files_of_a_later_system_message_stay_with_its_text() -> None:
    logo = Message("system", (Text("our logo:"), PICTURE, File(text="1,2", name="a.csv"), Text("use it")))
    contents = contents_of(Message.user("hi"), Message.assistant("yes"), logo, Message.user("so"))
    assert contents[-1]["parts"] == [
        {"text": "<system>\n"},
        *({"text": "our logo:"}, WRITTEN, {"text": "a.csv:\n1,2"}, {"text": "use it"}),
        *({"text": "\n</system>"}, {"text": "so"}),
    ]
    assert contents_of(Message.user("hi"), Message("system", (PICTURE,)))[0]["parts"][2] == WRITTEN


def test_a_leading_system_message_with_a_picture_is_no_instruction_nor_are_those_behind_it() -> None:
    logo = Message("system", (Text("our logo:"), PICTURE))
    table = Message("system", (File(text="1,2", name="a.csv"),))
    body = body_of(Message.system("be brief"), table, logo, Message.system("be kind"), Message.user("hi"))
    assert body["systemInstruction"] == {"parts": [{"text": "be brief"}, {"text": "a.csv:\n1,2"}]}
    assert body["contents"][0]["parts"] == [
        *({"text": "<system>\n"}, {"text": "our logo:"}, WRITTEN, {"text": "\n</system>"}),
        *({"text": "<system>\nbe kind\n</system>"}, {"text": "hi"}),
    ]


def test_a_conversation_of_the_model_alone_gets_an_opening() -> None:
    assert [each["role"] for each in contents_of(Message.assistant("hello"))] == ["user", "model"]
    assert contents_of(Message.system("be brief"))[0]["role"] == "user"


def test_messages_of_one_role_in_a_row_are_one_content() -> None:
    contents = contents_of(Message.user("a"), Message.user("b"), Message.assistant("c"), Message.assistant("d", *CALLS))
    assert [(each["role"], len(each["parts"])) for each in contents] == [("user", 2), ("model", 4)]


def test_results_go_behind_their_calls_in_the_order_of_the_calls() -> None:
    contents = contents_of(
        *(Message.user("hi"), Message.assistant(*CALLS), Message.tool("b2", "cold")),
        *(Message.user("well?"), Message.tool("a1", "warm")),
    )
    assert responses_in(contents[-1]) == [
        {"id": "a1", "name": "look_up", "response": {"output": "warm"}},
        {"id": "b2", "name": "look_up", "response": {"output": "cold"}},
    ]
    assert contents[-1]["parts"][-1] == {"text": "well?"}


def test_a_call_without_a_result_gets_an_error() -> None:
    contents = contents_of(
        Message.user("hi"), Message.assistant(*CALLS), Message.tool("a1", "x"), Message.user("well?")
    )
    assert responses_in(contents[-1])[1]["response"] == {"error": "the call has no result"}


def test_calls_at_the_end_are_still_being_worked_on() -> None:
    assert contents_of(Message.user("hi"), Message.assistant(*CALLS))[-1]["role"] == "model"


@pytest.mark.parametrize(
    "messages",
    [
        (Message.user("hi"), Message.tool("a1", "x")),
        (Message.user("hi"), Message.assistant(*CALLS), Message.tool("a1", "x"), Message.tool("a1", "y")),
        (
            *(Message.user("hi"), Message.assistant(CALLS[0]), Message.user("well?")),
            *(Message.assistant("so"), Message.tool("a1", "x")),
        ),
    ],
    ids=["no call", "a second result", "behind the next answer"],
)
def test_a_result_without_a_place_is_refused_by_name(messages: tuple[Message, ...]) -> None:
    with pytest.raises(InputError, match=r"messages\[\d\]: the result of the call 'a1'"):
        request_to_wire(ChatRequest(messages), "gemini-2.5-flash")


def test_a_result_without_a_place_is_counted_from_the_first_message() -> None:
    messages = (Message.system("be brief"), Message.system("be kind"), Message.user("hi"), Message.tool("a1", "x"))
    with pytest.raises(InputError, match=r"messages\[3\]: the result of the call 'a1'"):
        request_to_wire(ChatRequest(messages), "gemini-2.5-flash")


def test_two_calls_of_one_id_get_their_results_in_order() -> None:
    twice = (ToolCall("call_0", "f"), ToolCall("call_0", "f"))
    contents = contents_of(
        Message.user("hi"), Message.assistant(*twice), Message.tool("call_0", "x"), Message.tool("call_0", "y")
    )
    assert [each["response"]["output"] for each in responses_in(contents[-1])] == ["x", "y"]


def test_a_result_has_the_name_of_its_call_and_keeps_parts_and_errors() -> None:
    picture = Image(data="aGk=", media_type="image/png")
    output = (Text("one"), Text("two"), picture, File(data="aGk=", media_type="application/pdf"))
    contents = contents_of(
        Message.user("hi"),
        Message.assistant(*CALLS),
        Message("tool", (ToolResult("a1", "", output), ToolResult("b2", "other", "no", is_error=True))),
    )
    first, second = responses_in(contents[-1])
    assert first["name"] == second["name"] == "look_up"
    assert first["response"] == {"output": ["one", "two"]}
    assert [each["inlineData"]["mimeType"] for each in first["parts"]] == ["image/png", "application/pdf"]
    assert second["response"] == {"error": "no"}


def test_a_text_file_of_a_result_is_one_of_its_texts() -> None:
    output = (Text("found:"), File(text="1,2", name="a.csv"))
    contents = contents_of(
        Message.user("hi"), Message.assistant(CALLS[0]), Message("tool", (ToolResult("a1", "", output),))
    )
    (response,) = responses_in(contents[-1])
    assert response == {"id": "a1", "name": "look_up", "response": {"output": ["found:", "a.csv:\n1,2"]}}


def test_made_up_ids_are_never_sent() -> None:
    call = ToolCall("made_resp1_0", "look_up")
    contents = contents_of(Message.user("hi"), Message.assistant(call), Message.tool(call.id, "x"))
    assert contents[1]["parts"] == [{"functionCall": {"name": "look_up", "args": {}}}]
    assert responses_in(contents[2]) == [{"name": "look_up", "response": {"output": "x"}}]


@pytest.mark.parametrize(
    ("model", "is_signed"),
    [
        ("gemini-2.5-pro", False),
        ("models/gemini-2.0-flash", False),
        ("gemini-3.8-flash", True),
        ("models/gemini-4-argon", True),
    ],
)
def test_the_first_call_of_another_model_gets_a_signature_where_one_is_demanded(model: str, is_signed: bool) -> None:
    contents = contents_of(
        Message.user("hi"), Message.assistant(*CALLS), *(Message.tool(call.id, "x") for call in CALLS), model=model
    )
    found = [part.get("thoughtSignature") for part in contents[1]["parts"]]
    assert found == [UNCHECKED_SIGNATURE if is_signed else None, None]


def test_a_signature_of_geminis_own_is_kept() -> None:
    call = ToolCall("a1", "look_up", "{}", '{"gemini":{"thoughtSignature":"c2ln"}}')
    contents = contents_of(
        Message.user("hi"), Message.assistant("so", call), Message.tool("a1", "x"), model="gemini-3.8-flash"
    )
    assert contents[1]["parts"][1]["thoughtSignature"] == "c2ln"


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (Image(data="aGk=", media_type="image/webp"), {"inlineData": {"mimeType": "image/webp", "data": "aGk="}}),
        (Image(url="data:image/gif;base64,aGk="), {"inlineData": {"mimeType": "image/gif", "data": "aGk="}}),
        (
            Image(url="https://example.invalid/a.jpg?b=c"),
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.invalid/a.jpg?b=c"}},
        ),
        (File(file_id="files/abc"), {"fileData": {"mimeType": "application/pdf", "fileUri": "files/abc"}}),
        (File(data="aGk=", name="a.csv"), {"inlineData": {"mimeType": "text/csv", "data": "aGk="}}),
        (File(text="1,2", name="a.csv"), {"text": "a.csv:\n1,2"}),
    ],
)
def test_pictures_and_files_have_a_form(part: Part, written: dict[str, Any]) -> None:
    assert contents_of(Message("user", (part,)))[0]["parts"] == [written]


def test_an_empty_picture_is_refused() -> None:
    with pytest.raises(InputError, match="Image: has neither data nor an address"):
        contents_of(Message("user", (Image(),)))


def test_thoughts_of_gemini_go_back_and_those_of_others_do_not() -> None:
    ours = Reasoning("hm", '{"text":"hm","thought":true}', "gcp.gemini")
    theirs = (Reasoning("hm", '{"type":"thinking"}', "anthropic"), ProviderItem("openai", "{}"))
    contents = contents_of(Message.user("hi"), Message.assistant(ours, *theirs, "yes"), Message.user("so"))
    assert contents[1]["parts"] == [{"text": "hm", "thought": True}, {"text": "yes"}]


def test_tools_are_function_declarations_beside_those_that_run_at_google() -> None:
    body = body_of(Message.user("hi"), tools=(TOOL, ProviderItem("gcp.gemini", '{"googleSearch":{}}')))
    declared, search = body["tools"]
    assert declared["functionDeclarations"][0]["parametersJsonSchema"]["properties"] == {"city": {"type": "string"}}
    assert search == {"googleSearch": {}}
    assert "toolConfig" not in body


def test_a_constant_is_an_enum_of_one_value_as_gemini_passes_over_constants() -> None:
    kind = '{"anyOf":[{"$ref":"#/$defs/Cat"},{"type":"null"}]}'
    cat = '{"type":"object","properties":{"const":{"type":"string","const":"cat"}}}'
    schema = f'{{"type":"object","properties":{{"pet":{kind}}},"$defs":{{"Cat":{cat}}}}}'
    tool = ToolDeclaration("feed", "", schema)
    body = body_of(Message.user("hi"), tools=(tool,), output_schema=OutputSchema("answer", schema))
    declared = body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"]
    for each in (declared, body["generationConfig"]["responseJsonSchema"]):
        assert each["$defs"]["Cat"]["properties"] == {"const": {"type": "string", "enum": ["cat"]}}


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("look_up", {"mode": "ANY", "allowedFunctionNames": ["look_up"]}),
    ],
)
def test_a_choice_of_tools_is_a_mode(choice: str, config: dict[str, Any]) -> None:
    body = body_of(Message.user("hi"), tools=(TOOL,), tool_choice=choice)
    assert body["toolConfig"] == {"functionCallingConfig": config}


def test_a_choice_of_no_tools_wins_over_extra() -> None:
    chosen = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look_up"]}, "retrievalConfig": {}}
    body = body_of(Message.user("hi"), tools=(TOOL,), tool_choice="none", extra={"toolConfig": chosen})
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "NONE"}, "retrievalConfig": {}}


SEARCH = ProviderItem("gcp.gemini", '{"googleSearch":{}}')


@pytest.mark.parametrize("choice", ["required", "look_up"])
def test_a_call_cannot_be_demanded_where_all_tools_run_at_google(choice: str) -> None:
    with pytest.raises(InputError, match=rf"options\.tool_choice='{choice}': .* declared tools"):
        body_of(Message.user("hi"), tools=(SEARCH,), tool_choice=choice)
    for other in ("auto", "none"):
        assert "toolConfig" not in body_of(Message.user("hi"), tools=(SEARCH,), tool_choice=other)
    assert "toolConfig" not in body_of(Message.user("hi"), tool_choice=choice), "without tools there is no choice"


def test_a_choice_goes_along_with_tools_of_the_bodys_own() -> None:
    extra = {"tools": [{"functionDeclarations": [{"name": "look_up"}]}]}
    body = body_of(Message.user("hi"), extra=extra, tool_choice="required")
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}


def test_a_strict_tool_is_validated() -> None:
    strict = ToolDeclaration(TOOL.name, TOOL.description, TOOL.parameters, strict=True)
    body = body_of(Message.user("hi"), tools=(strict,))
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "VALIDATED"}}


def test_options_are_the_generation_config() -> None:
    body = body_of(
        Message.user("hi"),
        max_tokens=9,
        temperature=0.5,
        top_p=0.25,
        stop=("END",),
        seed=3,
        reasoning_effort="low",
        output_schema=OutputSchema("answer", '{"type":"object"}'),
        extra={"generationConfig": {"topK": 4, "seed": 5, "thinkingConfig": {"includeThoughts": True}}},
    )
    assert body["generationConfig"] == {
        "maxOutputTokens": 9,
        "temperature": 0.5,
        "topP": 0.25,
        "stopSequences": ["END"],
        "seed": 5,
        "thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True},
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
        "topK": 4,
    }


@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        *(("gemini-2.5-flash", effort, {"thinkingBudget": 1024}) for effort in ("minimal", "low")),
        ("gemini-2.5-flash", "medium", {"thinkingBudget": 8192}),
        *(("gemini-2.5-flash-lite", effort, {"thinkingBudget": 24576}) for effort in ("high", "xhigh", "max")),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("models/gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-2.5-pro", "max", {"thinkingBudget": 32768}),
        ("gemini-3.8-flash", "low", {"thinkingLevel": "LOW"}),
        ("gemini-3.8-flash", "none", {"thinkingLevel": "MINIMAL"}),
        ("models/gemini-3.1-pro-preview", "none", {"thinkingLevel": "LOW"}),
        ("gemini-3-pro", "minimal", {"thinkingLevel": "LOW"}),
        ("gemini-3.7-flash", "none", {"thinkingLevel": "LOW"}),
    ],
)
def test_an_effort_is_a_budget_or_a_level_as_the_model_takes_it(
    model: str, effort: str, config: dict[str, Any]
) -> None:
    body = body_of(Message.user("hi"), model=model, reasoning_effort=effort)
    assert body["generationConfig"] == {"thinkingConfig": config}


@pytest.mark.parametrize(("effort", "level"), [("minimal", "MINIMAL"), ("max", "XHIGH"), ("other", "OTHER")])
def test_an_effort_that_the_api_lacks_is_the_nearest_level(effort: str, level: str) -> None:
    body = request_to_wire(ChatRequest((Message.user("hi"),), ChatOptions(reasoning_effort=effort)), "gemini-3")
    assert body["generationConfig"] == {"thinkingConfig": {"thinkingLevel": level}}


IDS = st.sampled_from(("a1", "b2", "c3"))
PIECES = st.one_of(
    st.builds(Message.user, st.sampled_from(("hi", "", " "))),
    st.builds(Message.system, st.sampled_from(("be brief", ""))),
    st.builds(Message.assistant, st.sampled_from(("yes", ""))),
    st.lists(IDS, min_size=1, max_size=3).map(lambda ids: Message.assistant(*(ToolCall(id, "f") for id in ids))),
    st.builds(Message.tool, IDS, st.sampled_from(("x", ""))),
)


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_every_history_is_in_an_order_that_gemini_takes_or_is_refused(messages: list[Message], is_new: bool) -> None:
    body, told = None, ""
    try:
        body = request_to_wire(ChatRequest(tuple(messages)), "gemini-3" if is_new else "gemini-2")
    except InputError as error:
        told = str(error)
    if body is None:
        assert "has no call before it" in told
    else:
        check_order(body["contents"])  # type: ignore[arg-type]
