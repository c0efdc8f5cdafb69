// The table of rows: sorted, filtered, one page at a time.

import { get } from "./api.js";
import { histogram } from "./charts.js";
import { bytes, duration, h, number, percent, replace, rewardClass, visible } from "./dom.js";
import { exportRows } from "./export.js";
import { setViewKeys } from "./keys.js";
import { current, fileNamed, go, link, withParams } from "./route.js";
import { plainText } from "./text.js";
import { itemsOf } from "./thread.js";
import { clearSelection, isSelected, rememberList, select, selectedRows } from "./selection.js";

const PAGE = 100;
const MAX_WHOLE = 20000;
// Name, title, cell, and the value that must be there for some row of the page, so that no column is empty.
const COLUMNS = [
  ["row", "row", (row) => number(row.id)],
  ["reward", "reward", (row) => h("span", { class: rewardClass(row.reward) }, number(row.reward))],
  ["outcome", "outcome", (row) => h("span", { class: `outcome ${row.outcome === "scored" || row.outcome === "row" ? "ok" : "bad"}` }, row.outcome)],
  ["task", "task", (row) => (row.task === null ? "–" : number(row.task))],
  ["repeat", "repeat", (row) => number(row.repeat)],
  ["output_tokens", "tokens", (row) => number(row.output_tokens)],
  ["turns", "turns", (row) => number(row.turns)],
  ["tool_calls", "tools", (row) => number(row.tool_calls)],
  ["seconds", "time", (row) => duration(row.seconds)],
  ["bytes", "size", (row) => bytes(row.length)],
];

const TEXTS = new Set(["outcome"]);
const ALWAYS = new Set(["row", "outcome", "bytes"]);
const isNumber = (field) => (TEXTS.has(field) ? "" : "num");
const shownColumns = (rows) => COLUMNS.filter(([field]) => ALWAYS.has(field) || rows.some((row) => row[field] !== null));

function header(params, columns, extra, texts) {
  const sort = params.get("sort") || "";
  const head = ([field, title]) => {
    const isOn = sort.replace("-", "") === field;
    const next = sort === `-${field}` ? field : `-${field}`;
    const mark = isOn ? (sort.startsWith("-") ? " ↓" : " ↑") : "";
    const kind = columns.some(([name]) => name === field) ? isNumber(field) : "";
    return h("th", { class: `${kind} ${isOn ? "on" : ""}`, "aria-sort": isOn ? (sort.startsWith("-") ? "descending" : "ascending") : null }, h("a", { href: withParams({ sort: next }), title: `Sort by ${field}` }, title + mark));
  };
  return h("tr", {}, h("th", {}), columns.map(head), extra.map((name) => head([name, name])), texts.map((name) => head([name, name])), h("th", {}));
}

function line(row, file, columns, extra, texts, onSelect) {
  const open = link("row", { file, row: row.id });
  const box = h("input", {
    type: "checkbox",
    "aria-label": `Select row ${row.id}`,
    checked: isSelected(file, row.id),
    onchange: (event) => onSelect(row.id, event.target.checked),
  });
  const cells = columns.map(([field, , show]) => h("td", { class: `c-${field} ${isNumber(field)}` }, show(row)));
  const fields = extra.map((name) => h("td", {}, visible(String(row.fields[name] ?? "–"))));
  const text = (value) => h("td", { class: "text" }, h("a", { href: open }, visible(value || "")));
  const expand = async (event) => {
    const shown = event.currentTarget.closest("tr");
    event.stopPropagation();
    await showWhole(shown, row, file, texts);
  };
  return h(
    "tr",
    { "data-row": row.id, onclick: (event) => event.target.closest("a, input") || go("row", { file, row: row.id }) },
    h("td", {}, box),
    cells,
    fields,
    texts.map((name) => text(row[name])),
    h("td", {}, h("button", { class: "whole", title: "Whole prompt and answer (w)", "aria-expanded": "false", onclick: expand }, "⤢")),
  );
}

// Show the whole prompt and answer of a row in the table, or cut them again.
async function showWhole(shown, row, file, texts) {
  const isWhole = shown.classList.toggle("whole");
  shown.querySelector("button.whole").setAttribute("aria-expanded", String(isWhole));
  if (!shown.dataset.read) {
    shown.dataset.read = "true";
    const { record } = await get("row", { file, row: row.id });
    if (record === null || typeof record !== "object") return;
    const { input, output } = itemsOf(record);
    const said = (items, role) => items.filter(({ item }) => item?.role === role).map(({ item }) => contentText(item.content)).findLast(Boolean);
    const whole = { prompt: said(input, "user"), answer: record.message ?? said(output, "assistant") };
    shown.querySelectorAll("td.text a").forEach((cell, place) => whole[texts[place]] && (cell.textContent = visible(String(whole[texts[place]]).slice(0, MAX_WHOLE))));
  }
}

const contentText = (content) => (Array.isArray(content) ? content.map((part) => plainText(part?.text ?? "")).join("\n") : plainText(content ?? ""));

function filterForm(params, fields, chosen) {
  const input = h("input", {
    id: "filter",
    type: "search",
    value: params.get("where") || "",
    placeholder: "Filter: reward < 1 and response.usage.total_tokens > 500 and expected_answer ~ paris",
    list: "fields",
    "aria-label": "Filter",
    spellcheck: "false",
  });
  const submit = (event) => {
    event.preventDefault();
    location.hash = withParams({ where: input.value });
  };
  const add = h(
    "select",
    { "aria-label": "Add a column", onchange: (event) => (location.hash = withParams({ column: [...chosen, event.target.value] })) },
    h("option", { value: "" }, "+ column"),
    fields.filter((field) => !chosen.includes(field.name)).map((field) => h("option", { value: field.name }, field.name)),
  );
  const remove = chosen.map((name) =>
    h("a", { class: "chip", href: withParams({ column: chosen.filter((each) => each !== name) }), title: "Remove the column" }, `${name} ×`),
  );
  const names = [...COLUMNS.map(([name]) => name), ...fields.map((field) => field.name)];
  const list = h("datalist", { id: "fields" }, names.map((name) => h("option", { value: name })));
  return h("form", { class: "filter", onsubmit: submit }, input, list, h("button", {}, "Filter"), add, remove);
}

function pager(total, offset, count, id = null) {
  const page = (to, text) =>
    to === null ? h("span", { class: "off" }, text) : h("a", { href: withParams({ offset: to || undefined }) }, text);
  return h(
    "div",
    { class: "pager" },
    page(offset > 0 ? Math.max(0, offset - PAGE) : null, "‹ previous"),
    h("span", { id }, total ? `${number(offset + 1)}–${number(offset + count)} of ${number(total)}` : "no rows"),
    page(offset + count < total ? offset + PAGE : null, "next ›"),
  );
}

export function strip(summary) {
  const outcomes = Object.entries(summary.outcomes).map(([name, count]) =>
    h("a", { class: "chip", href: withParams({ where: `outcome = "${name}"` }) }, `${name} ${number(count)}`),
  );
  if (!summary.scored) return h("div", { class: "strip" }, outcomes);
  const flat = summary.groups_without_variance;
  return h(
    "div",
    { class: "strip" },
    histogram(summary.histogram, { width: 220, height: 56, labels: true }),
    h("div", {}, h("b", {}, number(summary.reward.mean)), " mean reward"),
    h("div", {}, h("b", {}, percent(summary.passed / summary.scored)), ` pass (reward ≥ ${summary.pass_threshold})`),
    h("div", {}, h("b", {}, number(summary.tasks)), summary.tasks === 1 ? " task" : " tasks"),
    flat ? h("div", { class: "warn" }, h("b", {}, number(flat)), ` of ${number(summary.groups)} groups without variance`) : null,
    outcomes,
  );
}

function mark(view, step) {
  const rows = [...view.querySelectorAll("tr[data-row]")];
  const place = rows.findIndex((row) => row.classList.contains("marked"));
  const next = rows[Math.max(0, Math.min(rows.length - 1, place + step))];
  rows[place]?.classList.remove("marked");
  next?.classList.add("marked");
  next?.scrollIntoView({ block: "nearest" });
}

export async function rowsView({ params, file, files, signal }) {
  const extra = params.getAll("column");
  const where = params.get("where") || "";
  const offset = Number(params.get("offset") || 0);
  const asked = { file, where, sort: params.get("sort"), offset, limit: PAGE, column: extra };
  const fields = await get("fields", { file }, signal).catch(() => []);
  const form = filterForm(params, fields, extra);
  let page;
  try {
    page = await get("rows", asked, signal);
  } catch (error) {
    if (signal.aborted || error.status !== 400) throw error;
    return h("div", {}, form, h("p", { class: "error", id: "filter-error" }, error.message));
  }
  const metrics = h("div", { class: "strip loading" }, "…");
  const actions = h("div", { class: "actions" });
  const view = h("div", {}, form, metrics);
  const showActions = () => {
    const count = selectedRows().length;
    const clear = () => {
      clearSelection();
      view.querySelectorAll("td input:checked").forEach((box) => (box.checked = false));
      showActions();
    };
    replace(
      actions,
      count ? [h("button", { id: "export", onclick: () => exportRows(selectedRows()) }, `Export ${count} as HTML`), h("button", { onclick: clear }, "Clear")] : null,
    );
  };
  const onSelect = (row, isOn) => {
    select(file, row, isOn);
    showActions();
  };
  const columns = shownColumns(page.rows);
  const texts = page.rows.some((row) => row.answer) ? ["prompt", "answer"] : ["prompt"];
  const body = h("tbody", {}, page.rows.map((row) => line(row, file, columns, extra, texts, onSelect)));
  const table = h("div", { class: `scroll${extra.length > 2 ? " wide" : ""}` }, h("table", { class: "rows" }, h("thead", {}, header(params, columns, extra, texts)), body));
  view.append(h("div", { class: "between" }, pager(page.total, offset, page.rows.length, "range"), actions));
  const failures = fileNamed(files, file)?.failures;
  if (!page.rows.length && !where && failures !== null && failures !== undefined)
    view.append(h("p", {}, "No rollout was scored. ", h("a", { href: link("failures", { file }) }, "Why they failed"), "."));
  if (page.hint) view.append(h("p", { class: "warn", id: "filter-hint" }, page.hint));
  if (page.rows.length) view.append(table);
  if (page.rows.length === PAGE) view.append(pager(page.total, offset, page.rows.length));
  showActions();
  let shownMetrics = metrics;
  const refreshMetrics = () =>
    get("summary", { file, where }, signal).then(
      (summary) => {
        const next = strip(summary);
        shownMetrics.replaceWith(next);
        shownMetrics = next;
      },
      (error) => signal.aborted || replace(shownMetrics, error.message),
    );
  refreshMetrics();
  rememberList(file, page.rows.map((row) => row.id));
  const marked = () => view.querySelector("tr.marked");
  setViewKeys({
    j: () => mark(view, 1),
    k: () => mark(view, -1),
    Enter: () => marked() && go("row", { file, row: marked().dataset.row }),
    x: () => marked()?.querySelector("input").click(),
    w: () => (marked() ? [marked()] : [...view.querySelectorAll("tr[data-row]")]).forEach((shown) => shown.querySelector("button.whole").click()),
    f: () => view.querySelector("#filter").focus(),
    e: () => selectedRows().length && exportRows(selectedRows()),
  });
  const isWhole = !where && page.rows.length;
  const isAtEnd = isWhole && !params.get("sort") && page.rows.length < PAGE && offset + page.rows.length === page.total;
  const isNewest = isWhole && params.get("sort") === "-row" && offset === 0;
  const add = (rows) => {
    const lines = rows.map((row) => Object.assign(line(row, file, columns, extra, texts, onSelect), { className: "new" }));
    if (isNewest) body.prepend(...lines);
    else body.append(...lines);
    while (body.children.length > PAGE) body.lastElementChild.remove();
    rememberList(file, [...body.querySelectorAll("tr[data-row]")].map((each) => Number(each.dataset.row)));
    refreshMetrics();
  };
  follow({ file, page, offset, asked, add: isAtEnd || isNewest ? add : null, isNewest }, signal);
  return view;
}

// While rows are being indexed or written: the last page grows with them, as does the first one if it has the newest,
// and other pages say how many there are, without moving what the user reads. A page without rows is shown again.
async function follow({ file, page, offset, asked, add, isNewest }, signal) {
  let [shown, known] = [page.rows.length, page.total];
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 1500));
    if (signal.aborted) return;
    const range = document.getElementById("range");
    const now = await get("files", {}, signal).catch(() => null);
    const found = now && fileNamed(now.files, file);
    if (!found || !range || signal.aborted) return;
    const isUnread = !page.rows.length && !current().params.get("where") && document.activeElement.id !== "filter";
    if (found.rows && isUnread) return window.dispatchEvent(new HashChangeEvent("hashchange"));
    const fresh = found.rows - known;
    if (fresh > 0 && add && (isNewest || shown < PAGE)) {
      const part = isNewest ? { offset: 0 } : { offset: offset + shown, limit: PAGE - shown };
      const more = await get("rows", { ...asked, ...part }, signal).catch(() => null);
      if (signal.aborted) return;
      if (!more) continue;
      const news = isNewest ? more.rows.filter((row) => row.id >= known) : more.rows;
      add(news);
      shown = Math.min(PAGE, shown + news.length);
      known = isNewest ? Math.max(known, ...news.map((row) => row.id + 1)) : known + news.length;
      range.textContent = `${number(offset + 1)}–${number(offset + shown)} of ${number(known)}`;
    } else if (fresh > 0) range.textContent = `${range.textContent.split(" · ")[0]} · ${number(found.rows)} rows so far`;
  }
}
