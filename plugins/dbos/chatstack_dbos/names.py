"""Names by which DBOS knows runs, workers and queues; applications that share a database have none in common."""

from __future__ import annotations

WORKFLOW = "chatstack_run"
"""The name of the workflow in DBOS."""
DEFAULT_APPLICATION = "chatstack"
_VERSION = "chatstack-runs-1"
OF_OTHERS = "chatstack-application/"
"""What the keys of runs begin with in all applications but the default one, and no run's id does."""


def version_of(application: str) -> str:
    """Return the version of an application in DBOS, which gives a run only to workers of its version.

    It is the version of the records, not that of anybody's code: so a run that was started before an upgrade goes on
    after it. In a database it is one application's, so all but the default one have their name in it.
    """
    return _VERSION if application == DEFAULT_APPLICATION else f"{_VERSION}.{application}"


def queue_of(application: str, name: str) -> str:
    """Return the queue of the runs of that name: a worker listens only to those that it serves."""
    return f"{application}.{name}"


def key_of(application: str, run_id: str) -> str:
    """Return the id of a run's workflow, which is also the run in our tables: no two applications have one in common.

    In the default application it is the run's id.
    """
    return _prefix_of(application) + run_id


def run_of(application: str, key: str) -> str:
    """Return the id of the run that has this key in its application."""
    return key.removeprefix(_prefix_of(application))


def _prefix_of(application: str) -> str:
    return "" if application == DEFAULT_APPLICATION else f"{OF_OTHERS}{application}/"
