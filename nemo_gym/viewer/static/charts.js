// Small SVG charts. Colors come from the style sheet, so they follow the theme and the export.

import { number, svg } from "./dom.js";

export function histogram({ low, high, counts }, { width = 420, height = 160, labels = false } = {}) {
  const most = Math.max(1, ...counts);
  const base = labels ? height - 18 : height;
  const step = width / Math.max(1, counts.length);
  const bars = counts.map((count, place) => {
    const tall = count ? Math.max(2, (count / most) * (base - 4)) : 0;
    const from = low + ((high - low) * place) / counts.length;
    const to = low + ((high - low) * (place + 1)) / counts.length;
    const title = svg("title", {}, `${number(from)} to ${number(to)}: ${number(count)}`);
    return svg("rect", { x: place * step + 1, y: base - tall, width: Math.max(1, step - 2), height: tall, class: "bar" }, title);
  });
  const axis = svg("line", { x1: 0, x2: width, y1: base, y2: base, class: "axis" });
  const texts = labels ? ticks(low, high, width, height) : [];
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "img", "aria-label": "histogram" }, bars, axis, texts);
}

function ticks(low, high, width, height) {
  return [0, 0.5, 1].map((share) =>
    svg(
      "text",
      { x: share * width, y: height - 4, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle", class: "tick" },
      number(low + share * (high - low)),
    ),
  );
}

// A line through values in their order, with a dot for each that opens it.
export function sparkline(points, { width = 150, height = 36, onpick } = {}) {
  const [low, high] = [Math.min(0, ...points.map((point) => point.value)), Math.max(1, ...points.map((point) => point.value))];
  const x = (place) => 5 + (points.length < 2 ? (width - 10) / 2 : (place / (points.length - 1)) * (width - 10));
  const y = (value) => 5 + ((high - value) / (high - low)) * (height - 10);
  const path = points.map((point, place) => `${place ? "L" : "M"}${x(place).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
  const dots = points.map((point, place) => svg("circle", { cx: x(place), cy: y(point.value), r: place === points.length - 1 ? 3.5 : 2.5, class: "dot", onclick: () => onpick?.(point) }, svg("title", {}, point.title)));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart spark", role: "img", "aria-label": "mean rewards over time" }, svg("line", { x1: 0, x2: width, y1: y(low), y2: y(low), class: "grid" }), svg("path", { d: path, class: "line" }), dots);
}

// A curve through points whose x values are shown one beside the other: k = 1, 2, 4, …
export function curve(points, { width = 420, height = 180 } = {}) {
  const left = 36;
  const base = height - 22;
  const x = (place) => left + (points.length < 2 ? 0 : (place / (points.length - 1)) * (width - left - 14));
  const y = (value) => base - value * (base - 8);
  const path = points.map(([, value], place) => `${place ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const grid = [0, 0.5, 1].map((value) => [
    svg("line", { x1: left, x2: width, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "tick" }, String(value)),
  ]);
  const dots = points.map(([k, value], place) => [
    svg("circle", { cx: x(place), cy: y(value), r: 3.5, class: "dot" }, svg("title", {}, `k = ${k}: ${number(value)}`)),
    svg("text", { x: x(place), y: height - 5, "text-anchor": "middle", class: "tick" }, String(k)),
  ]);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "img", "aria-label": "curve" }, grid, svg("path", { d: path, class: "line" }), dots);
}

export function scatter(points, { width = 420, height = 180, onpick } = {}) {
  const left = 36;
  const base = height - 22;
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = [Math.min(0, ...ys), Math.max(1, ...ys)];
  const place = (value, from, to, start, end) => start + ((value - from) / (to - from || 1)) * (end - start);
  const dots = points.map(([x, y, row]) =>
    svg(
      "circle",
      { cx: place(x, x0, x1, left + 4, width - 6).toFixed(1), cy: place(y, y0, y1, base - 4, 8).toFixed(1), r: 2.5, class: "point", onclick: () => onpick?.(row) },
      svg("title", {}, `row ${row}: ${number(x)} tokens, reward ${number(y)}`),
    ),
  );
  const axis = [
    svg("line", { x1: left, x2: width, y1: base, y2: base, class: "axis" }),
    svg("text", { x: left, y: height - 5, class: "tick" }, number(x0)),
    svg("text", { x: width, y: height - 5, "text-anchor": "end", class: "tick" }, `${number(x1)} tokens`),
    svg("text", { x: left - 6, y: base, "text-anchor": "end", class: "tick" }, number(y0)),
    svg("text", { x: left - 6, y: 12, "text-anchor": "end", class: "tick" }, number(y1)),
  ];
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "img", "aria-label": "scatter plot" }, axis, dots);
}

// Horizontal bars: [[name, value, title], …], with room for the longest title.
export function bars(rows, { width = 420 } = {}) {
  const room = 150 + 7 * Math.max(...rows.map(([, value, title]) => (title ?? number(value)).length));
  const most = Math.max(...rows.map(([, value]) => value), 1e-9);
  const height = rows.length * 22;
  const drawn = rows.map(([name, value, title], place) => [
    svg("text", { x: 130, y: place * 22 + 15, "text-anchor": "end", class: "tick" }, name),
    svg("rect", { x: 136, y: place * 22 + 4, width: Math.max(1, (value / most) * (width - room)), height: 14, class: "bar" }),
    svg("text", { x: 142 + (value / most) * (width - room), y: place * 22 + 15, class: "tick" }, title ?? number(value)),
  ]);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "img", "aria-label": "bars" }, drawn);
}
