// The page: one bar, one view at a time, chosen by the address.

import { ApiError, get, takeToken } from "./api.js";
import { compareView, pairView } from "./compare.js";
import { bytes, h, number, replace } from "./dom.js";
import { failuresView } from "./failures.js";
import { initKeys, setViewKeys } from "./keys.js";
import { liveView } from "./live.js";
import { overviewView } from "./overview.js";
import { current, fileNamed, fileOf, go, link } from "./route.js";
import { rowView } from "./rollout.js";
import { runsView } from "./runs.js";
import { searchView } from "./search.js";
import { rowsView } from "./table.js";
import { tasksView } from "./tasks.js";
import { initTheme, toggleTheme } from "./theme.js";
import { tokensView } from "./tokens.js";

const VIEWS = {
  runs: runsView,
  rows: rowsView,
  row: rowView,
  tasks: tasksView,
  overview: overviewView,
  failures: failuresView,
  compare: compareView,
  pair: pairView,
  search: searchView,
  tokens: tokensView,
  live: liveView,
};
const TABS = [
  ["rows", "Rows"],
  ["tasks", "Tasks"],
  ["overview", "Overview"],
  ["failures", "Failures"],
  ["compare", "Compare"],
  ["search", "Search"],
  ["live", "Live"],
];
const PARENTS = { row: "rows", tokens: "rows", pair: "compare" };
const state = { files: [], live: false, listsRuns: false };
let running = new AbortController();

// Without a file in the address, the page is the list of runs, if there is one.
function where() {
  const { name, params } = current();
  return { name: name || (state.listsRuns ? "runs" : "rows"), params };
}

// The environment and the model of the file that is shown, on every page.
function whose(file) {
  const run = fileNamed(state.files, file)?.run;
  if (!run?.environment) return null;
  const parts = [h("b", {}, run.environment), run.model, run.agent && !run.agent.includes(run.environment) ? h("span", { class: "quiet" }, run.agent) : null];
  return h("span", { id: "whose", title: run.output }, parts.filter(Boolean).map((part, place) => [place ? " · " : "", part]));
}

function bar() {
  const { name, params } = where();
  const file = fileOf(params);
  const isList = name === "runs" || (name === "live" && !params.get("file"));
  const choose = h(
    "select",
    { id: "file", "aria-label": "File", onchange: (event) => go("rows", { file: event.target.value }) },
    state.files.map((each) => h("option", { value: each.id, selected: each.id === file }, each.name)),
  );
  const runs = h("a", { href: link("runs"), class: name === "runs" ? "on" : "" }, "Runs");
  const tabs = TABS.filter(([tab]) => tab !== "live" || state.live || name === "live").filter(
    ([tab]) => tab !== "compare" || state.files.filter((each) => !each.id.endsWith("-failures")).length > 1,
  );
  return replace(
    document.getElementById("bar"),
    h("a", { href: state.listsRuns ? link("runs") : link("rows", { file }), class: "brand" }, "NeMo Gym"),
    isList ? null : choose,
    h("nav", {}, state.listsRuns ? runs : null, (isList ? tabs.filter(([tab]) => tab === "live") : tabs).map(([tab, title]) => h("a", { href: link(tab, { file }), class: tab === (PARENTS[name] || name) ? "on" : "" }, title))),
    h("span", { class: "grow" }),
    isList ? null : whose(file),
    h("button", { title: "Dark or light (d)", onclick: toggleTheme }, "◐"),
    h("button", { title: "Keys (?)", onclick: () => document.dispatchEvent(new CustomEvent("help")) }, "?"),
  );
}

function showProgress() {
  const file = where().name === "runs" ? null : fileNamed(state.files, fileOf(current().params));
  const place = document.getElementById("status");
  if (!file) return replace(place);
  const parts = [];
  if (file.error) parts.push(h("span", { class: "error" }, file.error));
  if (file.note) parts.push(h("span", { class: "warn", id: "file-note" }, file.note));
  if (!file.complete) {
    const total = file.total_bytes;
    const text = `Indexing: ${number(file.rows)} rows, ${bytes(file.indexed_bytes)}${total ? ` of ${bytes(total)}` : ""}`;
    parts.push(total ? h("progress", { max: total, value: file.indexed_bytes }) : null, h("span", {}, text));
  }
  return replace(place, parts);
}

const inBar = () => JSON.stringify([state.files.map((file) => [file.id, file.run?.model]), state.live]);

async function refreshFiles() {
  const { params } = current();
  const asked = [params.get("file"), ...params.getAll("other")].filter((id) => id && !fileNamed(state.files, id));
  const found = await get("files", { open: asked });
  const before = inBar();
  Object.assign(state, { files: found.files, live: found.live, listsRuns: found.lists_runs });
  if (before !== inBar()) bar();
  showProgress();
}

async function poll() {
  try {
    await refreshFiles();
  } catch {
    replace(document.getElementById("status"), h("span", { class: "error" }, "The viewer's server does not answer."));
  }
  const isBusy = state.files.some((file) => !file.complete);
  setTimeout(poll, isBusy ? 1000 : 3000);
}

async function show() {
  running.abort();
  running = new AbortController();
  const view = document.getElementById("view");
  const { signal } = running;
  setViewKeys({});
  const { name, params } = where();
  try {
    if (params.get("file") && !fileNamed(state.files, fileOf(params))) await refreshFiles();
    bar();
    showProgress();
    const make = VIEWS[name];
    if (!make) throw new ApiError(404, `There is no view '${name}'.`);
    const content = await make({ params, file: fileOf(params), files: state.files, signal });
    if (signal.aborted) return;
    replace(view, content);
    view.dataset.view = name;
    document.title = `${(name === "runs" ? "Runs" : fileNamed(state.files, fileOf(params))?.name) || "Viewer"} – NeMo Gym`;
  } catch (error) {
    if (signal.aborted) return;
    replace(view, h("p", { class: "error" }, String(error.message || error)));
    view.dataset.view = "error";
    if (error.status === 401) view.append(h("p", {}, "Open the address that the command printed: it ends in #token=…"));
  }
}

takeToken();
initTheme();
initKeys();
window.addEventListener("hashchange", show);
try {
  await refreshFiles();
} catch (error) {
  document.getElementById("status").append(h("span", { class: "error" }, String(error.message || error)));
}
await show();
setTimeout(poll, 500);
