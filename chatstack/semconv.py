"""The names of spans, attributes and metrics, in one place.

The ``gen_ai`` names follow OpenTelemetry's GenAI conventions as of November 2026, which are still in development and
moved between packages more than once: hence constants of our own, and no dependency on the package of constants.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

SCOPE: Final = "chatstack"

# GenAI conventions
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
CONVERSATION_COMPACTED: Final = "gen_ai.conversation.compacted"
OUTPUT_TYPE: Final = "gen_ai.output.type"
AGENT_NAME: Final = "gen_ai.agent.name"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
REQUEST_REASONING_LEVEL: Final = "gen_ai.request.reasoning.level"
REQUEST_SERVICE_TIER: Final = "openai.request.service_tier"
RESPONSE_SERVICE_TIER: Final = "openai.response.service_tier"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_WRITE: Final = "gen_ai.usage.cache_write.input_tokens"
USAGE_CACHE_CREATION: Final = "gen_ai.usage.cache_creation.input_tokens"  # the old name, which dashboards still read
USAGE_REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"

# GenAI conventions, only where the text of messages is captured
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
DETAILS_EVENT: Final = "gen_ai.client.inference.operation.details"

ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# Ours
SEVERITY: Final = "chatstack.severity"
WARNING_CODE: Final = "chatstack.warning.code"
WARNING_MESSAGE: Final = "chatstack.warning.message"
WARNINGS: Final = "chatstack.warnings"
WARNING_COUNT: Final = "chatstack.warning.count"
EDIT_COUNT: Final = "chatstack.edit.count"
ITERATION: Final = "chatstack.iteration"
END_REASON: Final = "chatstack.loop.end_reason"
GUARD_ACTION: Final = "chatstack.guard.action"
CONTEXT_INPUT_TOKENS: Final = "chatstack.context.input_tokens"
CONTEXT_WINDOW_TOKENS: Final = "chatstack.context.window_tokens"
CONTEXT_UTILIZATION: Final = "chatstack.context.utilization"
CONTEXT_THRESHOLD: Final = "chatstack.context.threshold"
CONTEXT_TOKEN_SOURCE: Final = "chatstack.context.token_source"
CONTEXT_MESSAGES: Final = "chatstack.context.messages"  # that came; this and the next two while an edit is in force
CONTEXT_MESSAGES_SENT: Final = "chatstack.context.messages_sent"
CONTEXT_TOKENS_LEFT_OUT: Final = "chatstack.context.tokens_left_out"
COMPACTION: Final = "chatstack.compaction"  # {system,tools,text,reasoning,calls,results}_tokens_{before,after} below it
COMPACTION_STRATEGY: Final = "chatstack.compaction.strategy"
COMPACTION_REASON: Final = "chatstack.compaction.reason"
COMPACTION_MESSAGES_BEFORE: Final = "chatstack.compaction.messages_before"
COMPACTION_MESSAGES_AFTER: Final = "chatstack.compaction.messages_after"
COMPACTION_TOKENS_BEFORE: Final = "chatstack.compaction.tokens_before"
COMPACTION_TOKENS_AFTER: Final = "chatstack.compaction.tokens_after"
COMPACTION_AHEAD: Final = "chatstack.compaction.ahead"  # True on the span of a summary that is prepared beside calls
COMPACTION_OUTCOME: Final = "chatstack.compaction.outcome"  # written, used, failed, cancelled, dropped
COMPACTION_RESULTS_CLEARED: Final = "chatstack.compaction.tool_results_cleared"
COMPACTION_NATIVE: Final = "chatstack.compaction.native"  # true where the provider has edited, on its side
COMPACTION_RESULTS_SHORTENED: Final = "chatstack.compaction.tool_results_shortened"
COMPACTION_RESULTS_DEDUPLICATED: Final = "chatstack.compaction.tool_results_deduplicated"  # sent as references
CACHE_MISSED: Final = "chatstack.cache.missed_tokens"
CACHE_MISS_REASON: Final = "chatstack.cache.miss_reason"
CACHE_OUTCOME: Final = "chatstack.cache.outcome"  # read, written, missed
OVERHEAD_INPUT: Final = "chatstack.overhead.input_tokens"  # used by the provider beside the answer, as to compact
OVERHEAD_OUTPUT: Final = "chatstack.overhead.output_tokens"
PROGRESS_DROPPED: Final = "chatstack.progress.dropped"
TOOLS_CALLS: Final = "chatstack.tools.calls"
TOOLS_LIMIT: Final = "chatstack.tools.limit"

WARNING_EVENT: Final = "chatstack.warning"
EDIT_EVENT: Final = "chatstack.edit"

# Display hints of dashboards that read more than the conventions
OPENINFERENCE_KIND: Final = "openinference.span.kind"
OPENINFERENCE_INPUT: Final = "input.value"
OPENINFERENCE_OUTPUT: Final = "output.value"
LANGFUSE_LEVEL: Final = "langfuse.observation.level"
LANGFUSE_MESSAGE: Final = "langfuse.observation.status_message"
LOGFIRE_LEVEL: Final = "logfire.level_num"

WarningCode: TypeAlias = Literal[
    "cache_missed",
    "context_window_near_limit",
    "context_window_exceeded",
    "context_irreducible",
    "context_layers_bypassed",
    "edit_ineffective",
    "iteration_limit_reached",
    "layer_order",
    "messages_repaired",
    "plan_rejected",
    "prefix_unstable",
    "progress_dropped",
    "repeated_tool_call",
    "store_unavailable",
    "summarizer_failed",
    "token_count_estimated",
    "tool_loop_limit_reached",
    "tool_result_shortened",
    "tool_result_unwritable",
    "usage_implausible",
    "window_unknown",
]
"""The codes of warnings. A routine edit is not a warning."""

# Metrics: name, unit, bucket boundaries
_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_AGENT_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_WORKFLOW_SECONDS: Final = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
_TOKENS: Final = tuple(float(4**power) for power in range(14))
_SHARES: Final = (0.1, 0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)

CHAT_DURATION: Final = ("gen_ai.client.operation.duration", "s", _SECONDS)
CHAT_FIRST_CHUNK: Final = ("gen_ai.client.operation.time_to_first_chunk", "s", _SECONDS)
CHAT_NEXT_CHUNK: Final = ("gen_ai.client.operation.time_per_output_chunk", "s", _SECONDS)
CHAT_TOKENS: Final = ("gen_ai.client.token.usage", "{token}", _TOKENS)
TOOL_DURATION: Final = ("gen_ai.execute_tool.duration", "s", _SECONDS)
AGENT_DURATION: Final = ("gen_ai.invoke_agent.duration", "s", _AGENT_SECONDS)
WORKFLOW_DURATION: Final = ("gen_ai.invoke_workflow.duration", "s", _WORKFLOW_SECONDS)
UTILIZATION: Final = ("chatstack.context.utilization", "1", _SHARES)
WARNING_METRIC: Final = ("chatstack.warnings", "{warning}")
EDIT_METRIC: Final = ("chatstack.edits", "{edit}")
COST_METRIC: Final = ("chatstack.cost", "{USD}")
TOKENS_REMOVED_METRIC: Final = ("chatstack.compaction.tokens_removed", "{token}")
PREPARED_METRIC: Final = ("chatstack.compaction.prepared", "{summary}")
CACHE_TOKENS_METRIC: Final = ("chatstack.cache.tokens", "{token}")
EVICTED_METRIC: Final = ("chatstack.memory.evicted", "{conversation}")
