// Two or more files task by task, and any two rollouts side by side.

import { get } from "./api.js";
import { h, number, rewardClass, signed, visible } from "./dom.js";
import { rolloutBody } from "./rollout.js";
import { squares } from "./tasks.js";
import { fileNamed, link, withParams } from "./route.js";

const PAGE = 100;
const direction = (change) => (change > 1e-9 ? "up" : change < -1e-9 ? "down" : "quiet");

// A file for people: its environment and model, if its run is known.
function titleOf(file) {
  const run = file?.run;
  return visible(run?.environment && run.model ? `${run.environment} · ${run.model}` : (file?.name ?? "?"));
}

function line(keys, task) {
  const first = task.sides[0];
  const cells = task.sides.map((side, place) => {
    const change = side.mean - first.mean;
    const open = place ? link("pair", { file: keys[0], row: first.row, other: keys[place], other_row: side.row }) : link("row", { file: keys[0], row: first.row });
    const shown = place ? h("span", { class: direction(change) }, ` ${change ? signed(change) : "="}`) : null;
    return h("td", { class: "num", title: `${number(side.count)} ${side.count === 1 ? "rollout" : "rollouts"}` }, h("a", { href: open }, h("span", { class: rewardClass(side.mean) }, number(side.mean))), shown);
  });
  const last = task.sides.length - 1;
  const open = link("pair", { file: keys[0], row: first.row, other: keys[last], other_row: task.sides[last].row });
  return h("tr", {}, h("td", { class: "num" }, h("a", { href: open }, task.task === null ? "–" : number(task.task))), cells, h("td", { class: "num" }, number(task.size)), h("td", { class: "text" }, h("a", { href: open }, visible(task.prompt || ""))));
}

function sideLine(keys, files, page, place) {
  const side = page.sides[place];
  const file = fileNamed(files, keys[place]);
  const interval = side.interval_95 ? `${side.interval_95.map((bound) => signed(bound)).join(" to ")}` : "unknown";
  const isClear = side.interval_95 && (side.interval_95[0] > 0 || side.interval_95[1] < 0);
  const others = keys.slice(1).filter((_, other) => other + 1 !== place);
  const remove = place && keys.length > 2 ? h("a", { class: "chip", href: withParams({ other: others }), title: "Compare without it" }, "×") : null;
  const same = side.total - side.up - side.down;
  return h(
    "tr",
    {},
    h("td", { class: "name" }, h("a", { href: link("rows", { file: keys[place] }) }, titleOf(file)), h("div", { class: "quiet" }, visible(file?.name ?? ""))),
    h("td", { class: "num" }, h("span", { class: `${rewardClass(side.mean)} big` }, number(side.mean))),
    place ? h("td", { class: `num ${isClear ? direction(side.change) : "quiet"}` }, h("b", {}, signed(side.change)), h("div", { class: "quiet" }, interval)) : h("td", { class: "num quiet" }, "baseline"),
    place ? h("td", { class: "num" }, h("span", { class: "up" }, `${number(side.up)} better`), ", ", h("span", { class: "down" }, `${number(side.down)} worse`), `, ${number(same)} equal`) : h("td", {}),
    h("td", {}, remove),
  );
}

export async function compareView({ params, file, files, signal }) {
  const others = files.filter((each) => each.id !== file && !each.id.endsWith("-failures"));
  const asked = params.getAll("other");
  if (!others.length && !asked.length) return h("p", { class: "quiet" }, "Select two runs in the list of runs, or open two files: ng view a.jsonl b.jsonl");
  const keys = [file, ...(asked.length ? asked : [others[0].id])];
  const sort = params.get("sort") || "-size";
  const offset = Number(params.get("offset") || 0);
  const page = await get("compare", { file, other: keys.slice(1), sort, offset, limit: PAGE }, signal);
  const now = (await get("files", {}, signal)).files;
  const more = others.filter((each) => !keys.includes(each.id));
  const add = more.length
    ? h("select", { "aria-label": "Add a file", onchange: (event) => (location.hash = withParams({ other: [...keys.slice(1), event.target.value] })) }, h("option", { value: "" }, "+ another file"), more.map((each) => h("option", { value: each.id }, each.name)))
    : null;
  const names = keys.map((key) => titleOf(fileNamed(now, key)));
  const isTold = new Set(names).size === names.length; // runs of one model are told apart by their files
  const columns = [["task", "task", "num"], ...keys.map((key, place) => [`mean${place}`, isTold ? names[place] : (fileNamed(now, key)?.name ?? key), "num"]), ["size", keys.length > 2 ? "range" : "size of change", "num"]];
  const head = columns.map(([field, title, kind]) => h("th", { class: kind }, h("a", { href: withParams({ sort: sort === `-${field}` ? field : `-${field}` }) }, title + (sort.replace("-", "") === field ? (sort.startsWith("-") ? " ↓" : " ↑") : ""))));
  return h(
    "div",
    {},
    h("section", { class: "card" }, h("h2", { id: "compared" }, `${number(page.total)} tasks in ${keys.length > 2 ? `all ${keys.length}` : "both"}${page.by_prompt ? ", matched by prompt" : ""}`), page.total ? h("table", { class: "plain compared" }, h("tr", {}, ["run", "mean reward", "change, 95 %", "tasks", ""].map((title, place) => h("th", { class: place && place < 4 ? "num" : "" }, title))), keys.map((_, place) => sideLine(keys, now, page, place))) : h("p", { class: "quiet" }, "They have no scored task in common."), add),
    h("div", { class: "pager" }, offset ? h("a", { href: withParams({ offset: Math.max(0, offset - PAGE) || undefined }) }, "‹ previous") : null, offset + PAGE < page.total ? h("a", { href: withParams({ offset: offset + PAGE }) }, "next ›") : null),
    page.total ? h("div", { class: "scroll" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, head, h("th", {}, "prompt"))), h("tbody", {}, page.tasks.map((task) => line(keys, task))))) : null,
  );
}

export async function pairView({ params, file, files, signal }) {
  const other = params.get("other") || "0";
  const sides = [
    { file, row: Number(params.get("row") || 0), key: "row" },
    { file: other, row: Number(params.get("other_row") || 0), key: "other_row" },
  ];
  const found = await Promise.all(sides.map((side) => get("row", { file: side.file, row: side.row }, signal)));
  const column = (side, place) => {
    const repeats = squares(side.file, found[place].repeats, side.row);
    repeats.querySelectorAll("a").forEach((each, number) => each.setAttribute("href", withParams({ [side.key]: found[place].repeats[number].id })));
    return h("div", { class: "side" }, h("h2", {}, titleOf(fileNamed(files, side.file)), ", ", h("a", { href: link("row", { file: side.file, row: side.row }) }, `row ${number(side.row)}`), " ", repeats), rolloutBody(found[place], side.file));
  };
  return h("div", {}, h("div", { class: "head" }, h("a", { href: link("compare", { file, other }) }, "‹ compare")), h("div", { class: "pair" }, sides.map(column)));
}
