// The blocks of a message that people write in Markdown: headings, lists, tables and quotes. One pass over its lines.

import { h } from "./dom.js";

const HEADING = /^(#{1,6}) +(\S.*)$/;
const ITEM = /^( {0,12})([-*+]|\d{1,4}[.)]) +(\S.*)$/;
const QUOTE = /^> ?(.*)$/;
const RULE = /^ *\|?(?: *:?-{2,}:? *\|)+ *(?::?-{2,}:? *)?$/;
const MAX_COLUMNS = 40;

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|", MAX_COLUMNS)
    .map((cell) => cell.trim());

function table(lines, inline) {
  const [head, , ...rows] = lines;
  const line = (tag) => (text) => h("tr", {}, cells(text).map((cell) => h(tag, {}, inline(cell))));
  return h("table", {}, h("thead", {}, line("th")(head)), h("tbody", {}, rows.map(line("td"))));
}

// The elements of a text without code blocks. `inline` makes those of a line.
export function blocks(text, inline) {
  const lines = text.split("\n");
  const found = [];
  let plain = [];
  const flush = () => {
    const first = plain.findIndex((line) => line.trim());
    const last = plain.findLastIndex((line) => line.trim());
    if (first >= 0) found.push(h("div", { class: "p" }, inline(plain.slice(first, last + 1).join("\n"))));
    plain = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    const quote = QUOTE.exec(line);
    if (line.includes("|") && at + 1 < lines.length && RULE.test(lines[at + 1])) {
      flush();
      let end = at + 2;
      while (end < lines.length && lines[end].includes("|")) end += 1;
      found.push(table(lines.slice(at, end), inline));
      at = end - 1;
    } else if (heading) {
      flush();
      found.push(h("div", { class: "heading" }, inline(heading[2])));
    } else if (item) {
      flush();
      const depth = Math.min(3, Math.floor(item[1].length / 2));
      found.push(h("div", { class: `li in${depth}` }, h("span", {}, /\d/.test(item[2]) ? item[2] : "•"), h("span", {}, inline(item[3]))));
    } else if (quote) {
      flush();
      found.push(h("div", { class: "quote" }, inline(quote[1])));
    } else plain.push(line);
  }
  flush();
  return found;
}
