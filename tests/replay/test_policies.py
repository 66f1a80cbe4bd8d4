"""The built-in policies, by name, and those from files beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatstack import ContextWindowGuard, InputError, find
from chatstack.replay.policies import BUILT_IN, policies_for
from chatstack.replay.running import Recorder


def test_all_built_in_policies_are_there_unless_some_are_named() -> None:
    names = [policy.name for policy in BUILT_IN]

    assert [policy.name for policy in policies_for([])] == names
    assert names[:4] == ["nothing", "guard", "sliding-window", "rolling-masking"]
    assert [policy.name for policy in policies_for([], ["guard", "nothing", "guard"])] == ["guard", "nothing"]


def test_a_name_that_no_policy_has_is_told_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"^--policy 'gard': no such policy; there are nothing, guard, sliding-window"):
        policies_for([], ["gard"])


def test_every_built_in_policy_can_be_built_for_any_ceiling() -> None:
    for policy in BUILT_IN:
        for ceiling in (1, 128_000):
            assert policy.stack(ceiling, Recorder(ceiling)).build()


def test_the_guard_prunes_at_the_ceiling() -> None:
    (guard,) = policies_for([], ["guard"])

    built = find(guard.stack(1_234, Recorder(1_234)).build(), ContextWindowGuard)

    assert built is not None
    assert (built.max_context_tokens, built.prune_on_overflow) == (1_234, True)


def test_a_pipeline_called_like_a_built_in_policy_keeps_its_path(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    path.write_text("{}")

    assert [policy.name for policy in policies_for([path], ["nothing"])] == ["nothing", str(path)]
    assert policies_for([path])[-1].name == str(path)
