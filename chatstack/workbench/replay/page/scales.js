// Axes: from figures to places, and round numbers between.

/** Round numbers from the low to the high end, about so many. */
function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step || 0); // never -0
  return found;
}

/** From low..high to start..end. */
function scale(low, high, start, end) {
  const span = high - low || 1;
  return (value) => start + ((value - low) / span) * (end - start);
}

function text(x, y, words, attributes = {}) {
  return svg("text", { x, y, ...attributes }, words);
}

function line(x1, y1, x2, y2, className) {
  return svg("line", { x1, y1, x2, y2, class: className });
}

/** An empty drawing of a size. */
function blank(drawing, width, height) {
  drawing.replaceChildren();
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.setAttribute("height", height);
}

function gridY(drawing, values, y, left, right, tell) {
  for (const value of values) {
    drawing.append(line(left, y(value), right, y(value), "grid"));
    drawing.append(text(left - 7, y(value) + 4, tell(value), { "text-anchor": "end" }));
  }
}
