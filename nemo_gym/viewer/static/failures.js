// Failures by cause, of the file itself and of the failures file beside it.

import { get } from "./api.js";
import { bars } from "./charts.js";
import { h, number, visible } from "./dom.js";
import { fileNamed, link } from "./route.js";

export async function failuresView({ file, files, signal }) {
  const sources = [file, fileNamed(files, file)?.failures].filter((id) => id !== null && id !== undefined);
  const found = await Promise.all(sources.map((id) => get("failures", { file: id }, signal)));
  const rows = found.flatMap((each, place) => each.map((failure) => ({ ...failure, file: sources[place] })));
  if (!rows.length) return h("p", { class: "quiet", id: "no-failures" }, "No failures in this file, nor in a failures file beside it.");
  const byCause = new Map();
  for (const row of rows) byCause.set(row.cause, (byCause.get(row.cause) || 0) + row.count);
  const chart = [...byCause].sort((one, other) => other[1] - one[1]);
  const line = (row) =>
    h(
      "tr",
      {},
      h("td", {}, h("a", { href: link("rows", { file: row.file, where: `outcome = "${row.cause}"` }) }, h("span", { class: "outcome bad" }, row.cause))),
      h("td", {}, visible(String(row.code ?? "–"))),
      h("td", {}, visible(String(row.server ?? "–"))),
      h("td", { class: "num" }, number(row.count)),
      h("td", { class: "num" }, number(row.final)),
      h("td", { class: "message" }, h("a", { href: link("row", { file: row.file, row: row.row }) }, visible(row.message || "–"))),
    );
  const head = ["cause", "code", "server", "attempts", "final", "message"].map((title) => h("th", { class: title === "attempts" || title === "final" ? "num" : "" }, title));
  return h(
    "div",
    {},
    h("section", { class: "card" }, h("h2", {}, "Failed attempts by cause"), bars(chart)),
    h("div", { class: "scroll" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map(line)))),
  );
}
