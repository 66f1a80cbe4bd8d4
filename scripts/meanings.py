"""The meanings of warnings, spans, attributes and metrics, for the page of all of them.

``tests/docs/test_reference.py`` tells which is missing.
"""

from __future__ import annotations

WARNINGS = {
    "cache_missed": (
        "Tokens that were in the provider's prompt cache were not read from it; the reason is in "
        "`chatstack.cache.miss_reason`. Once per reason and conversation.",
        "Take clocks and ids out of the system prompt, and keep tools in one order. For `pause`, use a longer cache.",
    ),
    "context_irreducible": (
        "Nothing more may be removed, and the request is still too large.",
        "Look at the roles and sizes in the message: shorten the system prompt, the pinned messages or the question.",
    ),
    "context_layers_bypassed": (
        "The history lies at the provider (`previous_response_id`), so nothing is edited.",
        "Send the history yourself, or leave the edit to the provider (`native`).",
    ),
    "context_window_exceeded": (
        "The request was above the limit: it was pruned, sent as it is, or refused (`chatstack.guard.action`).",
        "Edit earlier: put `ToolResultShaper`, `ClearThenDrop` or `Summarizer` outside the guard.",
    ),
    "context_window_near_limit": (
        "The request has reached the guard's `warning_threshold`.",
        "Nothing, if edits follow. Else add a layer that edits, or start a new conversation.",
    ),
    "edit_ineffective": (
        "The trigger is reached, and what may be cleared does not get the request below it.",
        "Lower `keep`, exclude fewer tools, or drop messages as well (`ClearThenDrop`).",
    ),
    "iteration_limit_reached": (
        "An `IterativeLoop` has used up `max_iterations`, and is not complete.",
        "Look at its iterations: is `is_complete` ever true? Else raise the limit.",
    ),
    "layer_order": (
        "A layer stands where it cannot see what it should. Reported when the stack is built.",
        "Move it as the message says.",
    ),
    "messages_repaired": (
        "The history had calls without a result, results without a call, or results away from their call.",
        "Append `response.messages` as they are; keep calls and results together where you cut a history.",
    ),
    "plan_rejected": (
        "A strategy planned an edit that breaks a rule. The edit was not made.",
        "Fix the strategy: the message names the rule.",
    ),
    "prefix_unstable": (
        "A long history keeps coming with another beginning: no edit can be kept, and no prompt cache used.",
        "Send the whole history each time, and let the layers shorten it.",
    ),
    "progress_dropped": (
        "A listener of progress events was too slow, or raised an exception. Events were lost.",
        "Do less in the listener, or hand events to a queue of your own.",
    ),
    "repeated_tool_call": (
        "A tool was called for the third time in a turn with the same arguments.",
        "Make the tool's result say what to do next, or lower `max_tool_calls_per_turn`.",
    ),
    "store_unavailable": (
        "The store of decisions fails, or takes no writes. What it does not give or keep holds in this process alone.",
        "Fix the store. Until then processes may edit one conversation differently.",
    ),
    "summarizer_failed": (
        "No summary could be had. Nothing is lost: the next layer makes the request fit, and it is tried again.",
        "Look at the error on the span: the summary model, its key, its window.",
    ),
    "token_count_estimated": (
        "The provider was to count tokens, and does not. Sizes are estimates.",
        "Nothing, or use another counter.",
    ),
    "tool_loop_limit_reached": (
        "The turn has used up its tool calls. The model is asked to answer without more.",
        "Raise `max_tool_calls_per_turn`, or find out why the model goes on calling.",
    ),
    "tool_result_shortened": (
        "A new tool result was too large for the limit. The model sees its beginning and its end.",
        "Let the tool return less, or put a `ToolResultShaper` in the stack.",
    ),
    "tool_result_unwritable": (
        "A tool was run, and JSON has no form for what it returned. The model is told that it ran.",
        "Let the tool return text or plain values: the message names the type.",
    ),
    "usage_implausible": (
        "The provider reported usage that cannot be true. It counts as not reported. Once per conversation.",
        "Check the server behind `base_url`. Budgets do not see what it does not report.",
    ),
    "window_unknown": (
        "A limit depends on the model's window, and nobody knows it.",
        "Give `max_context_tokens` or the provider's `window_tokens` as a number, or install the extra `prices`.",
    ),
}
"""By code: the meaning, and what to do."""

SPANS = {
    "invoke_agent {agent_name}": ("INTERNAL", "`ProgressReporter`", "A turn: the root, with all warnings and edits"),
    "chat {model}": ("CLIENT", "`ModelTracer`", "A model call, also one that was refused"),
    "execute_tool {tool}": ("INTERNAL", "`FunctionInvoker`, `IterativeLoop`", "A tool call"),
    "context_guard": ("INTERNAL", "`ContextWindowGuard` and other layers", "A warning"),
    "compact_context {strategy}": (
        "INTERNAL",
        "layers that edit",
        "An edit, or a warning about one; model calls that write a summary are below it",
    ),
    "tool_loop": ("INTERNAL", "`FunctionInvoker`, `ContextWindow`", "A warning about tool calls"),
    "build_stack": ("INTERNAL", "`ChatStack.build`", "The warning `layer_order`"),
    "prompt_cache": ("INTERNAL", "`ModelTracer`", "The warning `cache_missed`"),
    "usage": ("INTERNAL", "`ModelTracer`", "The warning `usage_implausible`"),
    "progress": ("INTERNAL", "`ProgressReporter`", "The warning `progress_dropped`"),
    "iterative_loop": ("INTERNAL", "`IterativeLoop`", "The warning `iteration_limit_reached`"),
    "invoke_workflow {name}": ("INTERNAL", "`IterativeLoop`", "A run of the loop; its iterations are below it"),
}
"""By name: the kind, who opens it, and what it is."""

ATTRIBUTES = {
    "error.type": "The type of the error that ended the span's work",
    "gen_ai.agent.name": "`agent_name` of the reporter",
    "gen_ai.client.inference.operation.details": "Event with the text of messages, if capture is on",
    "gen_ai.conversation.compacted": "True on a model call that was sent an edited history",
    "gen_ai.conversation.id": "`conversation_id` of the call",
    "gen_ai.input.messages": "The messages, if capture is on",
    "gen_ai.operation.name": "`chat`, `invoke_agent`, `execute_tool` or `invoke_workflow`",
    "gen_ai.output.messages": "The answer, if capture is on",
    "gen_ai.output.type": "`json` where an `output_type` was asked for",
    "gen_ai.provider.name": "The provider: `openai`, `anthropic`",
    "gen_ai.request.max_tokens": "Limit on the answer, in tokens",
    "gen_ai.request.model": "The model that was asked for",
    "gen_ai.request.reasoning.level": "`reasoning_effort` of the options",
    "gen_ai.request.seed": "`seed` of the options",
    "gen_ai.request.stop_sequences": "`stop` of the options",
    "gen_ai.request.stream": "True where the caller streams",
    "gen_ai.request.temperature": "`temperature` of the options",
    "gen_ai.request.top_p": "`top_p` of the options",
    "gen_ai.response.finish_reasons": "Why the answer ended",
    "gen_ai.response.id": "The provider's id of the answer",
    "gen_ai.response.model": "The model that answered",
    "gen_ai.response.time_to_first_chunk": "Seconds until the first chunk of a streamed answer",
    "gen_ai.system_instructions": "The instructions, if capture is on",
    "gen_ai.token.type": "`input` or `output`",
    "gen_ai.tool.call.arguments": "The arguments of a tool call, if capture is on",
    "gen_ai.tool.call.id": "The id of a tool call",
    "gen_ai.tool.call.result": "The result of a tool call, if capture is on",
    "gen_ai.tool.definitions": "The declared tools, if capture is on",
    "gen_ai.tool.description": "The tool's description",
    "gen_ai.tool.name": "The tool's name",
    "gen_ai.tool.type": "`function`",
    "gen_ai.usage.cache_creation.input_tokens": (
        "The older name of `gen_ai.usage.cache_write.input_tokens`, which dashboards still read"
    ),
    "gen_ai.usage.cache_read.input_tokens": "Tokens read from the prompt cache",
    "gen_ai.usage.cache_write.input_tokens": "Tokens written to the prompt cache",
    "gen_ai.usage.input_tokens": "Input tokens as the provider reported them, cached ones included",
    "gen_ai.usage.output_tokens": "Output tokens as the provider reported them",
    "gen_ai.usage.reasoning.output_tokens": "Output tokens that were reasoning",
    "gen_ai.workflow.name": "`name` of the loop",
    "openai.request.service_tier": "`service_tier` of the options' `extra`, where the API is OpenAI's",
    "openai.response.service_tier": "The service tier that answered, where the API is OpenAI's; costs go by it",
    "server.address": "The provider's host",
    "server.port": "The provider's port",
    "chatstack.cache.miss_reason": (
        "Why: `head`, the system prompt or the instructions changed; `tools`, other tools; `order`, the same tools in "
        "another order; `pause`, more time than the cache lives"
    ),
    "chatstack.cache.missed_tokens": "Tokens that the call before left in the cache and this one did not read",
    "chatstack.cache.outcome": "`read`, `written` or `missed`, on the metric",
    "chatstack.compaction": "Prefix of an edit's sizes by kind: "
    "`{system,tools,text,reasoning,calls,results}_tokens_{before,after}`",
    "chatstack.compaction.ahead": "True on the span of a summary that is prepared in the background",
    "chatstack.compaction.messages_after": "Messages after the edit",
    "chatstack.compaction.messages_before": "Messages before the edit",
    "chatstack.compaction.native": "True where the provider made the edit",
    "chatstack.compaction.outcome": "Of a prepared summary: `written`, `used`, `failed`, `cancelled` or `dropped`",
    "chatstack.compaction.reason": "Why the edit was made now",
    "chatstack.compaction.strategy": "Who made the edit: `clear_tool_results`, `summarize`, `truncate`, ...",
    "chatstack.compaction.tokens_after": "Tokens after the edit",
    "chatstack.compaction.tokens_before": "Tokens before the edit",
    "chatstack.compaction.tool_results_cleared": "Tool results that were cleared",
    "chatstack.compaction.tool_results_shortened": "Tool results that were shortened",
    "chatstack.compaction.tool_results_deduplicated": "Tool results that a reference to an earlier one stands for",
    "chatstack.context.input_tokens": "Size of the request as the guard weighed it",
    "chatstack.context.messages": "Messages that came, after repair, while an edit is in force",
    "chatstack.context.messages_sent": "Messages that were sent, while an edit is in force",
    "chatstack.context.threshold": "The guard's `warning_threshold`",
    "chatstack.context.token_source": "`counted` or `estimated`",
    "chatstack.context.tokens_left_out": "Tokens that were left out, while an edit is in force",
    "chatstack.context.utilization": "Size of the request as a share of the limit",
    "chatstack.context.window_tokens": "The limit that the request was weighed against",
    "chatstack.edit": "Event of an edit",
    "chatstack.edit.count": "Edits in the turn, on the root",
    "chatstack.guard.action": "`warn`, `prune` or `reject`",
    "chatstack.iteration": "Number of the iteration, from 0",
    "chatstack.loop.end_reason": "Why an `IterativeLoop` ended",
    "chatstack.overhead.input_tokens": "Input tokens that the provider used beside the answer, as to compact",
    "chatstack.overhead.output_tokens": "Output tokens that the provider used beside the answer",
    "chatstack.progress.dropped": "Progress events that a listener lost",
    "chatstack.severity": "`WARN` or `INFO`: filter by it",
    "chatstack.tools.calls": "Tool calls so far",
    "chatstack.tools.limit": "The limit on tool calls",
    "chatstack.warning": "Event and log record of a warning",
    "chatstack.warning.code": "One of the codes above",
    "chatstack.warning.count": "Warnings in the turn, on the root",
    "chatstack.warning.message": "The warning in words, never with text of a message",
    "chatstack.warnings": "Codes of the turn's warnings, on the root",
    "input.value": "For OpenInference: what came in",
    "langfuse.observation.level": "For Langfuse: `WARNING`",
    "langfuse.observation.status_message": "For Langfuse: the warning in words",
    "logfire.level_num": "For Logfire: the level",
    "openinference.span.kind": "For OpenInference: `GUARDRAIL`, `CHAIN`, `LLM`, ...",
    "output.value": "For OpenInference: the warning or the edit in words",
}
"""By name: what it says."""

METRICS = {
    "chatstack.cache.tokens": ("counter", "Tokens read from, written to and missed in prompt caches"),
    "chatstack.compaction.prepared": ("counter", "Summaries that were prepared ahead, by what became of them"),
    "chatstack.compaction.tokens_removed": ("counter", "Tokens that edits removed, by strategy"),
    "chatstack.context.utilization": ("histogram", "Size of each request as a share of the guard's limit"),
    "chatstack.cost": ("counter", "Dollars for calls to models whose price is known; needs the extra `prices`"),
    "chatstack.edits": ("counter", "Edits, by strategy"),
    "chatstack.memory.evicted": ("counter", "Conversations that a full context memory let go of"),
    "chatstack.warnings": ("counter", "Warnings, by code"),
    "gen_ai.client.operation.duration": ("histogram", "Time of a model call"),
    "gen_ai.client.operation.time_per_output_chunk": ("histogram", "Time between two chunks of a stream"),
    "gen_ai.client.operation.time_to_first_chunk": ("histogram", "Time until the first chunk of a stream"),
    "gen_ai.client.token.usage": ("histogram", "Tokens of a model call, by `gen_ai.token.type`"),
    "gen_ai.execute_tool.duration": ("histogram", "Time of a tool call"),
    "gen_ai.invoke_agent.duration": ("histogram", "Time of a turn"),
    "gen_ai.invoke_workflow.duration": ("histogram", "Time of a run of an `IterativeLoop`"),
}
"""By name: the kind, and what is measured."""
