"""Iterative loops and tool turns of chatstack as durable runs on DBOS."""

from chatstack_dbos.progress import RunEvents as RunEvents
from chatstack_dbos.progress import RunText as RunText
from chatstack_dbos.records import RecordSerializer as RecordSerializer
from chatstack_dbos.records import RunEnded as RunEnded
from chatstack_dbos.runs import DurableRuns as DurableRuns
from chatstack_dbos.serving import DurableLoop as DurableLoop
from chatstack_dbos.turns import DurableTurn as DurableTurn
from chatstack_dbos.worker import RunWorker as RunWorker

__all__ = [
    "DurableLoop",
    "DurableRuns",
    "DurableTurn",
    "RecordSerializer",
    "RunEnded",
    "RunEvents",
    "RunText",
    "RunWorker",
]
