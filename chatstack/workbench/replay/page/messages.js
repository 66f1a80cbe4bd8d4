// The messages of a conversation, one row each, as they were at one call. Rows are made once and changed where needed.

class MessageList {
  constructor(course, moved, chose) {
    this.course = course;
    this.element = el("ol", { class: "messages", "aria-label": `Messages, ${visible(course.name)}` });
    this.rows = course.messages.map((message, index) => makeRow(message, index));
    this.added = { key: "", rows: [] };
    this.element.append(...this.rows.map((row) => row.element));
    this.element.addEventListener("keydown", (event) => this.pressed(event, moved));
    this.element.addEventListener("focusin", (event) => {
      const at = this.rows.findIndex((row) => row.summary === event.target);
      if (at >= 0) chose(at);
    });
    this.chosen = 0;
  }

  pressed(event, moved) {
    if (event.target.tagName !== "SUMMARY" || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") moved(event.key === "ArrowLeft" ? -1 : 1);
    else if (!["ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    else this.focusFrom(event.target, event.key);
    event.preventDefault();
  }

  focusFrom(summary, key) {
    const shown = [...this.element.querySelectorAll("summary")].filter((each) => each.closest("li").getClientRects().length);
    const at = shown.indexOf(summary);
    const to = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: shown.length - 1 }[key];
    shown[clamp(to, 0, shown.length - 1)]?.focus();
  }

  /** As it was at that call: what was sent, what was not, and the answer. */
  show(call) {
    const states = this.course.statesAt(call);
    const refused = Boolean(this.course.calls[call]?.refused);
    this.rows.forEach((row, index) => {
      row.element.hidden = index > states.length;
      if (index < states.length) setRow(row, states[index], states[index] === "c" ? this.course.textAt(index, call) : null);
      else if (index === states.length) setRow(row, refused ? "unasked" : "answer", null);
    });
    this.showAdded(listed(this.course.calls[call]?.added));
  }

  showAdded(added) {
    const key = JSON.stringify(added);
    if (key === this.added.key) return;
    for (const row of this.added.rows) row.element.remove();
    const rows = added.map((each) => {
      const row = makeRow({ role: "layer", text: each?.text, chars: each?.chars }, null);
      setRow(row, "added", null);
      row.summary.tabIndex = 0;
      this.element.insertBefore(row.element, this.rows[each?.before]?.element ?? null);
      return row;
    });
    this.added = { key, rows };
  }

  choose(index) {
    const last = this.rows[this.chosen];
    const row = this.rows[index];
    this.chosen = index;
    last?.element.classList.remove("chosen");
    if (last) last.summary.tabIndex = -1;
    if (!row) return;
    row.element.classList.add("chosen");
    row.summary.tabIndex = 0;
  }

  /** Scrolls the list, and not the page. */
  reveal(index) {
    const row = this.rows[index]?.element;
    if (!row || row.hidden) return;
    const list = this.element;
    const top = row.offsetTop - list.offsetTop;
    if (top < list.scrollTop || top + row.offsetHeight > list.scrollTop + list.clientHeight) {
      list.scrollTop = top - list.clientHeight / 3;
    }
  }

  open(index) {
    const row = this.rows[index];
    if (!row || row.element.hidden) return;
    row.details.open = true;
    this.reveal(index);
    row.summary.focus({ preventScroll: true });
  }
}

const TAGS = { "": "?", added: "put in", answer: "answer", unasked: "recorded" };

function makeRow(message, index) {
  const tag = el("span", { class: "tag" });
  const before = el("bdi", { class: "preview" });
  const summary = el(
    "summary",
    { tabindex: -1 },
    el("span", { class: "number" }, index === null ? "+" : String(index + 1)),
    bdi(preview(message?.role === "tool" && message.name ? message.name : message?.role, 60), "who"),
    tag,
    el("span", { class: "tokens", title: index === null ? null : "tokens, as it was recorded" }, index === null ? "" : count(message?.tokens)),
    before,
  );
  const details = el("details", {}, summary);
  const element = el("li", {}, details);
  const row = { element, details, summary, tag, before, message, index, state: null, sent: null, body: null };
  details.addEventListener("toggle", () => fillBody(row));
  return row;
}

/** The same state and text again change nothing, so that moving along the calls is quick. */
function setRow(row, state, sent) {
  if (row.state === state && row.sent === sent) return;
  row.state = state;
  row.sent = sent;
  const name = STATES[state]?.name ?? (state || "unknown");
  row.element.className = `message ${name}${row.element.classList.contains("chosen") ? " chosen" : ""}`;
  row.tag.textContent = STATES[state]?.name ?? TAGS[state];
  const called = row.message?.role === "assistant" && row.message.name ? `${row.message.name} ` : "";
  row.before.textContent = preview(sent?.text ?? called + (row.message?.text ?? "")) || `(${visible(row.message?.kind ?? "empty")})`;
  fillBody(row);
}

function fillBody(row) {
  row.body?.remove();
  row.body = null;
  if (!row.details.open) return;
  const { message, state, sent } = row;
  const recorded = textBlock(message?.text, message?.chars);
  const told = { f: "Not sent; a summary stands for it", d: "Not sent", c: "As it was recorded", "": "As it was recorded" }[state];
  row.body = el("div", { class: "body" });
  const place = sent ?? { text: "(not in this report)" };
  if (state === "c") row.body.append(el("h4", {}, "Sent in its place"), ...textBlock(place.text, place.chars));
  if (told) row.body.append(el("h4", {}, told));
  row.body.append(...recorded);
  row.details.append(row.body);
}

/** The text, as far as it is in the report, and how much of it that is, where it is not all. */
function textBlock(text, chars) {
  const shown = String(text ?? "");
  const block = el("div", { class: "text", dir: "auto" }, visible(shown));
  const length = [...shown].length; // whole characters, as the report counts them
  if (!(chars > length)) return [block];
  return [block, el("p", { class: "small" }, `The first ${count(length)} of ${count(chars)} characters.`)];
}
