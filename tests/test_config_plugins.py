"""Plugins that give something odd, or raise where nobody expects it: a clear error with place and distribution."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chatstack import WiringError, from_config
from chatstack.cli import main
from chatstack.testing import ScriptedClient
from tests.plugin_fixtures import STORE, Shop
from tests.plugin_fixtures import shop as shop  # a fixture

CLIENT = "from chatstack.testing import ScriptedClient\n\n"
RAISES = """
class Loud(type):
    def __repr__(cls):
        raise RuntimeError("no repr")


class Odd(metaclass=Loud):
    def __init__(self, inner, *, size: int = 3):
        self.inner = inner

    def __repr__(self):
        raise RuntimeError("no repr")

    async def send(self, request, /):
        ...
"""


def told(recipe: dict[str, object]) -> str:
    with pytest.raises(WiringError) as caught:
        from_config(recipe, None if "provider" in recipe else ScriptedClient())
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("async def odd(model): return ScriptedClient()", "a coroutine was made, which is no chat client: .* async"),
        ("def odd(model): return ScriptedClient", "the class ScriptedClient was made, and no chat client of it"),
        ("def odd(model): yield ScriptedClient()", "a generator was made, which is no chat client"),
        ("def odd(model): return {}", "a dict was made, which is no chat client: it has no send"),
        ("def odd(model): raise KeyError(model)", "KeyError: 'm'"),
    ],
)
@pytest.mark.parametrize("place", ["provider", "layers[0].summary_client"])
def test_a_provider_is_a_client_and_nothing_that_could_pass_for_one(
    shop: Shop, code: str, text: str, place: str
) -> None:
    shop.install("acme", {"providers: odd": "acme_odd:odd"}, {"acme_odd": f"{CLIENT}\n{code}\n"})
    section = {"use": "odd", "model": "m"}
    layer = {"use": "Summarizer", "max_tokens": 9, "summary_client": section}

    found = told({"provider": section} if place == "provider" else {"layers": [layer]})

    assert re.fullmatch(rf"config: {re.escape(place)}: {text} \(plugin acme 1\.0, 'odd'\)", found)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("    async def put(self): ...\n    async def aclose(self): ...\n", "it has no find, forget"),
        ("    find = put = forget = 3\n    async def aclose(self): ...\n", "it has no find, put, forget"),
    ],
)
def test_a_store_that_lacks_methods_is_told_with_its_distribution(shop: Shop, code: str, text: str) -> None:
    shop.install("acme", {"stores: odd": "acme_odd:Odd"}, {"acme_odd": f"class Odd:\n{code}"})

    assert told({"memory": {"store": "odd", "scope": "t"}}) == (
        f"config: memory.store: an Odd was made, which is no DecisionStore: {text} (plugin acme 1.0, 'odd')"
    )


@pytest.mark.parametrize("make", ["async def odd(): return Shelf('u')", "def odd(): return Shelf"])
def test_a_store_is_made_and_no_promise_of_one(shop: Shop, make: str) -> None:
    shop.install("acme", {"stores: odd": "acme_odd:odd"}, {"acme_odd": f"{STORE}\n{make}\n"})

    assert re.fullmatch(
        r"config: memory\.store: (a coroutine|the class Shelf) was made, .* \(plugin acme 1\.0, 'odd'\)",
        told({"memory": {"store": "odd", "scope": "t"}}),
    )


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("Odd.__signature__ = 3", "layers[0].use"),
        ("class Odd(Odd):\n    __signature__ = property(lambda self: 1 / 0)\nOdd = Odd(None)", "layers[0].use"),
        ("class Odd(Odd):\n    def __call__(self): ...\nOdd = Odd(None)\nOdd.__signature__ = 3", "layers[0].use"),
        ("class Odd(Odd):\n    def __getattr__(self, name): 1 / 0\nOdd = Odd(None)", "layers[0].use"),
        ("class Odd(Odd):\n    kind = property(lambda self: 1 / 0)", "layers[0]"),
        ("class Odd(Odd):\n    send = property(lambda self: 1 / 0)", "layers[0]"),
        ("class Odd(Odd):\n    def __init__(self, inner, size: 'a b' = 3): ...", "layers[0].use"),
        ("class Quiet(Exception):\n    __str__ = None\ndef Odd(inner): raise Quiet", "layers[0]"),
        ("def Odd(inner): return Loud('Made', (), {'send': print})", "layers[0]"),
        ("def Odd(inner): yield inner", "layers[0]"),
        ("async def Odd(inner): return inner", "layers[0]"),
    ],
)
def test_a_layer_that_raises_when_it_is_looked_at_is_told(shop: Shop, code: str, place: str) -> None:
    shop.install("acme", {"layers: odd": "acme_odd:Odd"}, {"acme_odd": f"{RAISES}\n\n{code}\n"})

    found = told({"layers": [{"use": "odd"}]})

    assert re.fullmatch(rf"config: {re.escape(place)}: .*acme 1\.0.*", found)
    assert "'odd'" in found


def test_a_layer_whose_repr_raises_can_be_used_and_looked_at(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"{RAISES}\n\ndef made(inner, *, helper=Odd(None), size=3):\n    return inner\n"
    shop.install("acme", {"layers: odd": "acme_odd:Odd", "layers: made": "acme_odd:made"}, {"acme_odd": code})
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"layers": [{"use": "odd", "size": 4}, {"use": "made", "size": 4}]}))

    assert main(["inspect", str(path)]) == 0

    text = capsys.readouterr().out
    assert "helper  <Odd instance at " in text
    assert text.count("size    4  (default 3)") == 1


def test_a_bad_option_of_such_a_layer_is_told_too(shop: Shop) -> None:
    shop.install("acme", {"layers: odd": "acme_odd:Odd"}, {"acme_odd": RAISES})

    assert told({"layers": [{"use": "odd", "sise": 3}]}) == (
        "config: layers[0].sise: unknown option of odd; did you mean 'size'?"
    )
    assert told({"layers": [{"use": "odd", "size": "x"}]}) == "config: layers[0].size: expected int, got str: 'x'"


def test_equal_options_without_a_type_hint_make_one_counter_only_if_they_are_of_one_type(shop: Shop) -> None:
    code = (
        "from chatstack import TableCounter\n\n\nclass Words(TableCounter):\n"
        "    def __init__(self, how=None):\n        self.how = how\n"
    )
    shop.install("acme", {"counters: words": "acme_words:Words"}, {"acme_words": code})
    given: list[object] = [1, True, 1.0, 1, [1], [True], {"a": 1}, {"a": True}, {"a": 1}, [1, 2]]
    layers = [
        {"use": "Truncate", "name": str(number), "counter": {"use": "words", "how": how}}
        for number, how in enumerate(given)
    ]

    counters = [each.options["counter"] for each in from_config({"layers": layers}, ScriptedClient()).layers]

    assert [repr(counter.how) for counter in counters] == [repr(how) for how in given]  # type: ignore[attr-defined]
    assert counters[3] is counters[0]
    assert counters[8] is counters[6]
    assert len({id(each) for each in counters}) == len(given) - 2
