// One policy in one conversation: its map, what it did at the chosen call, and the messages.

class Pane {
  constructor(course, index, controls) {
    this.course = course;
    this.title = el("h3", {}, index === null ? "" : swatch(index), bdi(course.name));
    this.map = new CourseMap(course, REPORT.window, controls.goTo, (message) => this.list.open(message));
    this.where = el("p", { class: "where" });
    this.summary = el("div", { class: "call" });
    this.list = new MessageList(course, controls.step, controls.chooseMessage);
    this.element = el("div", { class: "pane" }, this.title, this.map.element, this.where, this.summary, this.list.element);
    // What is said aloud is where the keys are: two panes would talk at the same time.
    this.element.addEventListener("focusin", () => this.where.setAttribute("aria-live", "polite"));
    this.element.addEventListener("focusout", () => this.where.removeAttribute("aria-live"));
  }

  show(call, message, reveal) {
    this.map.choose(call, message);
    this.list.show(call);
    this.list.choose(message);
    if (reveal) this.list.reveal(message);
    this.where.textContent = this.placed(call, message);
    this.summary.replaceChildren(...told(this.course, call));
  }

  placed(call, message) {
    const one = this.course.messages[message];
    if (!one) return "";
    const state = this.course.statesAt(call)[message];
    const is = state === undefined ? (message === this.course.ends[call] ? "the answer" : "still to come") : STATES[state]?.told ?? "not known";
    return `Call ${count(call + 1)}, message ${count(message + 1)} (${preview([one.role, one.name].filter(Boolean).join(" "), 60)}): ${is}.`;
  }
}

/** The chosen call in words. */
function told(course, call) {
  const one = course.calls[call];
  if (!one) return [el("p", {}, "Nothing is known of this call.")];
  const lines = [el("p", {}, sizes(one))];
  if (one.refused) lines.push(el("p", { class: "warned" }, "Refused, nothing was sent: ", bdi(preview(one.refused, 1000))));
  if (one.over) lines.push(el("p", { class: "warned" }, "More than the window."));
  lines.push(el("p", {}, tally(course.statesAt(call), listed(one.added).length)));
  if (one.broken) lines.push(el("p", {}, "Breaks the cached prefix."));
  const why = listed(one.why);
  if (why.length) lines.push(el("p", {}, "Edited: ", bdi(preview(why.join("; "), 1000))));
  const lost = listed(one.lost);
  if (lost.length) {
    const shown = lost.flatMap((each) => [el("code", {}, bdi(preview(each, 120))), " "]);
    const more = one.lost_count > lost.length ? `and ${count(one.lost_count - lost.length)} more` : "";
    lines.push(el("p", {}, "Used by the recorded answer and no longer there: ", ...shown, more));
  }
  return lines;
}

function sizes({ tokens, cached }) {
  if (!isNumber(tokens)) return "Tokens not known.";
  const share = REPORT.window > 0 ? `, ${percent(tokens / REPORT.window)} of the window` : "";
  return `${counted(tokens, "token")} sent${share}${isNumber(cached) ? `; ${count(cached)} from the cache` : ""}.`;
}

function tally(states, added) {
  const found = Object.entries(STATES).map(([state, { name }]) => [states.filter((each) => each === state).length, name]);
  if (added) found.push([added, "put in"]);
  return `Messages: ${found.filter(([number]) => number).map(([number, name]) => `${count(number)} ${name}`).join(", ") || "none"}.`;
}
