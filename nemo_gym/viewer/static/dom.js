// Build elements. Text from records only ever becomes text nodes: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

function build(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "checked" || name === "value" || name === "disabled" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, props, ...children) => build(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => build(document.createElementNS(SVG, tag), props, children);
export const math = (tag, props, ...children) => build(document.createElementNS(MATH, tag), props, children);

// Control characters and characters that change the direction of text are shown, not obeyed.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text) {
  return text.replace(HIDDEN, (character) => `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Math.abs(value) >= 1e15) return value.toExponential(digits - 1);
  if (Number.isInteger(value)) return minus(value.toLocaleString("en"));
  return minus(Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits))));
}

const minus = (text) => text.replace(/^-/, "−");

// A number that stands in a column: always with so many decimals.
export function fixed(value, decimals = 3) {
  return typeof value !== "number" || Math.abs(value) >= 1000 ? number(value) : minus(value.toFixed(decimals));
}

export const signed = (value, show = number) => `${value > 0 ? "+" : ""}${show(value)}`;

export function bytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < 4; unit += 1) value /= 1000;
  return `${unit ? value.toPrecision(3) : value} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 0.001) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (seconds > 0 && seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);

// The entries of a plain object; none of anything else, so that a text is not taken apart into letters.
export const entries = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : []);

// Any value of a record as a short text.
export const brief = (value, most = 60) => visible((typeof value === "string" ? value : JSON.stringify(value) ?? "").slice(0, most));

// A color class for a reward between two bounds.
export function rewardClass(reward, low = 0, high = 1) {
  if (typeof reward !== "number") return "reward none";
  const share = (reward - Math.min(low, 0)) / (Math.max(high, 1) - Math.min(low, 0));
  return `reward r${Math.max(0, Math.min(10, Math.round(share * 10)))}`;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
