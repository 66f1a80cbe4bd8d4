"""Connections to upstream that are used again, and that upstream closes meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asks import body
from test_fail_open import FORMS, answer, ask
from test_faults import SHORT, settings
from upstreams import Seen, Wire, serving, upstream


@pytest.mark.parametrize("observe", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_used_connection_that_is_closed_before_any_byte_came_is_a_502(form: str, observe: bool) -> None:
    """Never an empty 200, and never sent twice: upstream may have begun to answer, and to bill."""
    connections: list[object] = []

    async def once(seen: Seen, wire: Wire) -> None:
        connections.append(wire.writer.get_extra_info("peername"))
        if len(connections) == 2:
            wire.writer.close()
            raise ConnectionResetError
        await answer(seen, wire)

    with upstream(once) as api, serving(replace(settings(api.url), observe=observe)) as gateway:
        asked = body(form, SHORT)
        assert [ask(gateway.url, form, asked).status_code for _ in range(3)] == [200, 502, 200]
        assert connections[0] == connections[1] != connections[2]
        assert len(api.requests) == 3
