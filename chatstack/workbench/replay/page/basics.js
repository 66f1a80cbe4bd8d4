// Text, numbers and elements. Text from outside is shown by `visible`, and only ever as text nodes.

const NOTHING = "–";
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]|[\u{e0000}-\u{e007f}]/gu;
const SVG = document.querySelector("svg").namespaceURI;

/** Text in which control characters, changes of direction, hidden characters and half surrogates show as marks. */
function visible(text) {
  return String(text ?? "").replace(/\r\n/g, "\n").replace(UNSEEN, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** The beginning of a text, on one line; three dots where it is not all. */
function preview(text, length = 240) {
  const whole = String(text ?? "");
  const short = cut(whole, length);
  return visible(short).replace(/\s+/g, " ").trim() + (short.length < whole.length ? "…" : "");
}

/** At most so many characters, no pair of surrogates torn apart. */
function cut(text, length) {
  const short = text.slice(0, length);
  return short.length < text.length ? short.replace(/[\ud800-\udbff]$/, "") : short;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : NOTHING;
}

function counted(value, what) {
  return `${count(value)} ${what}${value === 1 ? "" : "s"}`;
}

/** A share as percent, to one decimal and rounded down, so that 100 means all. */
function percent(share) {
  if (!isNumber(share)) return NOTHING;
  const thousandths = Math.floor(share * 1000 + 1e-6);
  return `${thousandths >= 1000 ? thousandths / 10 : (thousandths / 10).toFixed(1)} %`;
}

function listed(value) {
  return Array.isArray(value) ? value : [];
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes; children are elements, or text that goes in as text. */
function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Text from outside, on its own as far as its direction goes. */
function bdi(text, className) {
  return el("bdi", { class: className ?? null }, visible(text));
}

/** Calls back with the width of an element, at once and whenever it changes. */
function onWidth(element, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width && width !== last) draw((last = width));
  }).observe(element);
}
