"""Names by which DBOS knows runs, workers and queues; applications that share a database have none in common."""

from __future__ import annotations

WORKFLOW = "chatstack_run"
"""The name of the workflow in DBOS."""
DEFAULT_APPLICATION = "chatstack"
_VERSION = "chatstack-runs-1"


def version_of(application: str) -> str:
    """Return the version of an application in DBOS, which gives a run only to workers of its version.

    It is the version of the records, not that of anybody's code: so a run that was started before an upgrade goes on
    after it. In a database it is one application's, so all but the default one have their name in it.
    """
    return _VERSION if application == DEFAULT_APPLICATION else f"{_VERSION}.{application}"


def queue_of(application: str, name: str) -> str:
    """Return the queue of the runs of that name: a worker listens only to those that it serves."""
    return f"{application}.{name}"
