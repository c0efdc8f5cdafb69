// One row: its conversation, the expected answer beside the given one, and all its other fields.

import { get } from "./api.js";
import { brief, bytes, duration, entries, h, number, rewardClass, visible } from "./dom.js";
import { exportRows } from "./export.js";
import { setViewKeys } from "./keys.js";
import { go, link, withParams } from "./route.js";
import { listAddress, neighbour } from "./selection.js";
import { squares } from "./tasks.js";
import { inside, place, plainText, rawLink, textOf, togglePlain } from "./text.js";
import { states } from "./state.js";
import { itemsOf, thread } from "./thread.js";
import { turnStrip, withTurns } from "./turns.js";

const EXPECTED = /^(expected(?!_state$)|exp_|ground_truth|reference|target|gold|correct|label|solution|right$)/i;
const GIVEN = /^(extracted|parsed|predicted|model_answer|given|answer$)/i;
const MAX_FIELDS = 400;
const NOT_FIELDS = new Set(["responses_create_params", "response", "reward", "row", "messages", "final_state", "expected_state", "judge_evaluations", "judge_reasons", "reward_components"]);
// Shown above as task and repeat.
const INDICES = new Set(["_task_index", "_ng_task_index", "_repeat_index", "_ng_rollout_index", "_seconds", "_step_seconds", "_row_fields"]);

// A list of short texts, such as the forms of an answer, as one line.
const listed = (value) => (Array.isArray(value) && value.every((each) => typeof each !== "object" && String(each).length < 60) ? value.join(", ") : value);

function answers(record, output, where) {
  const source = typeof record.cause === "string" && record.row && typeof record.row === "object" ? record.row : record;
  const pick = (pattern) => entries(source).filter(([name, value]) => pattern.test(name) && value !== null && value !== undefined && value !== "");
  const expected = pick(EXPECTED);
  if (!expected.length) return null;
  let given = pick(GIVEN);
  if (!given.length) {
    const last = output.findLast(({ item }) => item?.role === "assistant");
    const content = last?.item.content;
    const text = Array.isArray(content) ? content.map((part) => plainText(part?.text ?? "")).join("\n") : content;
    given = text ? [["last message", text]] : [];
  }
  const side = (title, pairs) =>
    h("div", { class: title }, h("div", { class: "label" }, title), pairs.length ? pairs.map(([name, value]) => h("div", {}, h("span", { class: "quiet" }, visible(name)), textOf(listed(value), inside(where, name)))) : h("p", { class: "quiet" }, "none"));
  return h("section", { class: "answers sides" }, side("expected", expected), side("given", given));
}

function toolList(tools, where) {
  if (!tools.length) return null;
  const line = (tool, number) =>
    h("details", {}, h("summary", {}, h("b", {}, visible(plainText(tool?.name ?? tool?.function?.name ?? "?"))), " ", visible(plainText(tool?.description ?? tool?.function?.description ?? "").slice(0, 160))), textOf(tool, inside(where, number), { code: true }));
  return h("details", { class: "card offered" }, h("summary", {}, `${tools.length} ${tools.length === 1 ? "tool" : "tools"} offered`), tools.map(line));
}

// How to go on from a step of this rollout in other ways. Without a journal there is no way.
function runAgain(command, output) {
  if (!command) return null;
  const isPolicys = ({ item }) => !plainText(item?.type ?? "").endsWith("_output") && !["user", "system", "developer"].includes(item?.role);
  const starts = output.filter((each, at) => isPolicys(each) && (at === 0 || !isPolicys(output[at - 1])));
  const title = (item) => (item.type === "function_call" ? `call of ${plainText(item.name)}` : plainText(item.type ?? "message"));
  const line = ({ item }, step) =>
    h("details", {}, h("summary", {}, `from step ${step}: ${visible(title(item).slice(0, 80))}`), h("pre", {}, visible(`${command} +step=${step} +n=8 +output_jsonl_fpath=forks.jsonl`)));
  return h("details", { class: "card again" }, h("summary", {}, "Run again from here"), starts.map(line));
}

function fieldList(record, where) {
  const rows = [];
  const add = (name, value, path) => {
    if (value === null || value === undefined || rows.length >= MAX_FIELDS) return;
    const isLong = typeof value === "object" || String(value).length > 120;
    const shown = isLong ? h("details", {}, h("summary", {}, visible(plainText(value).slice(0, 80))), textOf(value, inside(where, ...path), { code: true })) : visible(String(value));
    rows.push(h("tr", {}, h("td", {}, visible(name)), h("td", {}, shown)));
  };
  for (const [name, value] of entries(record)) if (!NOT_FIELDS.has(name) && !INDICES.has(name)) add(name, value, [name]);
  for (const [name, value] of entries(record.response)) if (!["output", "tools", "participants"].includes(name)) add(`response.${name}`, value, ["response", name]);
  for (const [name, value] of entries(record.responses_create_params)) if (name !== "input" && name !== "tools") add(name, value, ["responses_create_params", name]);
  for (const [name, value] of entries(record.row)) if (name !== "responses_create_params" && !INDICES.has(name)) add(`row.${name}`, value, ["row", name]);
  return rows.length === 0 ? null : h("section", { class: "card" }, h("h2", {}, "Fields"), h("table", { class: "plain fields" }, rows));
}

function badges(record, found) {
  const usage = record.response?.usage ?? {};
  const task = record._task_index ?? record._ng_task_index;
  const repeat = record._repeat_index ?? record._ng_rollout_index;
  const parts = [
    record.reward === undefined ? null : h("span", { class: `${rewardClass(record.reward)} big` }, `reward ${typeof record.reward === "number" ? number(record.reward) : brief(record.reward)}`),
    typeof record.cause === "string" ? h("span", { class: "outcome bad" }, `no result: ${visible(record.cause)}`) : null,
    task === undefined ? null : `task ${brief(task)}`,
    repeat === undefined ? null : `repeat ${brief(repeat)}`,
    usage.output_tokens === undefined ? null : `${brief(usage.input_tokens)} → ${brief(usage.output_tokens)} tokens`,
    typeof record._seconds === "number" ? duration(record._seconds) : null,
    record.response?.status && record.response.status !== "completed" ? h("span", { class: "warn" }, brief(record.response.status)) : null,
    bytes(found.bytes),
  ];
  return parts.filter(Boolean).map((part) => h("span", { class: "badge" }, part));
}

// The conversations of other policies, or of a simulated user.
function participants(record, where) {
  return entries(record.response?.participants)
    .filter(([, side]) => side !== null && typeof side === "object")
    .map(([name, side]) => {
      const { input, output } = itemsOf(side, ["response", "participants", name]);
      return h("details", { class: "card participant" }, h("summary", {}, "The conversation of ", h("b", {}, visible(name))), thread([...input, ...output], where));
    });
}

// What judges said: their reasons and labels, and the score of each criterion.
function verdicts(record, where) {
  const asked = Array.isArray(record.judge_evaluations) ? record.judge_evaluations.filter((each) => each !== null && typeof each === "object") : [];
  const components = entries(record.reward_components).filter(([, value]) => typeof value === "number");
  if (!asked.length && !components.length) return null;
  const notes = [
    record.orders_agree === false ? "the verdict changes with the order" : null,
    typeof record.judge_agreement === "number" ? `agreement ${number(record.judge_agreement)}` : null,
    typeof record.judge_failure === "string" ? `no verdict: ${visible(record.judge_failure)}` : null,
  ].filter(Boolean);
  const replyOf = (one, at) => {
    const items = Array.isArray(one.response?.output) ? one.response.output : [];
    const last = items.findLastIndex((item) => item?.role === "assistant");
    const parts = Array.isArray(items[last]?.content) ? items[last].content : [];
    return parts.map((part, place) => textOf(part?.text ?? "", inside(where, "judge_evaluations", at, "response", "output", last, "content", place, "text")));
  };
  const line = (one, at) =>
    h("div", { class: "verdict" }, h("div", { class: "quiet" }, `judge ${visible(brief(one.response?.model ?? ""))}`, one.verdict_label ? h("b", {}, ` ${visible(brief(one.verdict_label))}`) : null), replyOf(one, at));
  const scores = components.map(([name, value]) => h("tr", {}, h("td", {}, visible(name)), h("td", {}, h("meter", { min: Math.min(0, value), max: Math.max(1, value), value })), h("td", {}, h("span", { class: rewardClass(value) }, number(value)))));
  return h("section", { class: "card verdicts" }, h("h2", {}, "Verdicts"), notes.length ? h("p", { class: "quiet" }, notes.join(", ")) : null, scores.length ? h("table", { class: "plain" }, scores) : null, asked.map(line));
}

// Everything about one row except navigation, also for the export and for two rows side by side.
export function rolloutBody(found, file) {
  const where = place(file, found.row);
  if (found.record === null || typeof found.record !== "object") {
    const why = found.record === null ? `This line of ${bytes(found.bytes)} is not shown as a record: it is too long, or no JSON. ` : "This line is no JSON object. ";
    return h("div", {}, h("p", { class: "warn" }, why, rawLink(where)), textOf(found.raw ?? plainText(found.record), where, { code: true }));
  }
  const { record } = found;
  const { input, output: items, tools } = itemsOf(record);
  const output = withTurns(items);
  const conversation = thread([...input, ...output], where);
  const turns = turnStrip(record, output, () => conversation);
  const failure = typeof record.cause === "string" ? h("p", { class: "error" }, visible(plainText(record.message ?? "")).slice(0, 4000)) : null;
  const body = h("div", {}, h("div", { class: "badges" }, badges(record, found)), failure, answers(record, output, where), states(record, where), verdicts(record, where), toolList(tools, where), turns?.strip, conversation, participants(record, where), runAgain(found.fork, output), fieldList(record, where));
  turnKeys.set(body, turns?.keys ?? {});
  return body;
}

// The keys that step through the turns of a rollout that is shown.
const turnKeys = new WeakMap();

function highlight(root, text) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const at = node.data.toLowerCase().indexOf(text.toLowerCase());
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, Math.min(node.data.length, at + text.length));
    node.parentElement.closest("details")?.setAttribute("open", "");
    if (CSS.highlights) CSS.highlights.set("found", new Highlight(range));
    setTimeout(() => node.parentElement.scrollIntoView({ block: "center" }), 0);
    return;
  }
}

export async function rowView({ params, file, signal }) {
  const row = Number(params.get("row") || 0);
  const found = await get("row", { file, row }, signal);
  const back = listAddress(file);
  const step = (by) => {
    const next = neighbour(file, row, by);
    if (next !== undefined && next !== row) location.hash = withParams({ row: next, find: undefined });
  };
  const view = rolloutBody(found, file);
  const toggle = () => {
    const all = [...view.querySelectorAll("details.reasoning")];
    const open = all.some((each) => !each.open);
    all.forEach((each) => (each.open = open));
  };
  const replot = () => {
    togglePlain();
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  };
  const head = h(
    "div",
    { class: "between head" },
    h(
      "div",
      {},
      h("a", { href: back }, "‹ table"),
      h("b", { id: "row-title" }, ` row ${number(row)} `),
      h("button", { title: "Previous (k)", onclick: () => step(-1) }, "↑"),
      h("button", { title: "Next (j)", onclick: () => step(1) }, "↓"),
      found.repeats.length > 1 ? [" repeats ", squares(file, found.repeats, row)] : null,
    ),
    h(
      "div",
      {},
      h("button", { title: "Show or hide reasoning (r)", onclick: toggle }, "reasoning"),
      h("button", { title: "Plain text or rendered (p)", onclick: replot }, "plain"),
      h("a", { class: "button", href: link("tokens", { file, row }) }, "tokens"),
      h("button", { id: "export", title: "Export as HTML (e)", onclick: () => exportRows([{ file, row }]) }, "export"),
      rawLink(place(file, row), "raw"),
    ),
  );
  setViewKeys({
    ...turnKeys.get(view),
    j: () => step(1),
    k: () => step(-1),
    u: () => (location.hash = back),
    r: toggle,
    p: replot,
    t: () => go("tokens", { file, row }),
    e: () => exportRows([{ file, row }]),
  });
  window.scrollTo(0, 0);
  if (params.get("find")) setTimeout(() => highlight(view, params.get("find")), 0);
  return h("div", { "data-row": row }, head, view);
}
