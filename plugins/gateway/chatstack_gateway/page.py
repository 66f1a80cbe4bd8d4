"""The page of a gateway: figures, without any text of a message. One file, no library, no request to anywhere else."""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .6rem 0 1.6rem; width: 100% }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #8884; white-space: nowrap }
td.n { text-align: right; font-variant-numeric: tabular-nums }
p { max-width: 46rem }
"""
_SCRIPT = """
const number = new Intl.NumberFormat("en");
const money = value => "$" + value.toFixed(4);
function row(cells, head) {
  const line = document.createElement("tr");
  for (const each of cells) {
    const cell = document.createElement(head ? "th" : "td");
    cell.textContent = typeof each === "number" ? number.format(each) : each;
    if (typeof each === "number" || /^[$]/.test(each)) cell.className = "n";
    line.append(cell);
  }
  return line;
}
function fill(id, head, rows) {
  document.getElementById(id).replaceChildren(row(head, true), ...rows.map(each => row(each, false)));
}
async function refresh() {
  const told = await (await fetch("activity", {cache: "no-store"})).json();
  const seen = told.observed;
  document.getElementById("watched").hidden = !seen.requests;
  fill("sides", [number.format(seen.requests) + " watched requests", "as they went", "by the pipeline"], [
    ["input tokens", seen.tokens, seen.would_tokens],
    ["of them read from a cache (computed)", seen.cached, seen.would_cached],
    ["requests that broke the cached prefix", seen.breaks, seen.would_breaks],
    ["requests with an edit", 0, seen.edited],
    ["cost of the priced calls", money(seen.usd), money(seen.would_usd)],
  ]);
  document.getElementById("unpriced").textContent = number.format(seen.unpriced);
  document.getElementById("reported").textContent = number.format(seen.reported_cached);
  document.getElementById("unobserved").textContent = number.format(told.unobserved);
  const unheard = told.unheard ? [["answers changed by a layer, of which callers got upstream's", told.unheard]] : [];
  fill("outcomes", ["what became of requests", "how many"], [...Object.entries(told.outcomes), ...unheard]);
  fill("latest", ["time", "model", "status", "outcome", "messages", "bytes", "bytes sent", "input tokens", "cached"],
    told.latest.slice(-50).reverse().map(each => [
      new Date(each.at * 1000).toLocaleTimeString(), each.model, String(each.status),
      each.reason ? each.outcome + ": " + each.reason : each.outcome, each.messages, each.bytes, each.sent,
      each.input_tokens, each.cached_tokens]));
}
refresh();
setInterval(refresh, 5000);
"""
PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>chatstack gateway</title><style>{_STYLE}</style>
<h1>chatstack gateway</h1>
<section id="watched" hidden>
<h2>What the pipeline would have done</h2>
<table id="sides"></table>
<p>Tokens of the pipeline's requests are estimated from those that the provider reported. Cache reads are computed alike
for both columns: a prefix is read if it was sent within the last five minutes; the provider itself reported
<b id="reported"></b> tokens. Costs leave out <b id="unpriced"></b> requests of models without a known price.
<b id="unobserved"></b> requests could not be tried.</p>
</section>
<h2>Requests</h2>
<table id="outcomes"></table>
<table id="latest"></table>
<script>{_SCRIPT}</script></html>
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


HEADERS = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; "
    f"script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; frame-ancestors 'none'; base-uri 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
