// The map of a conversation: messages down, calls across, what was done to each; above it the tokens of each call.
// It is painted: as elements, 500 messages by 250 calls would be 125,000 of them.

const GUTTER = 44;
const MAP_HEIGHT = 400;
const STRIP_HEIGHT = 64;
const STRIP_FOOT = 10; // where edits are marked
const MOST_PIXELS = 16000; // a canvas that is higher stays empty in some browsers

class CourseMap {
  constructor(course, window, moved, opened) {
    this.course = course;
    this.window = isNumber(window) ? window : 0;
    this.strip = el("canvas", { "aria-hidden": "true" });
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.box = el(
      "div",
      { class: "map", tabindex: 0, role: "application", "aria-label": `Map of ${visible(course.name)}`, "aria-describedby": "map-help" },
      this.canvas,
    );
    this.element = el("div", {}, this.strip, this.box);
    this.call = this.message = 0;
    this.box.addEventListener("keydown", (event) => this.pressed(event, moved, opened));
    for (const canvas of [this.strip, this.canvas]) {
      canvas.addEventListener("pointerdown", (event) => moved(...this.under(event, canvas)));
      canvas.addEventListener("pointermove", (event) => event.buttons === 1 && moved(...this.under(event, canvas)));
    }
    onWidth(this.element, (width) => this.resize(width));
  }

  pressed(event, moved, opened) {
    const steps = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -10], PageDown: [0, 10],
      Home: [-Infinity, 0], End: [Infinity, 0],
    };
    const step = steps[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey || (!step && event.key !== "Enter")) return;
    event.preventDefault();
    if (step) moved(this.call + step[0], this.message + step[1]);
    else opened(this.message);
  }

  under(event, canvas) {
    const { left, top } = canvas.getBoundingClientRect();
    const call = Math.floor((event.clientX - left - GUTTER) / this.across);
    return [call, canvas === this.strip ? this.message : Math.floor((event.clientY - top) / this.down)];
  }

  resize(width) {
    this.width = width;
    this.repaint();
  }

  /** All of it, for another size or other colours. */
  repaint() {
    if (!this.width) return;
    const { ends, messages } = this.course;
    this.across = Math.min(30, (this.width - GUTTER - 18) / Math.max(1, ends.length));
    this.down = Math.min(MOST_PIXELS / Math.max(1, messages.length), clamp(MAP_HEIGHT / Math.max(1, messages.length), 2, 15));
    this.height = Math.max(1, Math.ceil(messages.length * this.down) + 1);
    this.colours = coloursOf(["k", "c", "f", "d", "c-mark", "f-mark", "d-mark", "ink", "soft", "page", "line", "focus",
      "added", "fresh", "cached", "over", "warn"]);
    this.painted = this.paintMap();
    this.paintStrip();
    this.choose(this.call, this.message);
  }

  left(call) {
    return Math.round(GUTTER + call * this.across);
  }

  paintMap() {
    const painted = document.createElement("canvas");
    const pen = sized(painted, this.width, this.height);
    const gap = this.across >= 5 ? 1 : 0;
    const withLetters = this.across >= 11 && this.down >= 10;
    const fills = withLetters ? this.colours : patterns(pen, this.colours);
    this.course.runs.forEach((runs, call) => {
      const x = this.left(call);
      const w = Math.max(1, this.left(call + 1) - x - gap);
      for (const [state, start, end] of runs) {
        const y = Math.round(start * this.down);
        pen.fillStyle = fills[state];
        pen.fillRect(x, y, w, Math.max(1, Math.round(end * this.down) - y));
        if (withLetters && state !== "k") this.letters(pen, state, x + w / 2, start, end);
      }
      for (const each of listed(this.course.calls[call]?.added)) {
        pen.fillStyle = this.colours.added;
        pen.fillRect(x, clamp(Math.round((each?.before ?? 0) * this.down) - 1, 0, this.height - 3), w, 3);
      }
    });
    this.rule(pen);
    return painted;
  }

  letters(pen, state, middle, start, end) {
    pen.fillStyle = this.colours[`${state}-mark`];
    pen.font = "9px sans-serif";
    pen.textAlign = "center";
    for (let at = start; at < end; at += 1) pen.fillText(state, middle, at * this.down + this.down / 2 + 3);
  }

  /** Thin lines between messages, and their numbers. */
  rule(pen) {
    const { messages } = this.course;
    pen.fillStyle = this.colours.page;
    if (this.down >= 5) messages.forEach((_, at) => pen.fillRect(GUTTER, Math.round(at * this.down) - 1, this.width, 1));
    pen.fillStyle = this.colours.soft;
    pen.font = "10px sans-serif";
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((each) => each * this.down >= 15) ?? 1000;
    messages.forEach((message, at) => {
      const middle = at * this.down + this.down / 2 + 3.5;
      pen.textAlign = "right";
      if ((at + 1) % step === 0 || (step === 1 && at === 0)) pen.fillText(String(at + 1), GUTTER - 18, Math.max(9, middle));
      pen.textAlign = "center";
      if (this.down >= 9) pen.fillText(roleLetter(message), GUTTER - 9, middle);
    });
  }

  paintStrip() {
    const pen = sized(this.strip, this.width, STRIP_HEIGHT + STRIP_FOOT + 2);
    const { calls, ends } = this.course;
    const most = Math.max(1, this.window * 1.1, ...calls.map((call) => call?.tokens ?? 0));
    const high = (tokens) => Math.round((clamp(tokens ?? 0, 0, most) / most) * (STRIP_HEIGHT - 12));
    const gap = this.across >= 5 ? 1 : 0;
    ends.forEach((_, at) => {
      const call = calls[at] ?? {};
      const x = this.left(at);
      const w = Math.max(1, this.left(at + 1) - x - gap);
      pen.fillStyle = call.over ? this.colours.over : this.colours.fresh;
      pen.fillRect(x, STRIP_HEIGHT - high(call.tokens), w, high(call.tokens));
      pen.fillStyle = this.colours.cached;
      pen.fillRect(x, STRIP_HEIGHT - high(call.cached), w, high(call.cached));
      pen.fillStyle = this.colours.ink;
      if (this.course.isEdited(at)) pen.fillRect(x + Math.max(0, w / 2 - 1), STRIP_HEIGHT + 3, Math.min(2, w), 6);
      pen.fillStyle = this.colours.warn;
      if (call.refused) cross(pen, this.colours.warn, x + w / 2, STRIP_HEIGHT - 6);
    });
    pen.fillStyle = this.colours.warn;
    if (this.window) pen.fillRect(GUTTER, STRIP_HEIGHT - high(this.window), Math.ceil(ends.length * this.across), 1);
    pen.font = "10px sans-serif";
    pen.textAlign = "right";
    if (this.window) pen.fillText(short(this.window), GUTTER - 5, STRIP_HEIGHT - high(this.window) + 3);
    pen.fillStyle = this.colours.soft;
    const top = Math.max(0, ...calls.map((call) => call?.tokens ?? 0));
    for (const tokens of [0, top]) {
      const isClear = !this.window || Math.abs(high(tokens) - high(this.window)) > 11;
      if (isClear) pen.fillText(short(tokens), GUTTER - 5, STRIP_HEIGHT - high(tokens) + (tokens ? 3 : 0));
    }
  }

  /** Shows which call and message are chosen. */
  choose(call, message) {
    this.call = call;
    this.message = message;
    if (!this.painted) return;
    const pen = sized(this.canvas, this.width, this.height);
    if (this.painted.width && this.painted.height) pen.drawImage(this.painted, 0, 0, this.width, this.height);
    pen.strokeStyle = this.colours.focus;
    pen.lineWidth = 2;
    const x = this.left(call);
    pen.strokeRect(x - 1, 1, Math.max(3, this.left(call + 1) - x + 1), this.height - 2);
    const y = Math.round(message * this.down);
    pen.lineWidth = 1;
    pen.strokeRect(GUTTER - 3.5, y - 0.5, Math.ceil(this.course.ends.length * this.across) + 6, Math.max(3, Math.round(this.down)));
    if (y < this.box.scrollTop || y + this.down > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = y - this.box.clientHeight / 2;
    }
  }
}

function roleLetter(message) {
  return { system: "S", user: "U", assistant: "A", tool: "T" }[message?.role] ?? "";
}

function short(tokens) {
  return tokens >= 1000 ? `${+(tokens / 1000).toFixed(tokens < 10000 ? 1 : 0)}k` : String(tokens);
}

/** Makes a canvas that size, sharp on this screen, and empty. */
function sized(canvas, width, height) {
  const dots = Math.min(globalThis.devicePixelRatio || 1, MOST_PIXELS / Math.max(1, height));
  canvas.width = Math.ceil(width * dots);
  canvas.height = Math.ceil(height * dots);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(dots, dots);
  return pen;
}

function coloursOf(names) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Fills that can be told apart without their colours. */
function patterns(pen, colours) {
  const tile = (state, draw) => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 6;
    const own = canvas.getContext("2d");
    own.fillStyle = colours[state];
    own.fillRect(0, 0, 6, 6);
    own.strokeStyle = own.fillStyle = colours[`${state}-mark`];
    draw(own);
    return pen.createPattern(canvas, "repeat");
  };
  return {
    k: colours.k,
    c: tile("c", (own) => {
      for (const shift of [-6, 0, 6]) {
        own.moveTo(shift - 1, 7);
        own.lineTo(shift + 7, -1);
      }
      own.stroke();
    }),
    f: tile("f", (own) => {
      own.fillRect(1, 1, 2, 2);
      own.fillRect(4, 4, 2, 2);
    }),
    d: tile("d", (own) => own.fillRect(1, 2, 3, 1)),
  };
}

function cross(pen, colour, x, y) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x - 3, y - 3);
  pen.lineTo(x + 3, y + 3);
  pen.moveTo(x + 3, y - 3);
  pen.lineTo(x - 3, y + 3);
  pen.stroke();
}

/** What the map's fills mean, painted by what paints the map. */
function paintMapKeys() {
  const colours = coloursOf(["k", "c", "f", "d", "c-mark", "f-mark", "d-mark", "added", "fresh", "cached", "over"]);
  const key = (fillOf, words) => {
    const canvas = el("canvas", { class: "key", "aria-hidden": "true" });
    const pen = sized(canvas, 20, 12);
    pen.fillStyle = fillOf(pen);
    pen.fillRect(0, 0, 20, 12);
    return el("span", {}, canvas, words);
  };
  byId("map-keys").replaceChildren(
    ...Object.entries(STATES).map(([state, { name, told }]) => key((pen) => patterns(pen, colours)[state], state === "k" ? told : `${state} ${told === name ? name : told}`)),
    key(() => colours.added, "put in by a layer"),
    key(() => colours.cached, "tokens from the cache"),
    key(() => colours.fresh, "other tokens"),
    key(() => colours.over, "over the window"),
  );
}
