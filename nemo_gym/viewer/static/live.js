// Runs in progress: how far they are, what is in flight and for how long, and a button to cancel one rollout.

import { get, post } from "./api.js";
import { bars } from "./charts.js";
import { bytes, duration, h, number, replace, visible } from "./dom.js";
import { link } from "./route.js";

const EVERY_MS = 1000;

function progress(run) {
  const failed = Object.values(run.failed).reduce((sum, count) => sum + count, 0);
  const done = run.scored + failed;
  const left = run.per_second > 0 ? ` · ${duration((run.total - done) / run.per_second)} left` : "";
  return h(
    "div",
    { class: "strip" },
    h("progress", { max: run.total || 1, value: done }),
    h("div", {}, h("b", {}, number(done)), ` of ${number(run.total)} rollouts`),
    h("div", {}, h("b", {}, number(run.mean_reward)), " mean reward so far"),
    h("div", {}, h("b", {}, number(run.per_second)), ` a second${left}`),
    h("div", {}, h("b", { class: "in-flight" }, number(run.in_flight)), ` in flight of at most ${number(run.max_in_flight)}`),
    (run.alarms ?? []).map((says) => h("div", { class: "outcome bad", "data-alarm": "" }, `sign of reward hacking: ${says}`)),
    Object.entries(run.failed).map(([cause, count]) => h("span", { class: "outcome bad" }, `${cause} ${number(count)}`)),
  );
}

function stages(run) {
  const rows = Object.entries(run.stages);
  if (!rows.length) return null;
  const flying = rows.map(([name, stage]) => [name, stage.in_flight]);
  const times = rows.map(([name, stage]) => [name, stage.seconds, `${duration(stage.seconds)} in ${number(stage.requests)} requests`]);
  return [h("section", { class: "card" }, h("h2", {}, "Requests in flight by stage"), bars(flying)), h("section", { class: "card" }, h("h2", {}, "Time by stage"), bars(times, { width: 520 }))];
}

function workers(run) {
  const line = (worker) =>
    h("tr", {}, h("td", {}, worker.worker === "head" ? "head server" : worker.worker), h("td", {}, number(worker.rollouts)), h("td", {}, duration(worker.cpu_seconds)), h("td", {}, worker.memory_bytes === undefined ? "–" : bytes(worker.memory_bytes)), h("td", {}, number(worker.open_files)));
  const head = ["worker", "rollouts in flight", "CPU time", "memory", "open files"].map((title) => h("th", {}, title));
  return h("section", { class: "card" }, h("h2", {}, "Workers"), run.workers.length ? h("table", { class: "rows" }, h("tr", {}, head), run.workers.map(line)) : h("p", { class: "quiet" }, "Their metrics cannot be read."));
}

// What was asked of the rollouts that the user cancelled: a status that was sent before still lists them.
const asked = new Map();

function cancelButton(run, rollout) {
  const key = `${run.id}/${rollout.number}`;
  const button = h("button", { class: "cancel", disabled: asked.has(key), onclick: () => cancel() }, asked.get(key) ?? "cancel");
  const show = (text) => {
    asked.set(key, text);
    button.textContent = text;
  };
  const cancel = async () => {
    button.disabled = true;
    show("cancelling");
    try {
      const { cancelled } = await post("live/cancel", { run: run.id, number: rollout.number });
      show(cancelled ? "cancelled" : "ended already");
      if (!cancelled) asked.delete(key); // one that is listed again can be cancelled again
    } catch (error) {
      asked.delete(key);
      button.disabled = false;
      button.textContent = "cancel again";
      button.title = error.message;
    }
  };
  return button;
}

function inFlight(run) {
  const line = (rollout) =>
    h(
      "tr",
      { "data-rollout": rollout.task_index },
      h("td", {}, number(rollout.task_index)),
      h("td", {}, number(rollout.repeat_index)),
      h("td", {}, duration(rollout.seconds)),
      h("td", {}, rollout.stage ?? "–"),
      h("td", {}, rollout.server ? `${rollout.server}${rollout.path}` : rollout.agent),
      h("td", {}, duration(rollout.stage_seconds)),
      h("td", {}, cancelButton(run, rollout)),
    );
  const head = ["task", "repeat", "age", "stage", "waits for", "since", ""].map((title) => h("th", {}, title));
  return h("section", { class: "card" }, h("h2", {}, `Rollouts in flight, the oldest ${number(run.rollouts.length)} of ${number(run.in_flight)}`), h("table", { class: "rows" }, h("tr", {}, head), run.rollouts.map(line)));
}

function slowest(run) {
  const line = (ended) => h("tr", {}, h("td", {}, number(ended.task_index)), h("td", {}, number(ended.repeat_index)), h("td", {}, duration(ended.seconds)), h("td", {}, ended.outcome));
  const head = ["task", "repeat", "time", "outcome"].map((title) => h("th", {}, title));
  if (!run.slowest.length) return null;
  return h("section", { class: "card" }, h("h2", {}, "Slowest so far"), h("table", { class: "rows" }, h("tr", {}, head), run.slowest.map(line)));
}

function runView(run, files) {
  const file = files.find((each) => each.path === run.output);
  const name = visible([run.environment, run.model].filter(Boolean).join(" · ") || run.output.split("/").at(-1));
  const title = file ? h("a", { href: link("rows", { file: file.id, sort: "-row" }) }, name) : name;
  return h("div", { "data-run": run.id }, h("h2", { title: run.output }, title, h("span", { class: "quiet" }, ` process ${run.pid}`)), progress(run), h("div", { class: "cards" }, stages(run)), inFlight(run), h("div", { class: "cards" }, workers(run), slowest(run)));
}

export async function liveView({ files, signal }) {
  const list = h("div", {});
  const note = h("p", { class: "quiet" });
  const view = h("div", {}, note, list);
  const update = async () => {
    const { runs, silent } = await get("live", {}, signal);
    const isHeld = list.querySelector("button.cancel:enabled:hover, button.cancel:enabled:focus");
    const isPaused = isHeld && runs.length; // so that no other button comes under the pointer
    note.textContent = isPaused ? "Paused while a cancel button is under the pointer or has the focus." : `Updated every second.${silent ? ` ${number(silent)} more ${silent === 1 ? "does" : "do"} not answer now, because the process is busy.` : ""}`;
    if (isPaused) return;
    replace(list, runs.length ? runs.map((run) => runView(run, files)) : h("p", { class: "quiet", id: "no-runs" }, silent ? "" : "No collection of yours runs on this machine now."));
  };
  const repeat = async () => {
    while (!signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
      if (!signal.aborted) await update().catch(() => {});
    }
  };
  await update();
  repeat();
  return view;
}
