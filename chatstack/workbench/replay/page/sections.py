"""The sections of the page that are shown without a script, as HTML: one function of the figures for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from chatstack.workbench.replay.page.columns import Column, Figures, PolicyRow, Price, columns_of
from chatstack.workbench.replay.page.writing import Number, count, counted, decimals, outside, percent

_FILES_SHOWN = 20


_DOES = "every call within the window, with the latest user message, and nothing that a server would refuse"
_NOTHING = "nothing"
"""The policy that sends everything."""
_YOURS = ' class="yours"'


def title(figures: Figures) -> str:
    """Return the title of the browser's tab."""
    return f"Replay of {counted(figures.conversations, 'conversation')}, window {count(figures.window)}"


def facts(figures: Figures) -> str:
    """Return the facts of the replay: input, window, counter."""
    files = figures.files or []
    number = len(files) if figures.file_count is None else figures.file_count
    told = {
        "conversations": count(figures.conversations),
        "calls": count(figures.calls),
        "tokens of window": count(figures.window),
        "policies": count(len(figures.policies or [])),
        "counter": outside(figures.counter),
        "file" if number == 1 else "files": count(number),
    }
    values = next((row for row in figures.policies or [] if row.grounding_values is not None), None)
    if values is not None:
        far = f"{count(values.grounding_far_values)} far back"
        told["values looked for"] = f"{count(values.grounding_values)} <small>{far}</small>"
    if figures.tools is not None:
        told["tool schemas"] = f"{count(figures.tools.count)} <small>{counted(figures.tools.tokens, 'token')}</small>"
    if figures.joined:
        told["lines joined"] = f"{count(figures.joined)} <small>beginnings of others</small>"
    if figures.error_count:
        told["could not be read"] = f'<span class="note">{count(figures.error_count)}</span>'
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told.items())
        + "</dl>"
    )


def answer(figures: Figures) -> str:
    """Return the answer in sentences: what happens if nothing is done, the cheapest policy that fits, the reader's own,
    and who finds most."""
    policies = figures.policies or []
    if not policies:
        return '<p class="answer">No policy was replayed.</p>'
    kept = [row for row in policies if row.would_do]
    cheapest, cost = _best(kept, lambda row: None if row.cost_relative is None else -row.cost_relative)
    sentences = _undone(policies, figures)
    if not kept:
        sentences.append("No policy is known to fit. ")
    elif cost is None:
        sentences.append("What those that fit cost is not known. ")
    elif _NOTHING in [row.name for row in cheapest]:
        sentences.append("No policy that fits costs less than that. ")
    else:
        one = "The cheapest policy that fits is" if len(cheapest) == 1 else "The cheapest policies that fit are"
        shares = " and ".join(dict.fromkeys(_found(row) for row in cheapest if row.grounding is not None))
        told = f" {shares} of the values that later calls used were still there." if shares else ""
        sentences.append(f"{one} {_names(cheapest)}, at {_beside_everything(-cost)}.{told} ")
    sentences += [_yours(row) for row in policies if row.is_yours and row not in cheapest]
    finders, found = _best(kept, lambda row: row.grounding)
    if found is not None and cheapest and all(row.grounding == found for row in cheapest):
        sentences.append("None that fits finds more. ")
    elif found is not None:
        find = "finds" if len(finders) == 1 else "find"
        sentences.append(f"Of those that fit, {_names(finders)} {find} most: {percent(found)} %. ")
    sentences += _beyond(policies, found)
    number = f"{count(len(policies))} {'policy' if len(policies) == 1 else 'policies'}"
    sentences.append(f"Of {number} {count(len(kept))} fit: {_DOES}.")
    return f'<p class="answer">{"".join(sentences)}</p>'


def _undone(policies: Sequence[PolicyRow], figures: Figures) -> list[str]:
    """Return what happens if everything is sent; nothing where that was not replayed."""
    row = next((row for row in policies if row.name == _NOTHING), None)
    if row is None or row.over_limit is None:
        return []
    of = "" if figures.calls is None else f" of {count(figures.calls)}"
    window = "the window" if figures.window is None else f"the window of {counted(figures.window, 'token')}"
    if row.over_limit:
        goes = "goes" if row.over_limit == 1 else "go"
        return [f"If nothing is done, {counted(row.over_limit, 'call')}{of} {goes} over {window}. "]
    largest = "" if row.peak_tokens is None else f"; the largest has {counted(row.peak_tokens, 'token')}"
    return [f"If nothing is done, every call fits {window}{largest}. "]


def _beside_everything(cost: float) -> str:
    """Return a relative cost in words."""
    change = round(abs(cost - 1) * 100)
    if not change:
        return "the cost of sending everything"
    return f"{count(change)} % {'less' if cost < 1 else 'more'} than sending everything"


def _yours(row: PolicyRow) -> str:
    """Return a sentence on a stack of the reader's own."""
    cost = "at a cost that is not known" if row.cost_relative is None else f"at {_beside_everything(row.cost_relative)}"
    found = "" if row.grounding is None else f", and {_found(row)} found"
    fits = "fits" if row.would_do else f"does not fit ({_broke(row)})"
    return f"Yours, {_names([row])}, {fits}, {cost}{found}. "


def _found(row: PolicyRow) -> str:
    bare = f" ({percent(row.grounding_bare)} % without lists of names)" if row.lists_names else ""
    return f"{percent(row.grounding)} %{bare}"


def _beyond(policies: Sequence[PolicyRow], found: Number) -> list[str]:
    """Return a sentence on the policies that find more but do not fit."""
    finders, most = _best([row for row in policies if not row.would_do], lambda row: row.grounding)
    if most is None or (found is not None and most <= found):
        return []
    names = ", ".join(f"{_names([row])} ({_broke(row)})" for row in finders)
    return [f"More is found only by those that do not fit: {percent(most)} % by {names}. "]


def _broke(row: PolicyRow) -> str:
    told = [f"{counted(row.over_limit, 'call')} over"] if row.over_limit else []
    told += [f"{count(row.refused)} refused"] if row.refused else []
    told += [f"{count(row.invalid_requests)} invalid"] if row.invalid_requests else []
    told += [f"{count(row.latest_user_lost)} without the latest user message"] if row.latest_user_lost else []
    return ", ".join(told) or "not known"


def _best(rows: Iterable[PolicyRow], value: Callable[[PolicyRow], Number]) -> tuple[list[PolicyRow], Number]:
    """Return all rows that share the highest value, and that value; none if it is unknown for all."""
    known = [(row, found) for row in rows if (found := value(row)) is not None]
    best = max((found for _, found in known), default=None)
    return [row for row, found in known if found == best], best


def _names(rows: Iterable[PolicyRow]) -> str:
    names = list(dict.fromkeys(f"<strong>{outside(row.name)}</strong>" for row in rows))
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def table(figures: Figures) -> str:
    """Return a table with one row for each policy, and the plain figures for sorting."""
    columns = columns_of(figures)
    headings = "".join(
        f'<th scope="col" data-first="{each.first}"><span>{each.heading}</span></th>' for each in columns
    )
    rows = "".join(
        f'<tr{_YOURS if row.is_yours else ""}><th scope="row">{outside(row.name)}</th>'
        f"{''.join(_cell(each, row) for each in columns)}</tr>"
        for row in figures.policies or []
    )
    head = f'<thead><tr><th scope="col"><span>policy</span></th>{headings}</tr></thead>'
    return f'<table class="figures" id="figures">{head}<tbody>{rows}</tbody></table>'


def _cell(column: Column, row: PolicyRow) -> str:
    value = column.value(row)
    sorting = "" if value is None else f' data-value="{value:.12g}"'
    fault = ' class="bad"' if column.is_fault and value else ""
    return f"<td{sorting}{fault}>{column.tell(value)}</td>"


def faults(figures: Figures) -> str:
    """Return the reasons why requests were invalid and calls refused."""
    lines = [_faults_of(row.name, row.faults) for row in figures.policies or [] if row.faults]
    return f'<div class="notes"><h3>Refused calls and invalid requests</h3>{_items(lines)}</div>' if lines else ""


def _faults_of(name: str | None, faults: Mapping[str, Number]) -> str:
    reasons = (f"{outside(why)} ({count(number)})" for why, number in faults.items())
    return f"{outside(name)}: {', '.join(reasons)}"


def notes(figures: Figures) -> str:
    """Return the policies, recorded usage, assumptions, prices, files, read errors, and the meaning of each column."""
    about = [(row.name, row.about) for row in figures.policies or [] if row.about]
    parts = [
        _block("Policies", _pairs(about)),
        _block("Recorded usage", _items(outside(each) for each in (figures.recorded and figures.recorded.told) or [])),
        _block("Assumptions", _items(outside(each) for each in figures.assumptions or [])),
        _block("Prices", _prices(figures.prices or [])),
        _block("Dearest conversations", _pairs(_dearest(figures.policies or []))),
        _block("Figures", f"<dl>{''.join(_definition(each) for each in columns_of(figures))}</dl>"),
        _block("Files", _files(figures)),
        _block("Left out", _items(f"{outside(what)}: {count(number)}" for what, number in _left_out(figures))),
        _block("Could not be read", _unread(figures)),
    ]
    return "".join(parts)


def _dearest(rows: Iterable[PolicyRow]) -> list[tuple[str | None, str]]:
    return [
        (
            row.name,
            f"{decimals(found.cost_relative)} of sending everything of it: number {count(found.number)}, {found.id}",
        )
        for row in rows
        if (found := row.dearest) is not None
    ]


def _block(heading: str, body: str) -> str:
    return f"<h3>{heading}</h3>{body}" if body else ""


def _items(lines: Iterable[str]) -> str:
    found = "".join(f"<li>{line}</li>" for line in lines)
    return f"<ul>{found}</ul>" if found else ""


def _pairs(pairs: Sequence[tuple[str | None, str | None]]) -> str:
    items = "".join(f"<dt>{outside(name)}</dt><dd>{outside(told)}</dd>" for name, told in pairs)
    return f"<dl>{items}</dl>" if items else ""


def _definition(column: Column) -> str:
    return f"<dt>{' '.join(column.heading.split())}</dt><dd>{column.about}</dd>"


def _prices(prices: Sequence[Price]) -> str:
    if not prices:
        return "<p>No price is known of the recorded models.</p>"
    headings = ("input", "from cache", "to cache", "cached from", "lives for", "source")
    head = "".join(f'<th scope="col"><span>{each}</span></th>' for each in headings)
    rows = "".join(
        f'<tr><th scope="row">{outside(each.model)}</th><td>{_per_million(each.input)}</td>'
        f"<td>{_per_million(each.read)}</td><td>{_per_million(each.write)}</td>"
        f"<td>{counted(each.minimum_prefix_tokens, 'token')}</td><td>{counted(each.lifetime_seconds, 'second')}</td>"
        f"<td>{outside(each.source)}</td></tr>"
        for each in prices
    )
    return (
        "<p>Dollars for a million tokens.</p>"
        '<div class="wide" role="region" aria-label="Prices" tabindex="0"><table class="figures prices">'
        f'<thead><tr><th scope="col"><span>model</span></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _per_million(price: Number) -> str:
    return "–" if price is None else f"{price:,.4g}" if price < 1 else f"{price:,.2f}"


def _files(figures: Figures) -> str:
    files = figures.files or []
    more = len(files) if figures.file_count is None else int(figures.file_count)
    lines = [outside(each) for each in files[:_FILES_SHOWN]]
    if figures.tools is not None and figures.tools.file:
        lines.append(f"{outside(figures.tools.file)} (tool schemas)")
    hidden = more - min(len(files), _FILES_SHOWN)
    return _items([*lines, f"and {count(hidden)} more"] if hidden > 0 else lines)


def _left_out(figures: Figures) -> list[tuple[str, Number]]:
    return sorted((figures.left_out or {}).items())


def _unread(figures: Figures) -> str:
    errors = figures.errors or []
    places = [f"{outside(each.file)}, line {count(each.line)}: {outside(each.error)}" for each in errors]
    hidden = int(figures.error_count or 0) - len(errors)
    return _items([*places, f"and {count(hidden)} more"] if hidden > 0 else places)
