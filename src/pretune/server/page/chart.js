// Charts: lines by step, told apart by dashes as well as colours, with their numbers as a table.

import { h, s, said, table } from "/page/dom.js";

const WIDTH = 340, HEIGHT = 200, LEFT = 56, RIGHT = 10, TOP = 10, BOTTOM = 28;
const DASHES = ["none", "6 4", "2 3", "9 3 2 3"];

/** Return a figure of a curve: {name, lines: [{name, points: [[step, value], …]}]}. */
export function drawChart({ name, lines }) {
  const xs = lines.flatMap((line) => line.points.map(([x]) => x)), ys = lines.flatMap((line) => line.points.map(([, y]) => y));
  const [left, right] = widen(Math.min(...xs), Math.max(...xs)), [low, high] = widen(Math.min(...ys), Math.max(...ys));
  const placeX = (x) => LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT);
  const placeY = (y) => HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
  const chart = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name} by step` });
  for (const value of [0, 1 / 3, 2 / 3, 1].map((share) => low + share * (high - low))) {
    chart.append(
      s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: placeY(value), y2: placeY(value), class: "rule" }),
      s("text", { x: LEFT - 6, y: placeY(value) + 4, "text-anchor": "end" }, format(value)));
  }
  for (const [value, anchor] of [[left, "start"], [right, "end"]]) {
    chart.append(s("text", { x: placeX(value), y: HEIGHT - 8, "text-anchor": anchor }, value.toLocaleString("en", { maximumFractionDigits: 0 })));
  }
  chart.append(s("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "step"));
  lines.forEach((line, index) => {
    const points = line.points.map(([x, y]) => `${placeX(x).toFixed(1)},${placeY(y).toFixed(1)}`).join(" ");
    chart.append(s("polyline", { points, class: `line c${index % 6}`, "stroke-dasharray": DASHES[index % DASHES.length] }));
    if (line.points.length < 25) {
      for (const [x, y] of line.points) chart.append(s("circle", { cx: placeX(x), cy: placeY(y), r: 2.5, class: `dot c${index % 6}` }));
    }
  });
  const legend = lines.map((line, index) => h("span", { class: "legend" },
    s("svg", { viewBox: "0 0 30 8", class: "key", "aria-hidden": "true" }, s("line", { x1: 0, x2: 30, y1: 4, y2: 4, class: `line c${index % 6}`, "stroke-dasharray": DASHES[index % DASHES.length] })),
    said(line.name || name)));
  return h("figure", {}, h("figcaption", {}, h("b", {}, name), " ", legend), chart,
    h("details", {}, h("summary", {}, "Numbers"), lines.map((line) =>
      table(line.points.map(([x, y]) => [x.toLocaleString("en", { maximumFractionDigits: 0 }), format(y)]), { head: ["step", line.name || name] }))));
}

function widen(low, high) {
  return low < high ? [low, high] : [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
}

function format(value) {
  return Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(3)));
}
