// Two files task by task, and any two rollouts side by side.

import { get } from "./api.js";
import { h, number, rewardClass, visible } from "./dom.js";
import { rolloutBody } from "./rollout.js";
import { squares } from "./tasks.js";
import { link, withParams } from "./route.js";

const PAGE = 100;
const COLUMNS = [["task", "task"], ["first", "first"], ["second", "second"], ["change", "change"], ["size", "size of change"]];

function line(file, other, task) {
  const open = link("pair", { file, row: task.a_row, other, other_row: task.b_row });
  return h(
    "tr",
    {},
    h("td", {}, h("a", { href: open }, task.task === null ? "–" : number(task.task))),
    h("td", {}, h("span", { class: rewardClass(task.first) }, number(task.first)), ` of ${task.a_count}`),
    h("td", {}, h("span", { class: rewardClass(task.second) }, number(task.second)), ` of ${task.b_count}`),
    h("td", { class: task.change > 0 ? "up" : task.change < 0 ? "down" : "quiet" }, `${task.change > 0 ? "+" : ""}${number(task.change)}`),
    h("td", {}, number(task.size)),
    h("td", { class: "text" }, h("a", { href: open }, visible(task.prompt || ""))),
  );
}

export async function compareView({ params, file, files, signal }) {
  const others = files.filter((each) => each.id !== file);
  if (!others.length) return h("p", { class: "quiet" }, "Open two files to compare them: ng view a.jsonl b.jsonl");
  const other = Number(params.get("other") ?? others[0].id);
  const sort = params.get("sort") || "-size";
  const offset = Number(params.get("offset") || 0);
  const page = await get("compare", { file, other, sort, offset, limit: PAGE }, signal);
  const choose = h("select", { "aria-label": "Other file", onchange: (event) => (location.hash = withParams({ other: event.target.value })) }, others.map((each) => h("option", { value: each.id, selected: each.id === other }, each.name)));
  const head = COLUMNS.map(([field, title]) => h("th", {}, h("a", { href: withParams({ sort: sort === `-${field}` ? field : `-${field}` }) }, title + (sort.replace("-", "") === field ? (sort.startsWith("-") ? " ↓" : " ↑") : ""))));
  const same = page.total - page.up - page.down;
  const signed = (value) => `${value > 0 ? "+" : ""}${number(value)}`;
  const interval = page.interval_95 ? `${page.interval_95.map(signed).join(" .. ")} (95 %)` : "95 % interval unknown";
  return h(
    "div",
    {},
    h("div", { class: "strip" }, h("div", {}, h("b", {}, files[file].name), " against ", choose), h("div", { id: "compared" }, `${number(page.total)} tasks in both${page.by_prompt ? ", matched by prompt" : ""}`), page.total ? [h("div", {}, `mean reward ${number(page.first)} → ${number(page.second)}, change `, h("b", {}, signed(page.change)), `, ${interval}`), h("div", { class: "up" }, `${number(page.up)} better`), h("div", { class: "down" }, `${number(page.down)} worse`), h("div", {}, `${number(same)} equal`)] : null),
    h("div", { class: "pager" }, offset ? h("a", { href: withParams({ offset: Math.max(0, offset - PAGE) || undefined }) }, "‹ previous") : null, offset + PAGE < page.total ? h("a", { href: withParams({ offset: offset + PAGE }) }, "next ›") : null),
    h("div", { class: "scroll" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, head, h("th", {}, "prompt"))), h("tbody", {}, page.tasks.map((task) => line(file, other, task))))),
  );
}

export async function pairView({ params, file, files, signal }) {
  const other = Number(params.get("other") || 0);
  const sides = [
    { file, row: Number(params.get("row") || 0), key: "row" },
    { file: other, row: Number(params.get("other_row") || 0), key: "other_row" },
  ];
  const found = await Promise.all(sides.map((side) => get("row", { file: side.file, row: side.row }, signal)));
  const column = (side, place) => {
    const repeats = squares(side.file, found[place].repeats, side.row);
    repeats.querySelectorAll("a").forEach((each, number) => each.setAttribute("href", withParams({ [side.key]: found[place].repeats[number].id })));
    return h("div", { class: "side" }, h("h2", {}, `${files[side.file]?.name ?? ""}, `, h("a", { href: link("row", { file: side.file, row: side.row }) }, `row ${number(side.row)}`), " ", repeats), rolloutBody(found[place], side.file));
  };
  return h("div", {}, h("div", { class: "head" }, h("a", { href: link("compare", { file, other }) }, "‹ compare")), h("div", { class: "pair" }, sides.map(column)));
}
