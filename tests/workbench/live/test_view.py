"""The view as a listener: told by real stacks, from many threads, and with a terminal that it draws on."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from chatstack import (
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ProgressReporter,
    RateLimitError,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    WiringError,
    find,
    tool,
)
from chatstack.testing import Answer, ScriptedClient
from chatstack.workbench.live import LiveView
from tests.workbench.live.events import Shown, on_screen, timeless, warned, widest


@tool
def look(city: str) -> str:
    """Looks."""
    return "sunny " * 60


def looking(call_id: str) -> Message:
    return Message.assistant(ToolCall(call_id, "look", '{"city": "Dubai"}'))


def converse(stack: ChatStack, *asked: str, conversation_id: str | None = "c-42") -> None:
    async def run() -> None:
        history: list[Message] = []
        async with stack.open() as client:
            for text in asked:
                history.append(Message.user(text))
                history += (await client.get_response(history, conversation_id=conversation_id)).messages

    asyncio.run(run())


def stack_of(shown: Shown, *answers: Answer) -> ChatStack:
    return ChatStack(ScriptedClient(answers or ("fine",))).use(ProgressReporter, on_progress=shown.view)


# Told by a real stack


TOLD = """\
- c-42  turn 1: 2 model calls, 1 tool, 190 tokens read, 21 written, T
  #######.........   48%  152 of 320 tokens
* c-42  cleared: 279 -> 191 tokens, 1 result cleared (clear_tool_results)
! c-42  context_window_near_limit: fits at 95%: about 305 of 320 tokens
- c-42  turn 2: 3 model calls, 2 tools, 661 tokens read, 35 written, T
  ###############.   95%  305 of 320 tokens
! c-42  context_window_exceeded: pruned at 161%: about 516 of 320 tokens
* c-42  dropped: 516 -> 242 tokens, 11 -> 2 messages (truncate)
- c-42  turn 3: 1 model call, 0 tools, 242 tokens read, 5 written, T
  ############....   76%  242 of 320 tokens
"""


def outgrow(shown: Shown) -> None:
    stack = (
        stack_of(shown, looking("1"), "It is sunny.", looking("2"), looking("3"), "Still sunny.", "Bye.")
        .use(FunctionInvoker, tools=[look])
        .use(ToolResultClearer, trigger={"tokens": 250}, keep={"messages": 1})
        .use(ContextWindowGuard, max_context_tokens=320, warning_threshold=0.7, prune_on_overflow=True)
    )
    converse(stack, "Hello", "And now?", "x" * 800)


@pytest.mark.parametrize("width", [80, 40])
def test_a_conversation_that_outgrows_its_window_is_told_in_the_order_in_which_it_happened(width: int) -> None:
    shown = Shown(width, encoding="ascii")
    outgrow(shown)
    assert " ".join(" ".join(shown.lines).split()) == " ".join(TOLD.split())
    assert widest(shown.lines) <= width
    if width == 80:
        assert shown.lines == TOLD.splitlines()


def test_in_a_terminal_the_same_is_the_log_and_below_it_stands_how_it_ended() -> None:
    shown = Shown(encoding="ascii", terminal=True)
    with on_screen(shown) as screen:
        outgrow(shown)
    assert [timeless(line) for line in screen.lines if line] == [
        *(line for line in TOLD.splitlines() if not line.startswith(" ")),
        "c-42  ############....   76%  242 of 320 tokens  turn 3, round 1",
        "  answered, T  cleared 1x  dropped 1x  -362 tokens  2 warnings",
    ]


def test_a_summary_is_told_as_a_fold() -> None:
    shown = Shown()
    stack = stack_of(shown, "one " * 50, "two " * 50, "three " * 50, "A summary.", "four").use(
        Summarizer, max_tokens=200, keep_recent_turns=1
    )
    converse(stack, *("Go on. " * 10 for _ in range(4)))
    assert shown.lines[3] == "* c-42  folded: 271 -> 73 tokens, 7 -> 3 messages (summarize)"


def test_without_a_guard_there_is_no_bar() -> None:
    shown = Shown()
    converse(stack_of(shown), "Hello", "And now?")
    assert len(shown.lines) == 2
    assert "tokens read  turn 2, round 1" in shown.rows[0]


def test_a_turn_that_fails_is_told_and_the_error_is_the_callers() -> None:
    shown = Shown()
    with pytest.raises(RateLimitError):
        converse(stack_of(shown, RateLimitError("slow down")), "Hello")
    assert shown.lines == ["x c-42  model script failed: RateLimitError", "x c-42  turn 1 failed: RateLimitError, T"]


def test_one_view_can_be_told_by_several_stacks_and_by_a_feed() -> None:
    shown = Shown()
    for number in range(2):
        converse(stack_of(shown), "Hello", conversation_id=f"c-{number}")

    async def follow() -> None:
        client = ChatStack(ScriptedClient()).use(ProgressReporter).build()
        reporter = find(client, ProgressReporter)
        assert reporter is not None
        async with client, reporter.feed.events("c-2") as events:
            await client.get_response("Hello", conversation_id="c-2")
            await events.aclose()
            async for each in events:
                shown.view(each)

    asyncio.run(follow())
    assert [line.split()[1] for line in shown.lines] == ["c-0", "c-1", "c-2"]


# Told by itself


class Echo(io.StringIO):
    """A file that tells the view something while the view writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.view: LiveView | None = None

    def write(self, text: str) -> int:
        view, self.view = self.view, None
        if view is not None:
            view(warned("echo", "from within"))
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
def test_it_may_be_told_something_while_it_writes(terminal: bool) -> None:
    file = Echo()
    view = LiveView(Console(file=file, force_terminal=terminal, width=80, _environ={"TERM": "xterm"}))

    def run() -> None:
        with view:
            file.view = view
            view(warned("code", "first"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout=300)
    assert not thread.is_alive()
    assert "from within" in file.getvalue()
    assert "first" in file.getvalue()


def test_a_tool_may_hold_a_conversation_of_its_own_that_is_seen_too() -> None:
    shown = Shown()
    inner = stack_of(shown, "inner").build()

    @tool
    async def ask(question: str) -> str:
        """Asks."""
        return (await inner.get_response(question, conversation_id="inner")).text

    call = Message.assistant(ToolCall("1", "ask", '{"question": "Why?"}'))
    converse(stack_of(shown, call, "done").use(FunctionInvoker, tools=[ask]), "Hello", conversation_id="outer")
    asyncio.run(inner.aclose())
    assert sorted(line.split()[1] for line in shown.lines) == ["inner", "outer"]


# What it needs


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "4"])
def test_how_many_to_show_is_a_whole_number(most: int) -> None:
    with pytest.raises(WiringError, match="most="):
        LiveView(most=most)


def test_by_default_it_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    LiveView()(warned("code", "message"))
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "! c-1  code: message\n")


def in_python(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    return ran.stdout.strip()


QUIETLY = """
import asyncio, logging
from rich.console import Console
from chatstack import ChatStack, ContextWindowGuard, ProgressReporter
from chatstack.workbench.live import LiveView
from chatstack.testing import ScriptedClient

async def main(view):
    stack = ChatStack(ScriptedClient()).use(ProgressReporter, on_progress=view)
    async with stack.use(ContextWindowGuard, max_context_tokens=5).open() as client:
        await client.get_response("x" * 36)

with LiveView(Console(no_color=True)) as view:
    asyncio.run(main(view))
    logging.getLogger("chatstack.telemetry.spans").error("an error")
asyncio.run(main(lambda event: None))
"""


def test_while_it_is_shown_the_standard_logging_does_not_print_warnings_once_more() -> None:
    done = subprocess.run([sys.executable, "-c", QUIETLY], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("context_window_exceeded") == 1
    assert done.stderr == "an error\ncontext_window_exceeded: sent as it is at 260%: about 13 of 5 tokens\n"


def test_rich_is_loaded_when_the_view_is_asked_for() -> None:
    assert in_python("import sys, chatstack.workbench.live; print('rich' in sys.modules)") == "False"


def test_without_rich_it_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['rich'] = None\n"
        "from chatstack import ChatStackError\n"
        "try:\n    from chatstack.workbench.live import LiveView\n"
        "except ChatStackError as error:\n    print(error)"
    )
    assert in_python(program) == "rich is not installed: pip install 'chatstack-core[cli]'"


def test_another_name_is_an_attribute_error() -> None:
    import chatstack.workbench.live

    with pytest.raises(AttributeError, match="has no attribute 'LiveVeiw'"):
        _ = chatstack.workbench.live.LiveVeiw
