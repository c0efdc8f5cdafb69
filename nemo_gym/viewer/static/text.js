// Text of messages: code blocks, lists, tables, inline code, formulas and bold, built as elements. Links stay text.

import { openRaw, address } from "./api.js";
import { bytes, h, number, visible } from "./dom.js";
import { latex } from "./latex.js";
import { blocks } from "./markdown.js";

const SHOWN = 20000;
const BLOCK = /```([^\n`]*)\n([\s\S]*?)(?:```|$)|\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]/g;
const INLINE = /`([^`\n]+)`|\\\(([\s\S]+?)\\\)|\$(?!\s)((?:[^$\n\\]|\\.){1,300}?)(?<!\s)\$(?!\d)|\*\*([^*\n]+)\*\*|(\\boxed\{(?:[^{}]|\{[^{}]*\})*\})/g;
const THINK = /^\s*<think>([\s\S]*?)<\/think>/;

let isPlain = localStorage.getItem("nemo-gym-plain") === "true";

export function togglePlain() {
  isPlain = !isPlain;
  localStorage.setItem("nemo-gym-plain", String(isPlain));
}

// Where a value is, so that one that was cut can be opened in full.
export const place = (file, row, path = []) => ({ file, row, path });
export const inside = (where, ...keys) => ({ ...where, path: [...where.path, ...keys] });

function formula(source, isBlock) {
  return latex(source, isBlock) || h(isBlock ? "pre" : "code", { class: "formula" }, visible(source));
}

function inline(text) {
  const parts = [];
  let done = 0;
  for (const match of text.matchAll(INLINE)) {
    parts.push(visible(text.slice(done, match.index)));
    const [whole, code, round, dollars, bold, boxed] = match;
    if (code !== undefined) parts.push(h("code", {}, visible(code)));
    else if (bold !== undefined) parts.push(h("b", {}, visible(bold)));
    else parts.push(formula(round ?? dollars ?? boxed, false));
    done = match.index + whole.length;
  }
  return [...parts, visible(text.slice(done))];
}

export function rendered(text) {
  const parts = [];
  let done = 0;
  for (const match of text.matchAll(BLOCK)) {
    parts.push(blocks(text.slice(done, match.index), inline));
    const [whole, language, code, dollars, square] = match;
    if (code !== undefined) parts.push(h("pre", { class: "code", "data-language": visible(language) }, h("code", {}, visible(code))));
    else parts.push(formula(dollars ?? square, true));
    done = match.index + whole.length;
  }
  parts.push(blocks(text.slice(done), inline));
  return parts;
}

function body(text, { code = false } = {}) {
  if (code) return h("pre", { class: "code" }, h("code", {}, visible(text)));
  return h("div", { class: "prose" }, isPlain ? visible(text) : rendered(text));
}

// A link to the whole value, as plain text in another tab.
export function rawLink(where, title = "open raw") {
  const parameters = { file: where.file, row: where.row, path: where.path.length ? JSON.stringify(where.path) : undefined };
  return h("a", { href: address("raw", parameters), target: "_blank", rel: "noopener noreferrer", class: "raw", onclick: (event) => openRaw(event, parameters) }, title);
}

const isCut = (value) => value !== null && typeof value === "object" && "$cut" in value;

export const plainText = (value) => (isCut(value) ? String(value.$cut) : typeof value === "string" ? value : JSON.stringify(value, null, 2));

// A value of a record as text. Long ones are folded; those the server has cut can be opened raw.
export function textOf(value, where, options = {}) {
  const text = plainText(value ?? "");
  const notice = isCut(value)
    ? h("p", { class: "cut" }, `Cut: this value has ${bytes(value.length ?? 0)}. `, rawLink({ ...where, path: value.path || where.path }))
    : null;
  if (text.length <= SHOWN) return notice ? [body(text, options), notice] : body(text, options);
  const box = h("div", {}, body(text.slice(0, SHOWN), { code: options.code }));
  const show = () => box.replaceChildren(h("pre", { class: "prose" }, visible(text)), ...(notice ? [notice] : []));
  box.append(h("button", { class: "more", onclick: show }, `Show all ${number(text.length)} characters`), ...(notice ? [notice] : []));
  return box;
}

// Reasoning that a model wrote into its text, apart from the rest.
export function splitThinking(text) {
  const match = typeof text === "string" ? THINK.exec(text) : null;
  return match ? { thinking: match[1].trim(), rest: text.slice(match[0].length).trimStart() } : { thinking: null, rest: text };
}

export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
