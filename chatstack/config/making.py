"""Make the objects that a config names, with its options; errors give the place in the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from chatstack import plugins
from chatstack.client.wiring import name_of
from chatstack.config.options import REQUIRED, Option, service_options, takes_any, unhinted
from chatstack.config.spellings import short_form
from chatstack.config.values import MESSAGE_CHARS, Config, converted, cut, key_shown, kind_of, nearest_to, table
from chatstack.errors import WiringError

_FOUND_ANYWHERE = 4
"""Minimum length, in characters, of a hidden text removed anywhere in an error; a shorter one only within quotes."""
_LOOKED_THROUGH = 1_000
"""Maximum number of values searched for hidden texts: nested aliases can stand for any number of values."""


def by(offer: plugins.Offer | None) -> str:
    """Return the suffix of an error that names the plugin; "" for a built-in thing."""
    return f" (plugin {offer.source}, {offer.name!r})" if offer is not None else ""


@contextmanager
def told_at(
    here: str,
    offer: plugins.Offer | None,
    *,
    made_by: object = None,
    layer: str = "",
    spelt: Mapping[str, str] | None = None,
    hidden: Collection[str] = (),
) -> Generator[None]:
    """Turn errors raised in the block into a ``WiringError`` with its place and, for a plugin, its distribution.

    ``spelt`` maps options to their spelling in the file, which is appended to the place; ``hidden`` has the texts that
    no error may quote. From built-in code only ``TypeError`` and ``ValueError`` are turned, as only wrong values are
    the config's fault; from a plugin, every error is.
    """
    try:
        yield
    except WiringError as error:
        option, _, inside = error.parameter.partition(".")
        theirs = (spelt or {}).get(option, "")
        place = f"{here}.{key_shown(theirs)}{f'.{inside}' if inside else ''}" if theirs else here
        text = str(error)
        for prefix in (f"layer {error.layer!r}", error.layer, "" if made_by is None else name_of(made_by)):
            text = text.removeprefix(f"{prefix}: ") if prefix else text
        text = cut(_without(hidden, text), MESSAGE_CHARS)
        named = layer or error.layer
        raise WiringError(f"{place}: {text}{by(offer)}", layer=named, parameter=error.parameter) from error
    except (Exception, SystemExit) as error:
        if offer is None and not isinstance(error, TypeError | ValueError):
            raise
        if offer is None:
            text = cut(_without(hidden, str(error)), MESSAGE_CHARS)
        else:
            text = plugins.told(error, hidden=lambda said: _without(hidden, said))
        raise WiringError(f"{here}: {text}{by(offer)}", layer=layer) from error


def taken(option: Option, value: object, place: str, *, layer: str = "") -> object:
    """Convert the value to the option's type hint. Raises ``WiringError``."""
    if (short := short_form(option.hint, value)) is not None:
        given = arguments(short, table(value, place), place, None)
        return made_of(short, given, place, None, wanted=option.name, methods=())
    hides = option.hides(value)
    return converted(value, option.hint, place, layer=layer, parameter=option.name, is_hidden=hides)


def hidden_texts(options: Config, known: Mapping[str, Option]) -> set[str]:
    """Return the texts in the values of these options that no error may quote."""
    waiting = [value for name, value in options.items() if known.get(name, unhinted(name)).hides(value)]
    found: set[str] = set()
    for _ in range(_LOOKED_THROUGH):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, str) and value:
            found.add(value)
        elif isinstance(value, Mapping):
            waiting.extend(cast("Config", value).values())
        elif isinstance(value, list | tuple):
            waiting.extend(cast("Sequence[object]", value))
    return found


def arguments(make: object, options: Config, here: str, offer: plugins.Offer | None) -> dict[str, object]:
    """Return the options for something that is not a layer, checked against its signature. Raises ``WiringError``."""
    with told_at(here, offer):
        known, is_open = {each.name: each for each in service_options(make)}, takes_any(make)
    given: dict[str, object] = {}
    for name, value in options.items():
        if name not in known and not is_open:
            told = f"unknown option of {name_of(make)}; {nearest_to(name, known)}"
            raise WiringError(f"{here}.{key_shown(name)}: {told}", parameter=name)
        given[name] = taken(known[name], value, f"{here}.{name}") if name in known else value
    return given


def made_of(
    make: object,
    given: Config,
    here: str,
    offer: plugins.Offer | None,
    *,
    wanted: str,
    methods: Sequence[str],
) -> object:
    """Call ``make`` with checked options. Raises ``WiringError`` if the result lacks one of these methods."""
    with told_at(here, offer):
        known = {each.name: each for each in service_options(make)}
    for name, option in known.items():
        if option.default is REQUIRED and name not in given:
            raise WiringError(f"{here}.{name}: is missing", parameter=name)
    spelt, hidden = {name: name for name in known}, hidden_texts(given, known)
    with told_at(here, offer, made_by=make, spelt=spelt, hidden=hidden):
        made = cast("Callable[..., object]", make)(**given)
    check_made(made, here, offer, wanted=wanted, methods=methods)
    return made


def check_made(made: object, here: str, offer: plugins.Offer | None, *, wanted: str, methods: Sequence[str]) -> None:
    """Refuse a made object of the wrong kind; a coroutine and a class are refused too, as both can have a ``send``."""
    told = f"{kind_of(made)} was made, which is no {wanted}"
    if isinstance(made, Coroutine):
        made.close()
        raise WiringError(f"{here}: {told}: whatever makes one cannot be async{by(offer)}")
    if isinstance(made, type):
        raise WiringError(f"{here}: the class {made.__name__} was made, and no {wanted} of it{by(offer)}")
    with told_at(here, offer):
        missing = [name for name in methods if not callable(getattr(made, name, None))]
    if missing or isinstance(made, Generator):
        lacks = f": it has no {', '.join(missing)}" if missing else ""
        raise WiringError(f"{here}: {told}{lacks}{by(offer)}")


def _without(hidden: Collection[str], text: str) -> str:
    """Return a foreign text with the hidden texts replaced by "..."."""
    for each in sorted(hidden, key=len, reverse=True):
        text = text.replace(repr(each), "...")
        if len(each) >= _FOUND_ANYWHERE:
            text = text.replace(each, "...")
    return text
