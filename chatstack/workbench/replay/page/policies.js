// The report, and how each policy looks everywhere on the page: its colour, its dashes, its shape.

const REPORT = JSON.parse(byId("report").textContent);
const POLICIES = listed(REPORT.policies).map((policy, index) => ({ ...policy, index, name: String(policy.name ?? "") }));
const COLOURS = 8;
const DASHES = ["", "7 3", "2 3"];
const STATUS = {
  kept: "every call within the window",
  over: "calls over the window",
  refused: "calls refused, such as a server would refuse, or without the latest user message",
};

function lookOf(index) {
  return { class: `s${index % COLOURS}`, dash: DASHES[Math.floor(index / COLOURS) % DASHES.length] };
}

/** Whether its calls were sent, within the window, as a server takes them. A shape says so wherever the policy is drawn as a point. */
function statusOf(policy) {
  if (policy.refused > 0 || policy.invalid_requests > 0 || policy.latest_user_lost > 0) return "refused";
  return policy.over_limit > 0 ? "over" : "kept";
}

function shape(status, x, y, className) {
  if (status === "kept") return svg("circle", { cx: x, cy: y, r: 5, class: `shape ${className}` });
  if (status === "over") {
    return svg("path", { d: `M${x} ${y - 6.5}L${x + 6.5} ${y + 5}H${x - 6.5}Z`, class: `shape open ${className}` });
  }
  const cross = `M${x - 5} ${y - 5}h10v10h-10ZM${x - 5} ${y - 5}l10 10M${x + 5} ${y - 5}l-10 10`;
  return svg("path", { d: cross, class: `shape open ${className}` });
}

/** A short piece of a policy's line. */
function swatch(index) {
  const { class: className, dash } = lookOf(index);
  return svg(
    "svg",
    { width: 22, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 22, y1: 5, y2: 5, class: `line ${className}`, "stroke-dasharray": dash || null }),
  );
}

function shapeKey(status, className = "neutral") {
  return svg("svg", { width: 16, height: 16, "aria-hidden": "true" }, shape(status, 8, 8, className));
}
