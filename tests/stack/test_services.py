"""What the layers of one stack share."""

from __future__ import annotations

from typing import ClassVar

import pytest

from chatstack.stack.services import SharedServices


class Shared:
    shared_by_stack: ClassVar[bool] = True


class Better(Shared):
    pass


class Plain:
    pass


def test_a_shared_service_is_made_once_and_on_demand() -> None:
    resolve = SharedServices().behind(None)
    assert resolve(Shared) is resolve(Shared)


def test_every_resolver_of_the_same_services_hands_out_the_same() -> None:
    services = SharedServices()
    assert services.behind(None)(Shared) is services.behind(lambda kind: (_ for _ in ()).throw(LookupError(kind)))(
        Shared
    )


def test_a_class_that_is_not_shared_is_not_made() -> None:
    with pytest.raises(LookupError) as caught:
        SharedServices().behind(None)(Plain)
    assert caught.value.args == (Plain,)


def test_the_container_comes_first() -> None:
    bound = Shared()
    services = SharedServices()
    services.add(Shared())
    assert services.behind({Shared: bound}.__getitem__)(Shared) is bound


def test_what_was_added_stands_for_what_it_derives_from() -> None:
    better = Better()
    services = SharedServices()
    services.add(better)
    resolve = services.behind(None)
    assert resolve(Shared) is better
    assert resolve(Better) is better


def test_an_error_from_inside_the_container_surfaces() -> None:
    def broken(kind: type) -> object:
        raise RuntimeError("no database")

    with pytest.raises(RuntimeError, match="no database"):
        SharedServices().behind(broken)(Shared)


def test_the_repr_names_what_is_shared() -> None:
    services = SharedServices()
    assert repr(services) == "SharedServices()"
    services.behind(None)(Shared)
    assert repr(services) == "SharedServices(Shared)"
