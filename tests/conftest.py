"""Two lanes: a plain run leaves out what needs a server or takes long, ``--full`` runs everything.

``server`` marks what needs a real model, a browser or a server program, ``slow`` what reads all recordings, starts many
processes or goes through thousands of cases. ``sampled(every)`` leaves one in so many cases of a test to the plain run,
and marks the others ``slow``. Property tests try fewer examples in a plain run; ``tests/histories.py`` has the numbers,
``--hypothesis-profile=fast`` asks for the few with ``--full``, too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

if sys.dont_write_bytecode:
    # The programs that tests start would each compile the same packages. What must not lie beside the sources may lie
    # in pytest's cache; workers and programs inherit this.
    sys.pycache_prefix = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import HealthCheck, settings

FULL_ONLY = ("server", "slow")

# No verdict of a property depends on how fast the machine is: neither a deadline nor the check for slow generation.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", PATIENT, max_examples=15)
settings.register_profile("full", PATIENT, max_examples=200)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help=f"run the tests marked {' or '.join(FULL_ONLY)}, too, and all examples"
    )


def pytest_configure(config: pytest.Config) -> None:
    asked: str | None = config.getoption("--hypothesis-profile")
    settings.load_profile(asked or ("full" if config.getoption("full") else "fast"))

    # Plain HTTP needs no certificates, and loading them is nearly all of the time that a client is made in.
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)


def pytest_report_header(config: pytest.Config) -> str:
    return "lane: full" if config.getoption("full") else "lane: fast (--full runs everything)"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the collector of garbage: there is hardly any, and it would look through all items each time."""
    gc.disable()
    try:
        begin_elsewhere(session.config, getattr(session.config, "workerinput", {}))
        return (yield)
    finally:
        gc.enable()


def begin_elsewhere(config: pytest.Config, worker: dict[str, object]) -> None:
    """Import another part of the tests first than the other workers do.

    In a new checkout it takes half a minute to compile them, with their asserts rewritten. The others read the result.
    """
    folder = Path(__file__).parent
    number, count = int(str(worker.get("workerid", "gw0")).removeprefix("gw")), int(str(worker.get("workercount", 1)))
    asked = [config.invocation_params.dir / each for each in config.args]
    files = [path for path in sorted(folder.rglob("test_*.py")) if any(map(path.is_relative_to, asked))]
    for path in files[len(files) * number // count :] if number else ():
        with contextlib.suppress(Exception, pytest.skip.Exception):  # which come again, and are told, in their turn
            importlib.import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)  # -m looks at the marks afterwards
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_all_but_samples(items)
    if config.getoption("full"):  # the long files first: none of them is left to one worker at the end
        items.sort(key=lambda item: not is_full_only(item.getparent(pytest.Module) or item))
        return
    left_out = [item for item in items if is_full_only(item)]
    config.hook.pytest_deselected(items=left_out)
    dropped = set(left_out)
    items[:] = [item for item in items if item not in dropped]


def mark_all_but_samples(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what is not in the sample of its test: the first case is, and every so many-th after it."""
    seen: Counter[str] = Counter()
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            name = item.nodeid.partition("[")[0]
            if seen[name] % marker.args[0]:
                item.add_marker("slow")
            seen[name] += 1


def is_full_only(node: pytest.Item | pytest.Module) -> bool:
    return any(node.get_closest_marker(name) for name in FULL_ONLY)


def pytest_collection_finish() -> None:
    keep_from_the_collector()


@pytest.hookimpl(trylast=True)  # what the module's fixtures held is garbage by then
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        keep_from_the_collector()


def keep_from_the_collector() -> None:
    """Exempt what there is from garbage collection: tests that call the collector would pay for it each."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Objects go with their last reference, or not at all."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
