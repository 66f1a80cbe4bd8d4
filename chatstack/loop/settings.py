"""Settings of the iterative loop, checked when it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from chatstack.client.checks import check_client
from chatstack.client.options import PositiveFloat, PositiveInt, Share, check_options
from chatstack.client.protocol import ChatClient, chain, layer_kind
from chatstack.client.wiring import Resolver, wrong
from chatstack.errors import InputError
from chatstack.layers.spending import Allowance
from chatstack.loop.context import IterativeContext
from chatstack.loop.journal import Journal
from chatstack.loop.results import IterationRecord
from chatstack.loop.workspace import Workspace
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.feed import ProgressFeed
from chatstack.telemetry.tracer import traced
from chatstack.tokens.prices import Price
from chatstack.tokens.published import must_wait, tables_loaded
from chatstack.tools.execution import Approval
from chatstack.tools.options import checked_tools
from chatstack.tools.tool import Tool
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatOptions, ToolDeclaration

LoopMode: TypeAlias = Literal["single_call", "one_round_trip", "multi_round"]
PromptResult: TypeAlias = str | Message | Sequence[Message]
Prompt: TypeAlias = Callable[[IterativeContext], PromptResult | Awaitable[PromptResult]]
Completion: TypeAlias = Callable[[IterativeContext], bool | Awaitable[bool]]
_ITSELF = (Workspace, IterativeContext)
_STALLED = "a whole number, at least 2: one alone repeats nothing"


@dataclass(frozen=True, slots=True, eq=False)
class LoopSettings:
    """The settings of a run; see ``IterativeLoop``."""

    client: ChatClient
    instructions: str
    prompt: Prompt
    tools: Sequence[Tool[..., Any] | Callable[..., object]] = ()
    _: KW_ONLY
    is_complete: Completion | None = None
    mode: LoopMode = "one_round_trip"
    max_iterations: PositiveInt = 25
    max_tool_rounds: PositiveInt = 5
    max_total_tool_calls: PositiveInt | None = None
    max_stalled_iterations: Annotated[int, Meta(ge=2, description=_STALLED)] = 3
    max_tokens: PositiveInt | None = None
    max_cost: PositiveFloat | Decimal | None = None
    price: Price | None = None
    pressure: Share = 0.8
    max_concurrency: PositiveInt | None = None
    tool_timeout_seconds: PositiveFloat | None = None
    include_error_details: bool = False
    approve: Approval | None = field(default=None, repr=False)
    propagate: tuple[type[Exception], ...] = ()
    tool_filter: Callable[[str, IterativeContext], bool] | None = field(default=None, repr=False)
    on_iteration_start: Callable[[IterativeContext], object] | None = field(default=None, repr=False)
    on_iteration_end: Callable[[IterationRecord, IterativeContext], object] | None = field(default=None, repr=False)
    on_tool_call: Callable[[ToolCall, IterativeContext], object] | None = field(default=None, repr=False)
    options: ChatOptions = field(default_factory=ChatOptions, repr=False)
    journal: Journal | None = None
    name: str = "loop"
    resolve: Resolver | None = field(default=None, repr=False)
    feed: ProgressFeed = field(default_factory=ProgressFeed, repr=False)
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    allowance: Allowance = field(init=False, repr=False)
    asked_price: Price | None = field(init=False, repr=False, default=None)
    traced_client: ChatClient = field(init=False, repr=False)
    all_tools: tuple[Tool[..., Any], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_options(self, "IterativeLoop")
        for name in ("prompt", "is_complete", "tool_filter", "on_iteration_start", "on_iteration_end", "on_tool_call"):
            given: object = getattr(self, name)
            if not callable(given) and (given is not None or name == "prompt"):
                raise wrong("IterativeLoop", name, given, "a function")
        if any(layer_kind(layer) == "tool_loop" for layer in chain(self.client)):
            raise wrong(
                "IterativeLoop",
                "client",
                type(self.client).__name__,
                "one without a tool loop: this loop runs the tools",
            )
        for name, kind in (("journal", Journal), ("feed", ProgressFeed), ("options", ChatOptions)):
            service: object = getattr(self, name)
            is_one = isinstance(service, kind) and not isinstance(service, type)
            if not is_one and not (service is None and name == "journal"):
                raise wrong("IterativeLoop", name, service, f"a {kind.__name__}")
        check_client(self.client, "IterativeLoop", "client")
        object.__setattr__(self, "traced_client", traced(self.client, self.telemetry))
        tools = checked_tools(self, own_services=_ITSELF)
        declared = [each.name for each in self.options.tools if isinstance(each, ToolDeclaration)]
        if declared:
            raise wrong(
                "IterativeLoop", "options", f"ChatOptions(tools={declared})", "without functions; they go into tools"
            )
        object.__setattr__(self, "all_tools", tools)
        allowance = Allowance("IterativeLoop", self.max_tokens, self.max_cost, self.price)
        object.__setattr__(self, "allowance", allowance)
        if not (allowance.looks_up and must_wait()):
            self._find_price()

    async def prepare(self) -> None:
        """Look up the price, if that was not possible when the loop was made on a running event loop."""
        if self.allowance.looks_up and self.asked_price is None:
            await tables_loaded()
            self._find_price()

    def _find_price(self) -> None:
        object.__setattr__(self, "asked_price", self.allowance.price_of(self.client, self.options.model))

    @property
    def rounds(self) -> int:
        """Maximum number of rounds of tools in an iteration."""
        return {"single_call": 1, "one_round_trip": 2, "multi_round": self.max_tool_rounds}[self.mode]

    def allows(self, name: str, context: IterativeContext) -> bool:
        """Return True if that tool may be called now. Raises ``InputError`` if the filter returns no bool."""
        said = True if self.tool_filter is None else self.tool_filter(name, context)
        if not isinstance(said, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - a coroutine is no yes
            raise InputError(f"IterativeLoop: tool_filter gave a {type(said).__name__}, not True or False")
        return said


LoopSettings.__init__.__qualname__ = "IterativeLoop.__init__"  # told for a misspelt option: people write that name
