"""The part of the layer contract about telemetry, and about telemetry that is down."""

from __future__ import annotations

import asyncio

from chatstack.errors import ServerError
from chatstack.telemetry.emission import Telemetry
from chatstack.testing.capture import TelemetryCapture
from chatstack.testing.conversations import CANARY
from chatstack.testing.exchanges import LayerUnderTest, same
from chatstack.testing.outages import failing_telemetry, silent_telemetry
from chatstack.testing.scripted import Answer, ScriptedClient
from chatstack.values.messages import Message


class TelemetryContract(LayerUnderTest):
    """No text of a message gets into telemetry, and failing telemetry affects no call."""

    def test_no_text_of_a_message_or_an_error_is_told(self) -> None:
        refused = ServerError(f"{CANARY} is not allowed")
        broken_off: Answer = ["well ", ServerError(f"{CANARY} is not allowed")]
        cases = [*self.cases(), *((f"{shape}, refused", h, (refused,)) for shape, h in self.histories.items())]
        cases.append(("an answer that breaks off", (Message.user(CANARY),), (broken_off,)))
        for name, history, answers in cases:
            capture = TelemetryCapture()
            for stream in (False, True):
                try:
                    asyncio.run(self.ask(ScriptedClient(answers), history, stream=stream, telemetry=capture.telemetry))
                except ServerError:
                    pass
            leaks = [line for line in capture.said().splitlines() if CANARY in line]
            same(leaks, [], f"{name}: spans, log records and metrics that quote")

    def test_it_works_without_an_opentelemetry_sdk(self) -> None:
        self._answers_as_ever(silent_telemetry())

    def test_an_exporter_that_fails_is_not_felt(self) -> None:
        with failing_telemetry() as telemetry:
            self._answers_as_ever(telemetry)

    def test_an_exporter_that_hangs_is_not_felt(self) -> None:
        with failing_telemetry(hangs=True) as telemetry:
            self._answers_as_ever(telemetry)

    def _answers_as_ever(self, telemetry: Telemetry) -> None:
        for name, answers in self.answers.items():
            for stream in (False, True):
                heard = self._heard(answers, telemetry, stream=stream)
                same(heard, self._heard(answers, TelemetryCapture().telemetry, stream=stream), f"{name}: the answer")

    def _heard(self, answers: tuple[Answer, ...], telemetry: Telemetry, *, stream: bool) -> object:
        history = (Message.user("hello " * 100), Message.assistant("yes?"), Message.user("how are you?"))
        response = asyncio.run(self.ask(ScriptedClient(answers), history, stream=stream, telemetry=telemetry))
        return response.messages, response.usage, response.finish_reason
