// The list of runs: search, tags, mean rewards of each environment over time, and the way to compare some of them.

import { get, post } from "./api.js";
import { sparkline } from "./charts.js";
import { duration, fixed, h, number, replace, rewardClass, signed, visible } from "./dom.js";
import { setViewKeys } from "./keys.js";
import { go, link, withParams } from "./route.js";

const MAX_CARDS = 12;
const MAX_POINTS = 40;
const MAX_COMPARED = 8;
const EVERY_MS = 3000;
const chosen = new Set();

const when = (seconds, style = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false }) => (seconds ? new Date(seconds * 1000).toLocaleString("en", style) : "–");
const WHOLE = { dateStyle: "full", timeStyle: "long" };
const nameOf = (run) => run.environment || run.output.split("/").at(-1);
const open = (run) => go("rows", { file: run.id });

// Runs by a key, in the order of their first one.
function grouped(runs, key) {
  const groups = new Map();
  for (const run of runs) groups.set(key(run), [...(groups.get(key(run)) || []), run]);
  return [...groups];
}

function modelLine(model, runs) {
  const points = runs.slice(0, MAX_POINTS).reverse().map((run) => ({ run, value: run.mean, title: `${when(run.started_at)}: ${number(run.mean)}` }));
  const [last, before] = runs;
  const change = before === undefined ? null : last.mean - before.mean;
  return h(
    "tr",
    {},
    h("td", { class: "model", title: visible(model) }, visible(model || "unknown model")),
    h("td", {}, sparkline(points, { onpick: ({ run }) => open(run) })),
    h("td", { class: "num" }, h("span", { class: rewardClass(last.mean) }, fixed(last.mean))),
    h("td", { class: `num ${change > 0 ? "up" : change < 0 ? "down" : "quiet"}`, title: "against the run before" }, change === null ? "" : change ? signed(change, fixed) : "="),
  );
}

// The mean reward of each environment over time, a line for each model.
function trends(runs) {
  const scored = runs.filter((run) => typeof run.mean === "number" && run.environment);
  const cards = grouped(scored, (run) => run.environment).slice(0, MAX_CARDS);
  if (!cards.length) return null;
  return h(
    "div",
    { class: "cards trends" },
    cards.map(([environment, own]) =>
      h(
        "section",
        { class: "card" },
        h("h2", {}, h("a", { href: withParams({ search: `environment:${environment}` }) }, visible(environment)), h("span", { class: "quiet" }, ` ${number(own.length)} ${own.length === 1 ? "run" : "runs"}`)),
        h("table", { class: "plain" }, grouped(own, (run) => run.model).map(([model, each]) => modelLine(model, each))),
      ),
    ),
  );
}

function tagCell(run, isRegistry) {
  const cell = h("td", { class: "tags" });
  const chips = () => run.tags.map((tag) => h("a", { class: "chip", href: withParams({ search: `tag:${tag}` }) }, visible(tag)));
  const edit = () => {
    const input = h("input", { class: "tag-input", value: run.tags.join(", "), "aria-label": "Tags", placeholder: "tag, tag" });
    const save = async () => {
      try {
        run.tags = (await post("runs/tags", { run: run.id, tags: input.value.split(",") })).tags;
        show();
      } catch (error) {
        replace(cell, h("span", { class: "error" }, error.message));
      }
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") save();
      if (event.key === "Escape") show();
    });
    replace(cell, input);
    input.focus();
  };
  const show = () => replace(cell, chips(), isRegistry ? h("button", { class: "add-tag", title: "Change the tags", onclick: edit }, run.tags.length ? "✎" : "+ tag") : null);
  show();
  return cell;
}

function stateOf(run) {
  if (run.state === "running") return h("span", { class: "outcome live" }, "running");
  if (!run.is_there) return h("span", { class: "outcome ok", title: run.output }, "file is gone");
  return run.state === "interrupted" ? h("span", { class: "outcome warned" }, "interrupted") : null;
}

function line(run, { isRegistry, hasCommits }, onSelect) {
  const name = visible(nameOf(run));
  const interval = run.interval_95 ? run.interval_95.map((bound) => fixed(bound, 2)).join(" to ") : "–";
  const tokens = (run.input_tokens || 0) + (run.output_tokens || 0);
  const box = h("input", { type: "checkbox", "aria-label": `Select run ${run.id}`, checked: chosen.has(run.id), disabled: !run.is_there, onchange: (event) => onSelect(run.id, event.target.checked) });
  return h(
    "tr",
    { "data-run": run.id, class: run.is_there ? "" : "gone", onclick: (event) => event.target.closest("a, input, button, .tags") || (run.is_there && open(run)) },
    h("td", {}, box),
    h("td", { class: "name", title: run.output }, run.is_there ? h("a", { href: link("rows", { file: run.id }) }, name) : name, " ", stateOf(run)),
    h("td", { title: visible(run.agent) }, visible(run.model || "–")),
    h("td", { class: "num" }, h("span", { class: rewardClass(run.mean) }, fixed(run.mean))),
    h("td", { class: "num quiet" }, interval),
    h("td", { class: "num" }, run.total ? `${number(run.scored ?? 0)} of ${number(run.total)}` : number(run.scored)),
    h("td", { class: `num${run.failed ? " down" : ""}` }, run.failed ? number(run.failed) : "–"),
    h("td", { class: "num" }, run.cost === null ? (tokens ? `${number(tokens)} tokens` : "–") : `$${run.cost.toFixed(2)}`),
    h("td", { class: "num", title: when(run.started_at, WHOLE) }, when(run.started_at)),
    h("td", { class: "num" }, duration(run.seconds)),
    hasCommits ? h("td", {}, run.commit ? h("code", { title: run.commit }, run.commit.slice(0, 7)) : "–") : null,
    h("td", {}, run.config_hash ? h("code", { title: "Hash of dataset, options, configuration and code: equal if made the same way" }, run.config_hash.slice(0, 6)) : "–"),
    tagCell(run, isRegistry),
  );
}

const HEAD = [["", ""], ["environment", ""], ["model", ""], ["mean reward", "num"], ["95 %", "num"], ["scored", "num"], ["failed", "num"], ["cost", "num"], ["started", "num"], ["took", "num"], ["commit", ""], ["config", ""], ["tags", ""]];

function table(found, onSelect) {
  const shown = { isRegistry: found.is_registry, hasCommits: found.runs.some((run) => run.commit) };
  const head = HEAD.filter(([title]) => title !== "commit" || shown.hasCommits);
  const rows = (runs) => runs.map((run) => line(run, shown, onSelect));
  const folders = grouped(found.runs, (run) => run.folder);
  const parts = found.is_registry ? [rows(found.runs)] : folders.sort(([one], [other]) => one.localeCompare(other)).map(([folder, runs]) => [folderLine(folder, runs), ...rows(runs)]);
  return h("div", { class: "scroll wide" }, h("table", { class: "rows runs" }, h("thead", {}, h("tr", {}, head.map(([title, kind]) => h("th", { class: kind }, title)))), parts.map((part) => h("tbody", {}, part))));
}

function folderLine(folder, runs) {
  const toggle = (event) => {
    const body = event.currentTarget.closest("tbody");
    const isClosed = body.classList.toggle("closed");
    event.currentTarget.setAttribute("aria-expanded", String(!isClosed));
  };
  return h("tr", { class: "folder", onclick: toggle, "aria-expanded": "true", style: null }, h("td", {}), h("td", { colspan: HEAD.length - 1 }, h("b", {}, `${visible(folder)}/`), h("span", { class: "quiet" }, ` ${number(runs.length)} ${runs.length === 1 ? "file" : "files"}`)));
}

export async function runsView({ params, signal }) {
  const search = params.get("search") || "";
  let found = await get("runs", { search }, signal);
  const input = h("input", { id: "find-run", type: "search", value: search, placeholder: "Search: letter_count model:gpt tag:baseline state:running", "aria-label": "Search runs", spellcheck: "false" });
  const submit = (event) => {
    event.preventDefault();
    location.hash = withParams({ search: input.value });
  };
  const actions = h("div", { class: "actions" });
  const list = h("div", {});
  const showActions = () => {
    const ids = found.runs.filter((run) => chosen.has(run.id)).map((run) => run.id).reverse();
    const compare = () => go("compare", { file: ids[0], other: ids.slice(1) });
    const clear = () => {
      chosen.clear();
      draw();
    };
    const isPossible = ids.length > 1 && ids.length <= MAX_COMPARED;
    const hint = ids.length > MAX_COMPARED ? `at most ${MAX_COMPARED} can be compared` : "select two or more to compare them";
    replace(
      actions,
      h("button", { id: "compare-runs", disabled: !isPossible, title: "The oldest is the one that the others are compared with (c)", onclick: compare }, ids.length > 1 ? `Compare ${ids.length} runs` : "Compare"),
      ids.length ? h("button", { onclick: clear }, "Clear") : null,
      isPossible ? null : h("span", { class: "quiet" }, ` ${hint}`),
    );
  };
  const onSelect = (id, isOn) => {
    if (isOn) chosen.add(id);
    else chosen.delete(id);
    showActions();
  };
  const tags = [...new Set(found.runs.flatMap((run) => run.tags))].slice(0, 20);
  const draw = () => {
    const count = `${number(found.total)} ${found.total === 1 ? "run" : "runs"}${found.total > found.runs.length ? `, the newest ${number(found.runs.length)}` : ""}`;
    const empty = search ? "No run has all of these words." : "No runs yet. Every collection registers itself; this one makes a few rollouts on your CPU: ng eval letter_count --model local -n 4";
    replace(list, trends(found.runs), h("div", { class: "between" }, h("span", { id: "run-count" }, count), actions), found.runs.length ? table(found, onSelect) : h("p", { class: "quiet", id: "no-runs" }, empty));
    showActions();
  };
  draw();
  const marked = () => list.querySelector("tr.marked");
  const mark = (step) => {
    const rows = [...list.querySelectorAll("tr[data-run]")];
    const place = rows.findIndex((row) => row.classList.contains("marked"));
    const next = rows[Math.max(0, Math.min(rows.length - 1, place + step))];
    rows[place]?.classList.remove("marked");
    next?.classList.add("marked");
    next?.scrollIntoView({ block: "nearest" });
  };
  setViewKeys({
    j: () => mark(1),
    k: () => mark(-1),
    Enter: () => marked()?.querySelector("a")?.click(),
    x: () => marked()?.querySelector("input").click(),
    c: () => actions.querySelector("button:enabled")?.click(),
    f: () => input.focus(),
    "/": () => input.focus(),
  });
  follow();
  return h("div", {}, h("form", { class: "filter", onsubmit: submit }, input, h("button", {}, "Search"), tags.map((tag) => h("a", { class: "chip", href: withParams({ search: `tag:${tag}` }) }, visible(tag)))), list);

  // Runs in progress move on, and new ones appear, unless the user is typing a tag or has marked a row.
  async function follow() {
    while (!signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
      const now = signal.aborted ? null : await get("runs", { search }, signal).catch(() => null);
      if (!now || signal.aborted || JSON.stringify(now) === JSON.stringify(found) || list.contains(document.activeElement) || marked()) continue;
      found = now;
      draw();
    }
  }
}
