"""The licences of all that comes with chatstack, read from what is installed, without a network.

``uv run python -m scripts.licences`` looks at the core with all its extras; in the environment of a plugin,
``uv run python ../../scripts/licences.py chatstack-redis`` at that plugin's. Each distribution that is installed
because of these is told with its version and licence. The exit code is 1 if one is not on the list below, or names
none. What only tests and tools need is not looked at: nobody gets it with the package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ALLOWED = frozenset({
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0",
    "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
})  # fmt: skip
"""SPDX names of licences under which a library may come along with a product; of MPL, only its own files are bound."""
ALLOWED_FOR: Mapping[str, frozenset[str]] = {
    "psycopg": frozenset({"LGPL-3.0-only"}),  # imported, never copied: its licence stays with it
    "psycopg-binary": frozenset({"LGPL-3.0-only"}),
    "psycopg-pool": frozenset({"LGPL-3.0-only"}),
}
SPELLINGS: Mapping[str, str] = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd-3-clause license": "BSD-3-Clause",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "the mit license": "MIT",
    "the unlicense (unlicense)": "Unlicense",
}
"""Other spellings, and classifiers, in small letters, by the SPDX name."""
_CLASSIFIER = "License :: OSI Approved :: "


class Found(NamedTuple):
    """A distribution and its licence as an SPDX expression, "" if it names none that is known here."""

    name: str
    version: str
    licence: str

    @property
    def is_allowed(self) -> bool:
        """True if it may come along."""
        return is_allowed(self.licence, ALLOWED | ALLOWED_FOR.get(self.name, frozenset()))


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Return True for an SPDX expression of which all parts joined by ``AND``, and one of those by ``OR``, are
    allowed. Exceptions (``WITH``) only give more rights."""
    plain = re.sub(r"\s+WITH\s+\S+", "", expression).replace("(", " ").replace(")", " ").strip()
    if not plain:
        return False
    return all(
        any(name.strip() in allowed for name in re.split(r"\s+OR\s+", part)) for part in re.split(r"\s+AND\s+", plain)
    )


def licence_of(found: Distribution) -> str:
    """Return the licence as the metadata has it: the expression, else the classifiers, else a short text."""
    fields = found.metadata
    if expression := "".join(fields.get_all("License-Expression") or ()):
        return " AND ".join(_spdx(part) for part in re.split(r"\s+AND\s+", expression))
    classified = [each.removeprefix(_CLASSIFIER) for each in fields.get_all("Classifier") or () if _CLASSIFIER in each]
    if known := [SPELLINGS[each.lower()] for each in classified if each.lower() in SPELLINGS]:
        return " OR ".join(dict.fromkeys(known))
    text = "".join(fields.get_all("License") or ()).strip()
    return _spdx(text) if len(text) < 60 else ""


def _spdx(text: str) -> str:
    return SPELLINGS.get(text.lower(), text)


def installed_for(roots: Iterator[Requirement]) -> Iterator[Distribution]:
    """Yield every distribution that is installed because of these, themselves included."""
    waiting, seen = list(roots), set[tuple[str, str]]()
    told: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # an extra that is not installed, or for another platform
            continue
        if name not in told:
            told.add(name)
            yield found
        for extra in ("", *wanted.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                needs = map(Requirement, found.requires or ())
                waiting += [each for each in needs if _applies(each, extra)]


def _applies(needed: Requirement, extra: str) -> bool:
    """Return True if it is needed with that extra, "" for without; what is needed anyway is not asked again."""
    if needed.marker is None:
        return not extra
    return needed.marker.evaluate({"extra": extra}) and (not extra or not needed.marker.evaluate({"extra": ""}))


def licences(*roots: str) -> list[Found]:
    """Return the licences of all that is installed because of these requirements, by name."""
    found = installed_for(map(Requirement, roots))
    told = (Found(canonicalize_name(each.metadata["Name"]), each.version, licence_of(each)) for each in found)
    return sorted(told)


def main(roots: list[str]) -> int:
    found = licences(*(roots or ["chatstack-core[all]"]))
    rows = [
        f"{each.name:45} {each.version:15} {each.licence or '?'}{'' if each.is_allowed else '   NOT ALLOWED'}"
        for each in found
    ]
    refused = [each.name for each in found if not each.is_allowed]
    rows.append(f"{len(found)} distributions; not allowed: {', '.join(refused) or 'none'}")
    sys.stdout.write("\n".join(rows) + "\n")
    return 1 if refused or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
