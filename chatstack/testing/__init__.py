"""For tests of your own: a client that plays a script, the contract every layer keeps, and a capture of telemetry.

The contract is a suite to subclass: write ``make``, and pytest runs its checks on your layer. What is the layer's own
is checked with a script for the model, and, where it says something, with a capture::

    import asyncio

    from chatstack import ChatStack, Message
    from chatstack.testing import LayerContract, ScriptedClient, TelemetryCapture

    class TestReminder(LayerContract):
        edits = True  # it changes what is sent

        def make(self, inner, telemetry):
            return Reminder(inner, text="Be brief.")

    def test_the_reminder_comes_first():
        model, capture = ScriptedClient(["fine"]), TelemetryCapture()
        client = ChatStack(model).use(Reminder, text="Be brief.").build(capture.resolve)
        assert asyncio.run(client.get_response("hello")).text == "fine"
        assert model.requests[0].messages == (Message.system("Be brief."), Message.user("hello"))
        assert capture.tree() == [("chat script", [])]

``ScriptedClient`` plays texts, messages, errors, and lists of deltas, tool calls and errors. The contract and the
capture need the OpenTelemetry SDK: ``pip install 'chatstack-core[otel]'``. ``StoreContract`` is the same for a store of
decisions, ``WorkspaceContract`` for a workspace: write ``make``, which gives one. ``ProviderContract`` is for a
provider, over real HTTP: ``chatstack.testing.provider_contract`` shows what to write.
"""

from chatstack.testing.capture import CapturedLog, CapturedSpan, MetricPoint, TelemetryCapture
from chatstack.testing.contract import LayerContract
from chatstack.testing.provider_contract import ProviderContract
from chatstack.testing.scripted import Answer, ScriptedClient
from chatstack.testing.store_contract import StoreContract
from chatstack.testing.workspace_contract import WorkspaceContract

__all__ = [
    "Answer",
    "CapturedLog",
    "CapturedSpan",
    "LayerContract",
    "MetricPoint",
    "ProviderContract",
    "ScriptedClient",
    "StoreContract",
    "TelemetryCapture",
    "WorkspaceContract",
]
