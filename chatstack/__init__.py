"""chatstack: composable layers around any chat client.

Names are imported when they are first asked for, so that ``import chatstack`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatstack.client.fronts import ChatFronts as ChatFronts
    from chatstack.client.protocol import ChatClient as ChatClient
    from chatstack.client.protocol import CountsTokens as CountsTokens
    from chatstack.client.protocol import EditsNatively as EditsNatively
    from chatstack.client.protocol import LayerKind as LayerKind
    from chatstack.client.protocol import ProviderInfo as ProviderInfo
    from chatstack.client.protocol import TellsKind as TellsKind
    from chatstack.client.protocol import TellsWindow as TellsWindow
    from chatstack.client.protocol import find as find
    from chatstack.client.stream import ChatStream as ChatStream
    from chatstack.client.sync import SyncClient as SyncClient
    from chatstack.client.sync import SyncStream as SyncStream
    from chatstack.client.wiring import FROM_CONTAINER as FROM_CONTAINER
    from chatstack.client.wiring import Layer as Layer
    from chatstack.client.wiring import Resolver as Resolver
    from chatstack.config.names import Allowed as Allowed
    from chatstack.config.recipes import from_config as from_config
    from chatstack.context.edits.context import Context as Context
    from chatstack.context.edits.plans import Plan as Plan
    from chatstack.context.memory.memory import ContextMemory as ContextMemory
    from chatstack.context.memory.sharing import DecisionStore as DecisionStore
    from chatstack.context.requests.attempts import SummaryAttempts as SummaryAttempts
    from chatstack.context.requests.services import ContextServices as ContextServices
    from chatstack.context.strategies.condensing import ClearThenDrop as ClearThenDrop
    from chatstack.context.strategies.pruning import OldestFirst as OldestFirst
    from chatstack.context.strategies.truncating import Truncate as Truncate
    from chatstack.context.strategy import Strategy as Strategy
    from chatstack.errors import AuthenticationError as AuthenticationError
    from chatstack.errors import BrokenStreamError as BrokenStreamError
    from chatstack.errors import BudgetExceeded as BudgetExceeded
    from chatstack.errors import ChatStackError as ChatStackError
    from chatstack.errors import ContextOverflowError as ContextOverflowError
    from chatstack.errors import FallbackError as FallbackError
    from chatstack.errors import InputError as InputError
    from chatstack.errors import MissingFileError as MissingFileError
    from chatstack.errors import OutputError as OutputError
    from chatstack.errors import ProviderConnectionError as ProviderConnectionError
    from chatstack.errors import ProviderError as ProviderError
    from chatstack.errors import ProviderTimeoutError as ProviderTimeoutError
    from chatstack.errors import RateLimitError as RateLimitError
    from chatstack.errors import RequestRefusedError as RequestRefusedError
    from chatstack.errors import ServerError as ServerError
    from chatstack.errors import StoreError as StoreError
    from chatstack.errors import StreamBusyError as StreamBusyError
    from chatstack.errors import StreamClosedError as StreamClosedError
    from chatstack.errors import ToolDeniedError as ToolDeniedError
    from chatstack.errors import ToolError as ToolError
    from chatstack.errors import ToolLoopError as ToolLoopError
    from chatstack.errors import ToolTimeoutError as ToolTimeoutError
    from chatstack.errors import TurnTimeoutError as TurnTimeoutError
    from chatstack.errors import UnknownToolError as UnknownToolError
    from chatstack.errors import UnusableRecordError as UnusableRecordError
    from chatstack.errors import WiringError as WiringError
    from chatstack.errors import WorkspaceError as WorkspaceError
    from chatstack.layers.budget import Budget as Budget
    from chatstack.layers.clearer import ToolResultClearer as ToolResultClearer
    from chatstack.layers.fallback import Fallback as Fallback
    from chatstack.layers.guard import ContextWindowGuard as ContextWindowGuard
    from chatstack.layers.progress import ProgressReporter as ProgressReporter
    from chatstack.layers.shaper import ToolResultShaper as ToolResultShaper
    from chatstack.layers.spending import Spending as Spending
    from chatstack.layers.summarizer import Summarizer as Summarizer
    from chatstack.layers.summarizing import SummaryClient as SummaryClient
    from chatstack.layers.window import ContextWindow as ContextWindow
    from chatstack.loop.context import Cancellation as Cancellation
    from chatstack.loop.context import IterativeContext as IterativeContext
    from chatstack.loop.folder import FolderWorkspace as FolderWorkspace
    from chatstack.loop.iterative import IterativeLoop as IterativeLoop
    from chatstack.loop.journal import Journal as Journal
    from chatstack.loop.results import IterationRecord as IterationRecord
    from chatstack.loop.results import IterativeResult as IterativeResult
    from chatstack.loop.results import ToolCallResult as ToolCallResult
    from chatstack.loop.workspace import MemoryWorkspace as MemoryWorkspace
    from chatstack.loop.workspace import Workspace as Workspace
    from chatstack.loop.workspace_tools import workspace_tools as workspace_tools
    from chatstack.nodes.chat_node import ChatNode as ChatNode
    from chatstack.nodes.managers import AwaitedContextManager as AwaitedContextManager
    from chatstack.nodes.managers import BaseContextManager as BaseContextManager
    from chatstack.nodes.managers import MessageContextManager as MessageContextManager
    from chatstack.nodes.managers import StackContextManager as StackContextManager
    from chatstack.nodes.managers import StrategyContextManager as StrategyContextManager
    from chatstack.nodes.state import AgentState as AgentState
    from chatstack.providers.converters import from_anthropic as from_anthropic
    from chatstack.providers.converters import from_openai_chat as from_openai_chat
    from chatstack.providers.converters import from_openai_responses as from_openai_responses
    from chatstack.providers.converters import to_anthropic as to_anthropic
    from chatstack.providers.converters import to_openai_chat as to_openai_chat
    from chatstack.providers.converters import to_openai_responses as to_openai_responses
    from chatstack.providers.wrapping.sdk_clients import wrap as wrap
    from chatstack.stack.entries import LayerSpec as LayerSpec
    from chatstack.stack.entries import named as named
    from chatstack.stack.recipe import BuiltClient as BuiltClient
    from chatstack.stack.recipe import ChatStack as ChatStack
    from chatstack.stack.recipe import LayerOrderWarning as LayerOrderWarning
    from chatstack.telemetry.agent_turns import agent_turn as agent_turn
    from chatstack.telemetry.emission import Telemetry as Telemetry
    from chatstack.telemetry.events import ProgressEvent as ProgressEvent
    from chatstack.telemetry.feed import ProgressEvents as ProgressEvents
    from chatstack.telemetry.feed import ProgressFeed as ProgressFeed
    from chatstack.telemetry.tracer import ModelTracer as ModelTracer
    from chatstack.tokens.calibration import Calibration as Calibration
    from chatstack.tokens.counter import CharCounter as CharCounter
    from chatstack.tokens.counter import TableCounter as TableCounter
    from chatstack.tokens.counter import TokenCounter as TokenCounter
    from chatstack.tokens.counter import TokenizerCounter as TokenizerCounter
    from chatstack.tokens.estimating import EstimatingCounter as EstimatingCounter
    from chatstack.tokens.prices import Price as Price
    from chatstack.tokens.windows import Windows as Windows
    from chatstack.tools.invoker import FunctionInvoker as FunctionInvoker
    from chatstack.tools.parameters import Injected as Injected
    from chatstack.tools.parameters import ToolContext as ToolContext
    from chatstack.tools.recall import recall_tool as recall_tool
    from chatstack.tools.tool import Tool as Tool
    from chatstack.tools.tool import tool as tool
    from chatstack.values.histories import from_json as from_json
    from chatstack.values.histories import to_json as to_json
    from chatstack.values.messages import Annotation as Annotation
    from chatstack.values.messages import Message as Message
    from chatstack.values.native import AppliedEdit as AppliedEdit
    from chatstack.values.native import NativeClearing as NativeClearing
    from chatstack.values.native import NativeCompaction as NativeCompaction
    from chatstack.values.parts import File as File
    from chatstack.values.parts import Image as Image
    from chatstack.values.parts import Part as Part
    from chatstack.values.parts import ProviderItem as ProviderItem
    from chatstack.values.parts import Reasoning as Reasoning
    from chatstack.values.parts import Text as Text
    from chatstack.values.parts import ToolCall as ToolCall
    from chatstack.values.parts import ToolResult as ToolResult
    from chatstack.values.requests import ChatOptions as ChatOptions
    from chatstack.values.requests import ChatRequest as ChatRequest
    from chatstack.values.requests import OutputSchema as OutputSchema
    from chatstack.values.requests import ToolDeclaration as ToolDeclaration
    from chatstack.values.responses import CallDelta as CallDelta
    from chatstack.values.responses import ChatResponse as ChatResponse
    from chatstack.values.responses import ChatUpdate as ChatUpdate
    from chatstack.values.responses import ParsedResponse as ParsedResponse
    from chatstack.values.responses import Usage as Usage

_HOMES = {
    "chatstack.config.names": ("Allowed",),
    "chatstack.config.recipes": ("from_config",),
    "chatstack.tokens.counter": (
        "CharCounter",
        "TableCounter",
        "TokenCounter",
        "TokenizerCounter",
    ),
    "chatstack.context.strategies.pruning": ("OldestFirst",),
    "chatstack.context.strategy": ("Strategy",),
    "chatstack.context.edits.plans": ("Plan",),
    "chatstack.context.edits.context": ("Context",),
    "chatstack.context.memory.memory": ("ContextMemory",),
    "chatstack.context.requests.services": ("ContextServices",),
    "chatstack.layers.clearer": ("ToolResultClearer",),
    "chatstack.layers.shaper": ("ToolResultShaper",),
    "chatstack.tokens.calibration": ("Calibration",),
    "chatstack.tokens.windows": ("Windows",),
    "chatstack.context.strategies.condensing": ("ClearThenDrop",),
    "chatstack.tokens.estimating": ("EstimatingCounter",),
    "chatstack.context.memory.sharing": ("DecisionStore",),
    "chatstack.tools.recall": ("recall_tool",),
    "chatstack.nodes.state": ("AgentState",),
    "chatstack.nodes.managers": (
        "AwaitedContextManager",
        "BaseContextManager",
        "MessageContextManager",
        "StackContextManager",
        "StrategyContextManager",
    ),
    "chatstack.nodes.chat_node": ("ChatNode",),
    "chatstack.layers.budget": ("Budget",),
    "chatstack.layers.fallback": ("Fallback",),
    "chatstack.layers.guard": ("ContextWindowGuard",),
    "chatstack.layers.spending": ("Spending",),
    "chatstack.tokens.prices": ("Price",),
    "chatstack.layers.summarizer": ("Summarizer",),
    "chatstack.layers.summarizing": ("SummaryClient",),
    "chatstack.layers.window": ("ContextWindow",),
    "chatstack.loop.context": ("Cancellation", "IterativeContext"),
    "chatstack.loop.folder": ("FolderWorkspace",),
    "chatstack.loop.iterative": ("IterativeLoop",),
    "chatstack.loop.journal": ("Journal",),
    "chatstack.loop.results": ("IterationRecord", "IterativeResult", "ToolCallResult"),
    "chatstack.loop.workspace": ("MemoryWorkspace", "Workspace"),
    "chatstack.loop.workspace_tools": ("workspace_tools",),
    "chatstack.context.requests.attempts": ("SummaryAttempts",),
    "chatstack.context.strategies.truncating": ("Truncate",),
    "chatstack.tools.parameters": ("Injected", "ToolContext"),
    "chatstack.tools.tool": ("Tool", "tool"),
    "chatstack.tools.invoker": ("FunctionInvoker",),
    "chatstack.layers.progress": ("ProgressReporter",),
    "chatstack.client.fronts": ("ChatFronts",),
    "chatstack.client.protocol": (
        "ChatClient",
        "CountsTokens",
        "EditsNatively",
        "LayerKind",
        "ProviderInfo",
        "TellsKind",
        "TellsWindow",
        "find",
    ),
    "chatstack.stack.entries": ("LayerSpec", "named"),
    "chatstack.stack.recipe": ("BuiltClient", "ChatStack", "LayerOrderWarning"),
    "chatstack.client.stream": ("ChatStream",),
    "chatstack.client.sync": ("SyncClient", "SyncStream"),
    "chatstack.client.wiring": ("FROM_CONTAINER", "Layer", "Resolver"),
    "chatstack.errors": (
        "AuthenticationError",
        "BrokenStreamError",
        "BudgetExceeded",
        "ChatStackError",
        "ContextOverflowError",
        "FallbackError",
        "InputError",
        "MissingFileError",
        "OutputError",
        "ProviderConnectionError",
        "ProviderError",
        "ProviderTimeoutError",
        "RateLimitError",
        "RequestRefusedError",
        "ServerError",
        "StoreError",
        "StreamBusyError",
        "StreamClosedError",
        "ToolDeniedError",
        "ToolError",
        "ToolLoopError",
        "ToolTimeoutError",
        "TurnTimeoutError",
        "UnknownToolError",
        "UnusableRecordError",
        "WiringError",
        "WorkspaceError",
    ),
    "chatstack.providers.converters": (
        "from_anthropic",
        "from_openai_chat",
        "from_openai_responses",
        "to_anthropic",
        "to_openai_chat",
        "to_openai_responses",
    ),
    "chatstack.providers.wrapping.sdk_clients": ("wrap",),
    "chatstack.telemetry.agent_turns": ("agent_turn",),
    "chatstack.telemetry.emission": ("Telemetry",),
    "chatstack.telemetry.events": ("ProgressEvent",),
    "chatstack.telemetry.feed": ("ProgressEvents", "ProgressFeed"),
    "chatstack.telemetry.tracer": ("ModelTracer",),
    "chatstack.values.histories": ("from_json", "to_json"),
    "chatstack.values.messages": ("Annotation", "Message"),
    "chatstack.values.native": ("AppliedEdit", "NativeClearing", "NativeCompaction"),
    "chatstack.values.parts": (
        "File",
        "Image",
        "Part",
        "ProviderItem",
        "Reasoning",
        "Text",
        "ToolCall",
        "ToolResult",
    ),
    "chatstack.values.requests": ("ChatOptions", "ChatRequest", "OutputSchema", "ToolDeclaration"),
    "chatstack.values.responses": ("CallDelta", "ChatResponse", "ChatUpdate", "ParsedResponse", "Usage"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # without it, type checkers take the names above
    __all__ = sorted(_HOME_OF)

_ELSEWHERE = {
    "OpenAIChatClient": "chatstack.providers.openai",
    "OpenAIResponsesClient": "chatstack.providers.openai",
    "AnthropicChatClient": "chatstack.providers.anthropic",
    "ScriptedClient": "chatstack.testing",
    "TelemetryCapture": "chatstack.testing",
    "SQLiteStore": "chatstack.stores.sqlite",
    "SQLiteJournal": "chatstack.stores.sqlite_journal",
    "LiveView": "chatstack.workbench.live",
}
"""Names that people look for here, by the modules that need an extra or a file."""


def _missing(name: str) -> Exception:
    """The error for a name that is not here, with the one that was meant.

    An ``AttributeError``; for ``from chatstack import ...`` an ``ImportError``, as that statement would drop the text.
    """
    import difflib
    import inspect
    import opcode

    stem = name.lower().removesuffix("client").removesuffix("provider")  # "OpenAI", "AnthropicProvider", "testing"
    at_home = [each for each, home in _ELSEWHERE.items() if stem in home.split(".")[1:]]
    close = next(iter(at_home or difflib.get_close_matches(name, [*_HOME_OF, *_ELSEWHERE], n=1)), "")
    where = f"; {close} is in {_ELSEWHERE[close]}" if close in _ELSEWHERE else f"; did you mean {close!r}?"
    told = where if close else ""
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    if caller is not None and caller.f_lasti >= 0:
        instruction = caller.f_code.co_code[caller.f_lasti]
        if opcode.opname[instruction] == "IMPORT_FROM":
            return ImportError(f"cannot import name {name!r} from 'chatstack'{told}", name=name, path=__file__)
    return AttributeError(f"module 'chatstack' has no attribute {name!r}{told}", name=name)


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise _missing(name)
    found: object = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
