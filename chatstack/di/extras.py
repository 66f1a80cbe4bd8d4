"""Optional containers: importing one that is not installed raises an error that names the extra."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def needs_extra(module: str, package: str, extra: str) -> Generator[None]:
    """Wrap the import of ``package``: if it is missing, ``ModuleNotFoundError`` names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{module}: needs {package}; pip install 'chatstack-core[{extra}]'", name=error.name
        ) from error
