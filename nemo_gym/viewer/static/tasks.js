// Groups of repeats: how often each task passes, how much its rewards spread, and groups that teach nothing.

import { get } from "./api.js";
import { duration, h, number, percent, rewardClass, visible } from "./dom.js";
import { link, withParams } from "./route.js";

const PAGE = 100;
const COLUMNS = [
  ["task", "task"],
  ["count", "rows"],
  ["mean", "mean reward"],
  ["spread", "spread"],
  ["low", "min"],
  ["high", "max"],
  ["passed", "pass rate"],
  ["tokens", "tokens"],
  ["seconds", "time"],
];

export function squares(file, repeats, current) {
  return h(
    "span",
    { class: "squares" },
    repeats.map(({ id, reward, outcome }) =>
      h("a", {
        href: link("row", { file, row: id }),
        class: `${rewardClass(reward)} square${id === current ? " current" : ""}`,
        title: `row ${id}: ${reward === null ? outcome : `reward ${number(reward)}`}`,
        "aria-label": `row ${id}`,
      }),
    ),
  );
}

function line(file, group) {
  const repeats = group.repeats.map(([id, reward, outcome]) => ({ id, reward, outcome }));
  const passed = group.passed === null ? "–" : [h("meter", { min: 0, max: 1, value: group.passed, title: percent(group.passed) }), " ", percent(group.passed)];
  return h(
    "tr",
    { class: group.no_variance ? "flat" : "" },
    h("td", { class: "num" }, group.task === null ? "–" : number(group.task)),
    h("td", { class: "num" }, number(group.count)),
    h("td", { class: "num" }, h("span", { class: rewardClass(group.mean) }, number(group.mean))),
    h("td", { class: "num" }, group.no_variance ? h("span", { class: "warn", title: "All rewards are equal" }, "no variance") : number(group.spread)),
    h("td", { class: "num" }, number(group.low)),
    h("td", { class: "num" }, number(group.high)),
    h("td", {}, passed),
    h("td", { class: "num" }, number(group.tokens)),
    h("td", { class: "num" }, duration(group.seconds)),
    h("td", {}, squares(file, repeats)),
    h("td", { class: "text" }, h("a", { href: link("rows", { file, where: `task_key = ${group.task_key}` }) }, visible(group.prompt || ""))),
  );
}

export async function tasksView({ params, file, signal }) {
  const sort = params.get("sort") || "task";
  const offset = Number(params.get("offset") || 0);
  const page = await get("tasks", { file, where: params.get("where"), sort, offset, limit: PAGE }, signal);
  const head = COLUMNS.map(([field, title]) => {
    const isOn = sort.replace("-", "") === field;
    const next = sort === `-${field}` ? field : `-${field}`;
    const mark = isOn ? (sort.startsWith("-") ? " ↓" : " ↑") : "";
    return h("th", { class: `${field === "passed" ? "" : "num"} ${isOn ? "on" : ""}` }, h("a", { href: withParams({ sort: next }) }, title + mark));
  });
  const pages = h(
    "div",
    { class: "pager" },
    offset ? h("a", { href: withParams({ offset: Math.max(0, offset - PAGE) || undefined }) }, "‹ previous") : null,
    h("span", {}, page.total ? `${number(offset + 1)}–${number(offset + page.groups.length)} of ${number(page.total)} tasks` : "no tasks"),
    offset + PAGE < page.total ? h("a", { href: withParams({ offset: offset + PAGE }) }, "next ›") : null,
  );
  const rows = page.groups.map((group) => line(file, group));
  return h("div", {}, pages, h("div", { class: "scroll" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, head, h("th", {}, "repeats"), h("th", {}, "prompt"))), h("tbody", {}, rows))));
}
