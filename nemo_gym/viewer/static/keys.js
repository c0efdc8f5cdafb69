// Keyboard: some keys work everywhere, the others belong to the view that is shown.

import { h } from "./dom.js";
import { current, fileOf, go } from "./route.js";
import { toggleTheme } from "./theme.js";

const HELP = [
  ["j, k or ↓, ↑", "next and previous row or rollout"],
  ["Enter", "open the marked row"],
  ["x", "select the marked row for export"],
  ["u or Esc", "back to the table"],
  ["f", "filter"],
  ["/", "search in all messages"],
  ["r", "show or hide all reasoning"],
  ["p", "plain text or rendered"],
  ["] and [", "next and previous turn"],
  ["s", "one turn at a time"],
  ["t", "tokens of the rollout"],
  ["w", "whole prompts and answers in the table"],
  ["e", "export the rollout or the selection as an HTML file"],
  ["h", "list of runs"],
  ["c", "compare the selected runs"],
  ["1 to 7", "rows, tasks, overview, failures, compare, search, live"],
  ["d", "dark or light"],
  ["?", "this list"],
];
const TABS = ["rows", "tasks", "overview", "failures", "compare", "search", "live"];
let viewKeys = {};

export function setViewKeys(keys) {
  viewKeys = keys;
}

function showHelp() {
  const open = document.querySelector("dialog");
  if (open) return open.close();
  const rows = HELP.map(([key, text]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, text)));
  const dialog = h("dialog", { onclose: () => dialog.remove() }, h("h2", {}, "Keys"), h("table", {}, rows));
  dialog.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  return dialog.showModal();
}

function press(event) {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const file = fileOf(current().params);
  const keys = {
    "?": showHelp,
    d: toggleTheme,
    "/": () => go("search", { file }),
    u: () => go("rows", { file }),
    h: () => go("runs"),
    ...Object.fromEntries(TABS.map((tab, place) => [String(place + 1), () => go(tab, { file })])),
    ...viewKeys,
  };
  keys.Escape ||= keys.u;
  keys.ArrowDown ||= keys.j;
  keys.ArrowUp ||= keys.k;
  const action = keys[event.key];
  if (!action || (event.key === "Escape" && document.querySelector("dialog"))) return;
  event.preventDefault();
  action();
}

export function initKeys() {
  document.addEventListener("keydown", press);
  document.addEventListener("help", showHelp);
}
