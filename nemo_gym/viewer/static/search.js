// Full-text search over all messages, with progress; leaving the page or pressing the button ends it.

import { stream } from "./api.js";
import { bytes, h, number, visible } from "./dom.js";
import { setViewKeys } from "./keys.js";
import { go, link } from "./route.js";
import { rememberList } from "./selection.js";

function hitLine(file, hit) {
  const more = hit.values > 1 ? h("span", { class: "quiet" }, ` and in ${hit.values - 1} more values`) : null;
  return h(
    "li",
    {},
    h("a", { href: link("row", { file, row: hit.row, find: hit.match }) }, h("b", {}, `row ${number(hit.row)}`), " ", h("code", {}, hit.path || "")),
    h("div", {}, visible(hit.before), h("mark", {}, visible(hit.match)), visible(hit.after), more),
  );
}

async function run(file, text, { list, bar, note, stop }, signal) {
  const rows = [];
  const cancel = new AbortController();
  signal.addEventListener("abort", () => cancel.abort());
  stop.addEventListener("click", () => cancel.abort());
  const take = (event) => {
    if (event.hit) {
      rows.push(event.hit.row);
      list.append(hitLine(file, event.hit));
      return;
    }
    const { searched_bytes: done, total_bytes: total, hits, is_done: isDone } = event.progress;
    if (total) Object.assign(bar, { max: total || 1, value: done });
    const where = isDone && hits >= 1000 ? "stopped after 1,000 rows" : `${bytes(done)}${total ? ` of ${bytes(total)}` : ""}`;
    note.textContent = `${number(hits)} ${hits === 1 ? "row" : "rows"}, ${where}${isDone ? "" : " …"}`;
    if (isDone) note.dataset.done = "true";
  };
  try {
    await stream("search", { file, text }, take, cancel.signal);
  } catch (error) {
    if (signal.aborted) return;
    note.textContent += cancel.signal.aborted ? " (cancelled)" : ` ${error.message}`;
    note.dataset.done = "cancelled";
  }
  stop.hidden = true;
  rememberList(file, rows);
}

export async function searchView({ params, file, signal }) {
  const text = params.get("text") || "";
  const input = h("input", { id: "search", type: "search", value: text, placeholder: "Search in all messages", "aria-label": "Search", spellcheck: "false" });
  const submit = (event) => {
    event.preventDefault();
    go("search", { file, text: input.value });
  };
  const parts = {
    list: h("ol", { class: "hits" }),
    bar: h("progress", { value: 0, max: 1 }),
    note: h("span", { id: "search-note" }),
    stop: h("button", { id: "cancel-search", type: "button" }, "Cancel"),
  };
  const form = h("form", { class: "filter", onsubmit: submit }, input, h("button", {}, "Search"));
  setViewKeys({ "/": () => input.focus() });
  if (text) run(file, text, parts, signal);
  else setTimeout(() => input.focus(), 0);
  return h("div", {}, form, text ? h("div", { class: "between" }, h("div", {}, parts.bar, " ", parts.note), parts.stop) : h("p", { class: "quiet" }, "Finds a text in every message, tool call, result and field, in any case. A search of a large file shows its progress and can be cancelled."), parts.list);
}
