// Choosing a conversation, one policy or two, and a call.

const WIDE = 1100; // pixels from which two policies are shown side by side to begin with

class Stories {
  constructor(stories) {
    this.stories = stories;
    this.panes = [];
    this.call = this.message = 0;
    this.list = byId("story-list");
    this.slider = byId("call");
    this.names = [...new Set(stories.flatMap((story) => listed(story.policies).map((each) => String(each?.name ?? ""))))];
    this.wire();
    this.fillSelects();
    this.fillList();
    this.chooseStory(0);
  }

  wire() {
    this.list.addEventListener("keydown", (event) => this.pressed(event));
    this.slider.addEventListener("input", () => this.goTo(Number(this.slider.value) - 1, this.message));
    const buttons = {
      "call-before": () => this.step(-1), "call-after": () => this.step(1),
      "edit-before": () => this.toEdit(-1), "edit-after": () => this.toEdit(1),
    };
    for (const [id, press] of Object.entries(buttons)) byId(id).addEventListener("click", press);
    for (const id of ["policy-a", "policy-b"]) {
      byId(id).addEventListener("change", () => {
        this.fillList();
        this.fillPanes();
      });
    }
    byId("only-edited").addEventListener("change", () => this.hideSent());
  }

  /** First ours where it is there, else the last one; beside it the first other one that keeps the window. */
  fillSelects() {
    const kept = POLICIES.filter((policy) => statusOf(policy) === "kept").map(({ name }) => name);
    const first = this.names.includes("recommended") ? "recommended" : this.names[this.names.length - 1] ?? "";
    const others = this.names.filter((name) => name !== first);
    const second = innerWidth >= WIDE ? others.find((name) => kept.includes(name)) ?? others[0] ?? "" : "";
    const option = (name, words = visible(name)) => el("option", { value: this.names.indexOf(name) }, words);
    byId("policy-a").replaceChildren(...this.names.map((name) => option(name)));
    byId("policy-b").replaceChildren(option(null, "no other"), ...this.names.map((name) => option(name)));
    byId("policy-a").value = this.names.indexOf(first);
    byId("policy-b").value = this.names.indexOf(second);
  }

  get chosen() {
    return [byId("policy-a"), byId("policy-b")].map((select) => this.names[Number(select.value)]).filter((name) => name !== undefined);
  }

  courseOf(story, name) {
    return new Course(story, listed(story.policies).find((each) => String(each?.name ?? "") === name) ?? { name });
  }

  fillList() {
    this.list.replaceChildren(
      ...this.stories.map((story, index) => {
        const course = this.courseOf(story, this.chosen[0]);
        const about = `${counted(listed(story.messages).length, "message")}, ${counted(listed(story.calls).length, "call")}`;
        const did = `${counted(course.edits, "edit")}, ${count(course.lost)} lost`;
        const item = el(
          "li",
          { role: "option", id: `story-${index}`, "aria-selected": String(index === this.at), title: preview(`${story.file ?? ""}:${story.line ?? ""}`) },
          bdi(preview(story.id, 80) || `conversation ${index + 1}`, "id"),
          el("span", { class: "about" }, about, el("br"), did),
        );
        item.addEventListener("click", () => this.chooseStory(index));
        return item;
      }),
    );
  }

  pressed(event) {
    const to = { ArrowUp: this.at - 1, ArrowDown: this.at + 1, Home: 0, End: this.stories.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.chooseStory(clamp(to, 0, this.stories.length - 1));
  }

  chooseStory(index) {
    this.list.children[this.at]?.setAttribute("aria-selected", "false");
    this.at = index;
    const item = this.list.children[index];
    item.setAttribute("aria-selected", "true");
    this.list.setAttribute("aria-activedescendant", item.id);
    const top = item.offsetTop - this.list.offsetTop;
    if (top < this.list.scrollTop || top + item.offsetHeight > this.list.scrollTop + this.list.clientHeight) {
      this.list.scrollTop = top - this.list.clientHeight / 2;
    }
    this.message = 0;
    this.call = 0;
    this.fillPanes(true);
  }

  get story() {
    return this.stories[this.at];
  }

  get lastCall() {
    return Math.max(0, listed(this.story.calls).length - 1);
  }

  fillPanes(isNew = false) {
    const controls = {
      goTo: (call, message) => this.goTo(call, message),
      step: (by) => this.step(by),
      chooseMessage: (message) => this.goTo(this.call, message, false),
    };
    this.panes = this.chosen.map((name) => {
      const index = POLICIES.find((policy) => policy.name === name)?.index ?? null;
      return new Pane(this.courseOf(this.story, name), index, controls);
    });
    byId("panes").replaceChildren(...this.panes.map((pane) => pane.element));
    const first = isNew ? this.editFrom(-1, 1) ?? this.lastCall : this.call;
    this.hideSent();
    this.goTo(first, this.message);
  }

  hideSent() {
    for (const pane of this.panes) pane.list.element.classList.toggle("only-edited", byId("only-edited").checked);
  }

  step(by) {
    this.goTo(this.call + by, this.message);
  }

  /** The nearest call, from there on in that direction, in which a policy that is shown edited. */
  editFrom(call, direction) {
    for (let at = call + direction; at >= 0 && at <= this.lastCall; at += direction) {
      if (this.panes.some((pane) => pane.course.isEdited(at))) return at;
    }
    return null;
  }

  toEdit(direction) {
    const found = this.editFrom(this.call, direction);
    if (found !== null) this.goTo(found, this.message);
  }

  goTo(call, message, reveal = true) {
    this.call = clamp(call, 0, this.lastCall);
    const moved = message !== this.message;
    this.message = clamp(message, 0, Math.max(0, listed(this.story.messages).length - 1));
    for (const pane of this.panes) pane.show(this.call, this.message, reveal && moved);
    const calls = listed(this.story.calls).length;
    this.slider.max = Math.max(1, calls);
    this.slider.value = this.call + 1;
    this.slider.disabled = calls < 2;
    byId("call-at").textContent = calls ? `${count(this.call + 1)} of ${count(calls)}` : "no calls";
    this.slider.setAttribute("aria-valuetext", `call ${byId("call-at").textContent}`);
    setOff("call-before", this.call === 0);
    setOff("call-after", this.call === this.lastCall);
    setOff("edit-before", this.editFrom(this.call, -1) === null);
    setOff("edit-after", this.editFrom(this.call, 1) === null);
  }

  repaint() {
    paintMapKeys();
    for (const pane of this.panes) pane.map.repaint();
  }
}

/** Off, but still where the focus is: pressing it to the end must not throw anyone off the page's keys. */
function setOff(id, isOff) {
  byId(id).setAttribute("aria-disabled", String(isOff));
}
