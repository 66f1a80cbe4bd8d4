"""Plugins: listed without an import, loaded when they are named, and clear errors for all that can be wrong."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from chatstack import ChatStack, Strategy, WiringError, find, plugins
from chatstack.config.recipes import LAYERS, from_config
from chatstack.testing import ScriptedClient
from tests.needed_options import NEEDED
from tests.plugin_fixtures import BROKEN, COUNTER, LAYER, PROVIDER, STORE, STRATEGY, Shop
from tests.plugin_fixtures import shop as shop  # a fixture


def wrong(*layers: object, **rest: object) -> str:
    with pytest.raises(WiringError) as caught:
        from_config({"layers": list(layers), **rest}, provider=ScriptedClient())
    return str(caught.value)


def test_listing_imports_nothing(shop: Shop) -> None:
    shop.install("acme-layers", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER}, version="2.1")
    shop.install("acme-broken", {"layers: broken": "acme_broken:Nothing"}, {"acme_broken": BROKEN})

    found = [each for each in plugins.available("chatstack.layers") if each.distribution.startswith("acme")]

    assert found == [
        plugins.Offer("chatstack.layers", "broken", "acme-broken", "1.0", "acme_broken:Nothing"),
        plugins.Offer("chatstack.layers", "redact", "acme-layers", "2.1", "acme_redact:Redactor"),
    ]
    assert not shop.was_imported("acme_redact")
    assert not shop.was_imported("acme_broken")


def test_a_group_that_there_is_not_is_an_error() -> None:
    with pytest.raises(
        WiringError, match=r"'chatstack\.layer' is no group of plugins; did you mean 'chatstack\.layers'"
    ):
        plugins.available("chatstack.layer")


@pytest.mark.parametrize("group", plugins.GROUPS)
def test_every_group_can_be_listed(shop: Shop, group: str) -> None:
    shop.install("acme", {f"{group.removeprefix('chatstack.')}: thing": "acme_thing:Thing"})

    assert [each.name for each in plugins.available(group) if each.distribution == "acme"] == ["thing"]


def test_a_layer_is_named_as_ours_are(shop: Shop) -> None:
    shop.install("acme", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})

    stack = from_config({"layers": [{"use": "redact", "words": ["x"]}]}, provider=ScriptedClient())

    from acme_redact import Redactor  # type: ignore[import-not-found]

    assert repr(stack) == repr(ChatStack(stack.provider).use(Redactor, words=("x",)))
    found = find(stack.build(), Redactor)
    assert found is not None
    assert found.words == ("x",)


def test_a_strategy_is_named_where_a_layer_is_and_takes_a_counter(shop: Shop) -> None:
    shop.install("acme", {"strategies: halves": "acme_halves:Halves"}, {"acme_halves": STRATEGY})

    built = from_config(
        {"layers": [{"use": "halves", "share": 0.25, "counter": "table"}]}, provider=ScriptedClient()
    ).build()

    strategy = built.layers[0].strategy  # type: ignore[attr-defined]
    assert isinstance(strategy, Strategy)
    assert repr(built).startswith("StrategyApplier(strategy=Halves(share=0.25), counter=TableCounter())")


def test_a_counter_is_named_with_its_options(shop: Shop) -> None:
    shop.install("acme", {"counters: words": "acme_words:Words"}, {"acme_words": COUNTER})
    layer = {"use": "ContextWindowGuard", "max_context_tokens": 9}

    assert "counter=Words(1)" in repr(from_config({"layers": [{**layer, "counter": "words"}]}, ScriptedClient()))
    options = {"use": "words", "per_word": 3}
    assert "counter=Words(3)" in repr(from_config({"layers": [{**layer, "counter": options}]}, ScriptedClient()))
    assert wrong({**layer, "counter": {"use": "words", "per_wort": 3}}) == (
        "config: layers[0].counter.per_wort: unknown option of Words; did you mean 'per_word'?"
    )


def test_a_store_is_named_with_its_options(shop: Shop) -> None:
    shop.install("acme", {"stores: shelf": "acme_shelf:Shelf"}, {"acme_shelf": STORE})
    store = {"use": "shelf", "url": "shelf://here", "ttl_seconds": 5}

    stack = from_config({"memory": {"store": store, "scope": "t"}}, provider=ScriptedClient())

    assert stack.memory is not None
    assert wrong(memory={"store": {"use": "shelf"}, "scope": "t"}) == "config: memory.store.url: is missing"
    assert wrong(memory={"store": {**store, "url": 3}, "scope": "t"}) == (
        "config: memory.store.url: expected str, got int: 3"
    )


def test_a_provider_is_named_and_given_the_model(shop: Shop) -> None:
    shop.install("acme", {"providers: parrot": "acme_parrot:parrot"}, {"acme_parrot": PROVIDER})

    made = from_config({"provider": {"use": "parrot", "model": "polly"}}).provider

    assert isinstance(made, ScriptedClient)
    assert made.answers == ["polly"]
    with pytest.raises(WiringError, match="provider: unknown key 'base_url'; known: model, use"):
        from_config({"provider": {"use": "parrot", "model": "polly", "base_url": "http://x"}})


def test_a_stack_that_names_no_plugin_is_the_same_with_plugins_installed(shop: Shop) -> None:
    recipe = {"layers": ["ProgressReporter", {"use": "ContextWindowGuard", "max_context_tokens": 9}]}
    provider = ScriptedClient()
    before = repr(from_config(recipe, provider).build())

    shop.install(
        "acme",
        {f"{group}: ProgressReporter": "acme_broken:Nothing" for group in ("layers", "strategies", "providers")}
        | {"counters: chars": "acme_broken:Nothing", "layers: ContextWindowGuard": "acme_broken:Nothing"},
        {"acme_broken": BROKEN},
    )

    assert repr(from_config(recipe, provider).build()) == before
    assert not shop.was_imported("acme_broken")


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_the_name_of_a_built_in_layer_cannot_be_taken(shop: Shop, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    shop.install("acme", {f"layers: {name}": "acme_broken:Nothing"}, {"acme_broken": BROKEN})
    stack = from_config({"layers": [{"use": name, **NEEDED.get(name, {})}]}, provider=ScriptedClient())

    assert stack.layers[0].source.__module__ == LAYERS[name]


def test_the_names_of_built_in_counters_stores_and_providers_cannot_be_taken(shop: Shop, tmp_path: Path) -> None:
    shop.install(
        "acme",
        {"counters: chars": "acme_b:N", "stores: sqlite": "acme_b:N", "providers: openai": "acme_b:N"},
        {"acme_b": BROKEN},
    )
    guard = {"use": "ContextWindowGuard", "max_context_tokens": 9, "counter": "chars"}
    store = {"use": "sqlite", "path": str(tmp_path / "a.sqlite")}

    from_config({"layers": [guard], "memory": {"store": store, "scope": "t"}}, provider=ScriptedClient())

    assert not shop.was_imported("acme_b")


@pytest.mark.parametrize(
    ("code", "cause", "told"),
    [
        (BROKEN, ModuleNotFoundError, "ModuleNotFoundError: No module named 'a_package_that_nobody_has'"),
        ("raise SystemExit(3)\n", SystemExit, "SystemExit: 3"),
        ("def f(:\n", SyntaxError, "SyntaxError: invalid syntax"),
        ("", AttributeError, "AttributeError: module 'acme_broken' has no attribute 'Nothing'"),
        ("raise ValueError('\\n'.join('ab' * 1_000))\n", ValueError, "ValueError: a b a b"),
    ],
    ids=["missing package", "exit", "syntax", "missing name", "long"],
)
def test_a_broken_plugin_fails_when_it_is_named_with_its_distribution_and_the_cause(
    shop: Shop, code: str, cause: type[BaseException], told: str
) -> None:
    shop.install("acme-broken", {"layers: broken": "acme_broken:Nothing"}, {"acme_broken": code}, version="0.3")
    from_config({"layers": ["ProgressReporter"]}, provider=ScriptedClient())

    with pytest.raises(WiringError) as caught:
        from_config({"layers": ["broken"]}, provider=ScriptedClient())

    text = str(caught.value)
    assert text.startswith(f"config: layers[0].use: layer 'broken' of acme-broken 0.3 cannot be loaded: {told}")
    assert isinstance(caught.value.__cause__, cause)
    assert "\n" not in text
    assert len(text) < 500


def test_a_target_that_is_none_is_a_broken_plugin(shop: Shop) -> None:
    shop.install("acme", {"layers: broken": "not a target"})

    assert wrong("broken").startswith("config: layers[0].use: layer 'broken' of acme 1.0 cannot be loaded: ")


def test_what_a_plugin_raises_when_it_is_made_has_its_place_and_its_distribution(shop: Shop) -> None:
    shop.install("acme", {"layers: taste": "acme_taste:BadTaste"}, {"acme_taste": LAYER})

    assert wrong({"use": "taste", "colour": "red"}) == (
        "config: layers[0]: RuntimeError: cannot abide red (plugin acme 1.0, 'taste')"
    )


@pytest.mark.parametrize(
    ("group", "section"),
    [
        ("counters", {"layers": [{"use": "ContextWindowGuard", "max_context_tokens": 9, "counter": "odd"}]}),
        ("stores", {"memory": {"store": "odd", "scope": "t"}}),
        ("providers", {"provider": {"use": "odd", "model": "m"}}),
        (
            "providers",
            {"layers": [{"use": "Summarizer", "max_tokens": 9, "summary_client": {"use": "odd", "model": "m"}}]},
        ),
        ("layers", {"layers": ["odd"]}),
    ],
)
@pytest.mark.parametrize("code", ["def Odd(*given): return 3\n", "Odd = 3\n", "def Odd(*given): raise KeyError('k')\n"])
def test_a_plugin_that_gives_something_else_is_told(
    shop: Shop, group: str, section: dict[str, object], code: str
) -> None:
    shop.install("acme", {f"{group}: odd": "acme_odd:Odd"}, {"acme_odd": code})

    with pytest.raises(WiringError, match=r"^config: [a-z\[\]0-9._]+: .*acme 1\.0"):
        from_config(section, provider=None if "provider" in section else ScriptedClient())


def test_a_layer_that_wraps_nothing_is_told(shop: Shop) -> None:
    shop.install("acme", {"layers: odd": "acme_odd:odd"}, {"acme_odd": "def odd(): pass\n"})

    assert wrong("odd") == (
        "config: layers[0].use: takes no inner client; a layer's first parameter is what it wraps "
        "(plugin acme 1.0, 'odd')"
    )


def test_an_unknown_name_is_told_with_the_nearest_one_a_plugins_included(shop: Shop) -> None:
    shop.install("acme", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})

    assert wrong("redacd") == "config: layers[0].use: 'redacd' is no layer; did you mean 'redact'?"
    assert not shop.was_imported("acme_redact")


def test_two_distributions_with_one_name_are_told_by_name(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.install("acme-one", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})
    shop.install("acme-two", {"strategies: redact": "acme_two:Redactor"}, {"acme_two": BROKEN}, version="2.0")

    told = wrong("redact")

    assert told.startswith("config: layers[0].use: layer 'redact' is offered by acme-")
    assert "acme-one 1.0" in told
    assert "acme-two 2.0" in told
    assert "CHATSTACK_PLUGINS" in told
    assert not shop.was_imported("acme_redact")
    monkeypatch.setenv("CHATSTACK_PLUGINS", "acme-one")
    from_config({"layers": ["redact"]}, provider=ScriptedClient())


def test_one_distribution_that_offers_a_name_twice_is_told(shop: Shop) -> None:
    shop.install(
        "acme",
        {"layers: redact": "acme_redact:Redactor", "strategies: redact": "acme_halves:Halves"},
        {"acme_redact": LAYER, "acme_halves": STRATEGY},
    )

    told = wrong("redact")

    assert told.startswith("config: layers[0].use: layer 'redact' is offered twice by acme 1.0: ")
    assert "acme_redact:Redactor (chatstack.layers)" in told
    assert "acme_halves:Halves (chatstack.strategies)" in told


@pytest.mark.parametrize(
    ("allowed", "loads"),
    [
        (None, True),
        ("", False),
        (" , ", False),
        ("acme-layers", True),
        ("other, Acme_Layers ,more", True),
        ("acme", False),
        ("redact", False),
    ],
)
def test_the_environment_says_which_distributions_may_be_loaded(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, allowed: str | None, loads: bool
) -> None:
    shop.install("acme-layers", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})
    if allowed is not None:
        monkeypatch.setenv("CHATSTACK_PLUGINS", allowed)

    assert [each.may_load for each in plugins.available("chatstack.layers") if each.name == "redact"] == [loads]
    if loads:
        from_config({"layers": ["redact"]}, provider=ScriptedClient())
    else:
        assert wrong("redact") == (
            "config: layers[0].use: layer 'redact' is offered by acme-layers 1.0, which may not be loaded: "
            f"CHATSTACK_PLUGINS={allowed!r} does not name it"
        )
    assert shop.was_imported("acme_redact") is loads


def test_what_may_not_be_loaded_is_not_suggested(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.install("acme", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})
    monkeypatch.setenv("CHATSTACK_PLUGINS", "")

    assert "redact'" not in wrong("redacd").replace("'redacd'", "")


def test_built_in_names_work_where_no_plugin_may_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATSTACK_PLUGINS", "")

    assert len(from_config({"layers": ["ProgressReporter"]}, provider=ScriptedClient()).layers) == 1


@pytest.mark.parametrize("points", ["[chatstack.layers]\nno equals sign\n", "\x00\xff", "[chatstack.layers"])
def test_a_distribution_whose_metadata_cannot_be_read_hides_no_other(shop: Shop, points: str) -> None:
    shop.install("aaa-torn", points)
    shop.install("acme", {"layers: redact": "acme_redact:Redactor"}, {"acme_redact": LAYER})
    (shop.folder / "nameless-1.0.dist-info").mkdir()
    (shop.folder / "nameless-1.0.dist-info" / "entry_points.txt").write_text("[chatstack.layers]\nx = y:z\n")

    assert "redact" in [each.name for each in plugins.available("chatstack.layers")]
    from_config({"layers": ["redact"]}, provider=ScriptedClient())


def test_of_a_distribution_that_is_installed_twice_the_first_on_the_path_counts(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.install("acme", {"layers: older": "acme_redact:Redactor"}, version="1.0", folder=tmp_path / "later")
    monkeypatch.syspath_prepend(str(tmp_path / "later"))
    monkeypatch.syspath_prepend(str(shop.folder))
    shop.install("acme", {"layers: newer": "acme_redact:Redactor"}, {"acme_redact": LAYER}, version="2.0")

    shop.install("bare", {"layers: gone": "acme_redact:Redactor"}, version="1.0", folder=tmp_path / "later")
    shop.install("bare", version="2.0")

    assert importlib.metadata.version("acme") == "2.0"
    assert [each for each in plugins.available("chatstack.layers") if each.distribution == "bare"] == []
    found = [each for each in plugins.available("chatstack.layers") if each.distribution == "acme"]
    assert [(each.name, each.version) for each in found] == [("newer", "2.0")]
