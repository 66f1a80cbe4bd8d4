// Tokens at call 1, 2, 3 ... of a conversation, a line for each policy, and how many conversations get that far.

const LINES_HEIGHT = 268;
const FEW_HEIGHT = 44;

function startLines() {
  const drawing = byId("lines");
  const length = Math.max(0, ...POLICIES.map((policy) => listed(policy.curve?.tokens).length), listed(REPORT.calls_at).length);
  if (!length) {
    drawing.parentElement.hidden = true;
    return;
  }
  const state = { field: "tokens", call: 1, width: 0, length, off: new Set() };
  const slider = byId("lines-call");
  slider.max = length;
  const values = startLegend(state, () => draw());
  const draw = () => {
    if (state.width) drawLines(drawing, state);
    tellLines(state, values);
  };
  onWidth(drawing.parentElement, (width) => {
    state.width = width;
    draw();
  });
  slider.addEventListener("input", () => {
    state.call = Number(slider.value);
    draw();
  });
  drawing.addEventListener("pointermove", (event) => {
    const { left, right } = linesBox(state.width);
    const share = (event.clientX - drawing.getBoundingClientRect().left - left) / (right - left);
    state.call = clamp(Math.round(share * (length - 1)) + 1, 1, length);
    slider.value = state.call;
    draw();
  });
  byId("lines-choice").addEventListener("change", (event) => {
    state.field = event.target.value;
    draw();
  });
  slider.value = state.call = clamp(Math.round(length / 3), 1, length);
}

/** Switches, one for each line; what is given back are the places for the values. */
function startLegend(state, draw) {
  return POLICIES.map((policy) => {
    const box = el("input", { type: "checkbox", checked: true });
    const value = el("span", { class: "value" });
    const item = el("li", { title: visible(policy.about) || null });
    item.append(el("label", {}, box, swatch(policy.index), bdi(policy.name, "name"), value));
    box.addEventListener("change", () => {
      item.classList.toggle("off", !box.checked);
      if (box.checked) state.off.delete(policy.index);
      else state.off.add(policy.index);
      draw();
    });
    byId("lines-legend").append(item);
    return value;
  });
}

function linesBox(width) {
  return { left: 52, right: width - 10, top: 26, bottom: LINES_HEIGHT };
}

function drawLines(drawing, state) {
  const box = linesBox(state.width);
  blank(drawing, state.width, LINES_HEIGHT + FEW_HEIGHT + 24);
  const shown = POLICIES.filter((policy) => !state.off.has(policy.index));
  const curves = shown.map((policy) => ({ policy, values: listed(policy.curve?.[state.field]) }));
  const window = isNumber(REPORT.window) ? REPORT.window : 0;
  const top = Math.max(window * 1.08, 1, ...curves.map(({ values }) => Math.max(0, ...values.filter(isNumber))));
  const x = scale(1, state.length, box.left, box.right);
  const y = scale(0, top, box.bottom, box.top);
  gridY(drawing, ticks(0, top, 5), y, box.left, box.right, count);
  drawing.append(text(0, 12, "tokens sent", { class: "title" }));
  drawing.append(line(x(state.call), box.top, x(state.call), box.bottom + FEW_HEIGHT, "cursor"));
  for (const { policy, values } of curves) drawing.append(curve(policy, values, x, y));
  if (window) {
    drawing.append(line(box.left, y(window), box.right, y(window), "window"));
    drawing.append(text(box.left + 6, y(window) - 5, `window ${count(window)}`, { class: "warn halo" }));
  }
  drawing.append(line(box.left, box.bottom, box.right, box.bottom, "axis"));
  drawFew(drawing, box, x, state.length);
}

function curve(policy, values, x, y) {
  let path = "";
  values.forEach((value, index) => {
    if (isNumber(value)) path += `${index && isNumber(values[index - 1]) ? "L" : "M"}${x(index + 1).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  const { class: className, dash } = lookOf(policy.index);
  return svg("path", { d: path || "M0 0", class: `line ${className}`, "stroke-dasharray": dash || null });
}

/** In grey, below: of how many conversations each figure tells. */
function drawFew(drawing, box, x, length) {
  const counts = listed(REPORT.calls_at);
  const foot = box.bottom + FEW_HEIGHT;
  const most = Math.max(1, ...counts.filter(isNumber));
  const height = scale(0, most, 0, FEW_HEIGHT - 12);
  let path = `M${x(1)} ${foot}`;
  counts.forEach((value, index) => (path += `L${x(index + 1).toFixed(1)} ${(foot - height(value ?? 0)).toFixed(1)}`));
  if (counts.length) {
    drawing.append(svg("path", { d: `${path}L${x(counts.length)} ${foot}Z`, class: "few" }));
    drawing.append(text(box.left - 7, foot - height(most) + 6, count(most), { "text-anchor": "end" }));
  }
  drawing.append(line(box.left, foot, box.right, foot, "axis"));
  drawing.append(text(box.right, foot + 17, "call", { "text-anchor": "end", class: "title" }));
  for (const value of ticks(1, length, (box.right - box.left) / 70)) {
    if (Number.isInteger(value) && value && x(value) < box.right - 34) {
      drawing.append(text(x(value), foot + 17, count(value), { "text-anchor": "middle" }));
    }
  }
}

function tellLines(state, values) {
  const has = listed(REPORT.calls_at)[state.call - 1];
  byId("lines-call").setAttribute("aria-valuetext", `call ${count(state.call)} of ${count(state.length)}`);
  byId("lines-at").textContent = `${count(state.call)} of ${count(state.length)}`;
  byId("lines-told").textContent = isNumber(has)
    ? `${counted(has, "conversation")} ${has === 1 ? "has" : "have"} a call ${count(state.call)} (the grey area).`
    : "";
  POLICIES.forEach((policy, index) => {
    values[index].textContent = count(listed(policy.curve?.[state.field])[state.call - 1]);
  });
}
