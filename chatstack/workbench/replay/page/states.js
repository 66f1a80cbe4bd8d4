// What a policy did to each message, call by call, out of its short form.

const STATES = {
  k: { name: "sent", told: "sent as it is" },
  c: { name: "cleared", told: "cleared or otherwise edited" },
  f: { name: "folded", told: "folded into a summary" },
  d: { name: "dropped", told: "dropped" },
};

/** "12k3c" as [["k", 0, 12], ["c", 12, 15]], counted from `at`; what is no state is left out. */
function runsOf(states, length, at = 0) {
  const runs = [];
  for (const [, number, state] of String(states ?? "").matchAll(/(\d*)([a-z])/g)) {
    const end = Math.min(length, at + (number === "" ? 1 : Number(number)));
    if (STATES[state] && end > at) runs.push([state, at, end]);
    at = end;
  }
  return runs;
}

/** One policy in one conversation. */
class Course {
  constructor(story, policy) {
    this.name = String(policy?.name ?? "");
    this.calls = listed(policy?.calls);
    this.messages = listed(story.messages);
    this.ends = listed(story.calls).map((end) => clamp(Number(end) || 0, 0, this.messages.length));
    this.changes = new Map(); // message -> [[call, {text, chars}], ...], oldest first
    this.calls.forEach((each, call) => {
      for (const [index, sent] of Object.entries(each?.changed ?? {})) {
        if (!this.changes.has(Number(index))) this.changes.set(Number(index), []);
        this.changes.get(Number(index)).push([call, sent]);
      }
    });
  }

  /** Of each call; worked out when they are first asked for, as a list of conversations asks for none. */
  get runs() {
    let before = []; // of the last call that was not refused
    this.known ??= this.ends.map((end, call) => {
      const one = this.calls[call];
      const same = clamp(Number(one?.same) || 0, 0, end);
      const runs = before.filter(([, start]) => start < same).map(([state, start, stop]) => [state, start, Math.min(stop, same)]);
      runs.push(...runsOf(one?.states, end, same));
      if (!one?.refused) before = runs;
      return runs;
    });
    return this.known;
  }

  /** The letter of each message before a call; an empty one where nothing is known. */
  statesAt(call) {
    const found = new Array(this.ends[call] ?? 0).fill("");
    for (const [state, start, end] of this.runs[call] ?? []) found.fill(state, start, end);
    return found;
  }

  /** The beginning of what was sent in place of a message, and its length, as far as they are known. */
  textAt(message, call) {
    const found = (this.changes.get(message) ?? []).filter(([since]) => since <= call);
    return found.length ? found[found.length - 1][1] : null;
  }

  /** Whether a layer reported an edit in that call. */
  isEdited(call) {
    return listed(this.calls[call]?.why).length > 0;
  }

  /** All edits that layers reported. */
  get edits() {
    return this.calls.reduce((sum, call) => sum + listed(call?.why).length, 0);
  }

  /** All values that recorded answers used and that were not there any more. */
  get lost() {
    return this.calls.reduce((sum, call) => sum + (call?.lost_count ?? 0), 0);
  }
}
