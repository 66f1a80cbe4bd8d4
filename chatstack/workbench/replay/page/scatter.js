// Cost against what is found, and which policies no other one beats at both; where everything is found, cost alone.

const SCATTER_HEIGHT = 350;
const LABEL_CHARS = 26;
const ROW = 24;
const ALL_FOUND = 0.995;
const DIRECTIONS = [[1, 0], [-1, 0], [0, -1], [0, 1], [1, -1], [-1, -1], [1, 1], [-1, 1]];

function startScatter() {
  const drawing = byId("scatter");
  let field = "grounding";
  let width = 0;
  const draw = () => width && drawScatter(drawing, width, field);
  onWidth(drawing.parentElement, (found) => {
    width = found;
    draw();
  });
  byId("scatter-choice").addEventListener("change", (event) => {
    field = event.target.value;
    draw();
  });
  for (const [status, words] of Object.entries(STATUS)) {
    if (POLICIES.some((policy) => statusOf(policy) === status)) {
      byId("scatter-keys").append(el("span", {}, shapeKey(status), words));
    }
  }
  const edge = svg("svg", { width: 22, height: 10, "aria-hidden": "true" }, line(0, 5, 22, 5, "frontier"));
  byId("scatter-keys").append(el("span", {}, edge, "no policy within the window is cheaper and finds as much"));
}

function drawScatter(drawing, width, field) {
  const shown = POLICIES.filter((policy) => isNumber(policy[field]));
  const priced = shown.filter((policy) => isNumber(policy.cost_relative));
  const unpriced = shown.filter((policy) => !isNumber(policy.cost_relative));
  const box = { left: 52, right: width - 14 - (unpriced.length ? 92 : 0), top: 26, bottom: SCATTER_HEIGHT - 42 };
  blank(drawing, width, SCATTER_HEIGHT);
  tellScatter(shown, priced, unpriced);
  if (!shown.length) {
    blank(drawing, width, 40);
    drawing.append(text(0, 24, "There were no values to look for: what is found is not known.", { class: "title" }));
    return;
  }
  if (Math.min(...shown.map((policy) => policy[field])) >= ALL_FOUND) {
    drawRows(drawing, width, field, shown);
    return;
  }
  const [low, high] = rangeOf(priced.map((policy) => policy.cost_relative), 0.06);
  const lowest = Math.max(0, Math.min(...shown.map((policy) => policy[field])) - 0.02);
  const floor = Math.min(lowest, 0.98);
  const x = scale(low, high, box.left, box.right);
  const y = scale(floor, 1, box.bottom, box.top);
  drawAxes(drawing, box, x, y, low, high, floor);
  if (unpriced.length) drawing.append(text(width - 88, box.bottom + 36, "no cost known"));
  const points = [
    ...priced.map((policy) => ({ policy, x: x(policy.cost_relative), y: y(policy[field]) })),
    ...unpriced.map((policy) => ({ policy, x: width - 82, y: y(policy[field]) })),
  ];
  drawing.append(frontier(points.filter(({ policy }) => isNumber(policy.cost_relative))));
  for (const point of points) drawing.append(marker(point, field));
  tellRest(label(drawing, points, { left: box.left + 2, right: width, top: box.top - 8, bottom: box.bottom }), field);
}

/** A row for each policy, the cheapest first: where everything is found there is nothing else to compare. */
function drawRows(drawing, width, field, shown) {
  const known = (policy) => (isNumber(policy.cost_relative) ? policy.cost_relative : Infinity);
  const rows = [...shown].sort((one, other) => known(one) - known(other));
  const chars = Math.max(6, Math.min(LABEL_CHARS, Math.floor((width * 0.45) / 8)));
  const box = { left: Math.ceil(width * 0.45), right: width - 52, top: 34, bottom: 34 + rows.length * ROW };
  blank(drawing, width, box.bottom + 42);
  const costs = rows.map(known).filter(isNumber);
  const [low, high] = rangeOf(costs, 0.06);
  const x = scale(low, high, box.left + 6, box.right);
  drawCosts(drawing, box, x, low, high);
  const least = percent(Math.min(...rows.map((policy) => policy[field])));
  drawing.append(text(0, 12, `every policy finds ${least}${least === "100 %" ? "" : " or more"}: they differ in cost`, { class: "title" }));
  rows.forEach((policy, index) => {
    const y = box.top + (index + 0.5) * ROW;
    const at = isNumber(policy.cost_relative) ? x(policy.cost_relative) : box.left + 6;
    const name = text(0, y + 4, "", { class: policy.is_yours ? "name yours" : "name" });
    drawing.append(name);
    let length = chars;
    do name.textContent = nameOf(policy, length);
    while (name.getComputedTextLength() > box.left - 8 && (length -= 1) > 0);
    if (isNumber(policy.cost_relative)) drawing.append(marker({ policy, x: at, y }, field));
    else drawing.append(svg("g", {}, shape(statusOf(policy), at, y, lookOf(policy.index).class)));
    const cost = isNumber(policy.cost_relative) ? policy.cost_relative.toFixed(3) : "not known";
    drawing.append(text(at + 10, y + 4, cost));
  });
  tellRest([], field);
}

function nameOf(policy, chars) {
  return preview(policy.name, chars) || NOTHING;
}

/** What has no place in the picture beside its point, where it would cover something else. */
function tellRest(rest, field) {
  byId("scatter-rest").replaceChildren(
    ...rest.map((policy) =>
      el(
        "span",
        { class: policy.is_yours ? "yours" : null },
        shapeKey(statusOf(policy), lookOf(policy.index).class),
        bdi(nameOf(policy, LABEL_CHARS)),
        `${isNumber(policy.cost_relative) ? policy.cost_relative.toFixed(3) : NOTHING}, ${percent(policy[field])}`,
      ),
    ),
  );
}

function rangeOf(values, share) {
  if (!values.length) return [0, 1];
  const low = Math.min(...values);
  const high = Math.max(...values);
  const pad = (high - low || 1) * share;
  return [Math.max(0, low - pad), high + pad * 1.5];
}

function drawAxes(drawing, box, x, y, low, high, floor) {
  gridY(drawing, ticks(floor, 1, 5), y, box.left, box.right, (value) => `${+(value * 100).toFixed(1)} %`);
  drawing.append(text(0, 12, "found: values still there when the call was made", { class: "title" }));
  drawCosts(drawing, box, x, low, high);
}

function drawCosts(drawing, box, x, low, high) {
  for (const value of ticks(low, high, (box.right - box.left) / 80)) {
    drawing.append(line(x(value), box.top, x(value), box.bottom, "grid"));
    drawing.append(text(x(value), box.bottom + 17, +value.toFixed(3), { "text-anchor": "middle" }));
  }
  drawing.append(line(box.left, box.bottom, box.right, box.bottom, "axis"));
  drawing.append(
    text(box.right, box.bottom + 36, "cost, sending everything = 1", { class: "title", "text-anchor": "end" }),
  );
}

/** Steps along the policies within the window that no other of them beats, from the cheapest on. */
function frontier(points) {
  const within = points.filter(({ policy }) => statusOf(policy) === "kept");
  within.sort((one, other) => one.x - other.x || one.y - other.y);
  let best = Infinity;
  let path = "";
  for (const { x, y } of within) {
    if (y >= best) continue;
    path += path ? `H${x}V${y}` : `M${x} ${y}`;
    best = y;
  }
  return svg("path", { d: path || "M0 0", class: "frontier" });
}

function marker({ policy, x, y }, field) {
  const cost = isNumber(policy.cost_relative) ? policy.cost_relative.toFixed(3) : "not known";
  const words = `${visible(policy.name)}: cost ${cost}, found ${percent(policy[field])}, ${STATUS[statusOf(policy)]}`;
  return svg("g", {}, svg("title", {}, words), shape(statusOf(policy), x, y, lookOf(policy.index).class));
}

/** Names beside their points, the reader's own first; a thin line where that is not close. Returns those without room. */
function label(drawing, points, box) {
  const taken = points.map(({ x, y }) => ({ x: x - 7, y: y - 7, w: 14, h: 14 }));
  const rest = [];
  const first = ({ policy }) => (policy.is_yours ? 0 : 1);
  for (const { policy, x, y } of [...points].sort((one, other) => first(one) - first(other) || one.y - other.y || one.x - other.x)) {
    const name = text(0, 0, nameOf(policy, LABEL_CHARS), { class: policy.is_yours ? "name halo yours" : "name halo" });
    drawing.append(name);
    const w = name.getComputedTextLength();
    const found = bestPlace(x, y, w, taken, box);
    if (!found) {
      name.remove();
      rest.push(policy);
      continue;
    }
    const { place, far, dx, dy } = found;
    name.setAttribute("x", place.x);
    name.setAttribute("y", place.y + 11);
    if (far) drawing.insertBefore(line(x + dx * 6, y + dy * 6, x + dx * far, y + dy * far, "leader"), name);
    taken.push(place);
  }
  return rest;
}

function bestPlace(x, y, w, taken, box) {
  const h = 14;
  let best = null;
  for (const [turn, away] of [10, 20, 32, 46, 62].entries()) {
    for (const [order, [dx, dy]] of DIRECTIONS.entries()) {
      const length = dx && dy ? away * 0.75 : away;
      const place = {
        x: x + dx * length - (dx < 0 ? w : dx ? 0 : w / 2),
        y: y + dy * length - (dx || !dy ? h / 2 : dy < 0 ? h - 4 : 2),
        w,
        h,
      };
      if (place.x < box.left || place.x + w > box.right || place.y < box.top || place.y + h > box.bottom) continue;
      if (taken.some((other) => overlap(place, other))) continue;
      const price = turn * 12 + order;
      if (!best || price < best.price) best = { price, place, far: turn ? length - 2 : 0, dx, dy };
    }
  }
  return best;
}

function overlap(one, other) {
  const across = Math.min(one.x + one.w, other.x + other.w) - Math.max(one.x, other.x);
  const down = Math.min(one.y + one.h, other.y + other.h) - Math.max(one.y, other.y);
  return across > 0 && down > 0;
}

function tellScatter(shown, priced, unpriced) {
  const told = [];
  if (unpriced.length) told.push(`No cost is known of ${unpriced.map(({ name }) => visible(name)).join(", ")}.`);
  if (shown.length < POLICIES.length) told.push(`${count(POLICIES.length - shown.length)} of which it is not known what is found, not shown.`);
  byId("scatter-told").textContent = told.join(" ");
}
