// Turns of a rollout: a bar for each with its time, and a way to step through them.

import { duration, h, number, replace } from "./dom.js";

const MODEL_ITEMS = new Set(["reasoning", "function_call"]);
const isModels = (item) => MODEL_ITEMS.has(item?.type) || item?.role === "assistant";

// Number the turns of the output: each begins with what the model says after anybody else.
export function withTurns(output) {
  let turn = -1;
  let before = false;
  return output.map((each) => {
    const now = isModels(each.item);
    if (now && !before) turn += 1;
    before = now;
    return { ...each, turn: Math.max(0, turn) };
  });
}

// The time of each turn: what the record says of its steps, if it has as many.
function timesOf(record, count) {
  const given = record._step_seconds;
  if (!Array.isArray(given) || given.length !== count) return null;
  return given.map((each) => ({ model: Number(each?.model) || 0, tools: Number(each?.tools) || 0 }));
}

export function turnStrip(record, output, root) {
  const count = output.length ? output.at(-1).turn + 1 : 0;
  if (count < 2) return null;
  const times = timesOf(record, count);
  const most = Math.max(1e-9, ...(times ?? []).map((time) => time.model + time.tools));
  const state = { turn: -1, alone: false };
  const label = h("span", { id: "turn-label", class: "quiet" });
  const bars = Array.from({ length: count }, (_, turn) => {
    const time = times?.[turn];
    const title = time ? `turn ${turn + 1}: model ${duration(time.model)}${time.tools ? `, tools ${duration(time.tools)}` : ""}` : `turn ${turn + 1}`;
    const parts = time ? [tall("tools", time.tools / most), tall("model", time.model / most)] : [tall("model", 0.5)];
    return h("button", { class: "turn-bar", title, "aria-label": title, onclick: () => to(turn) }, parts);
  });
  const alone = h("button", { title: "One turn at a time (s)", onclick: () => toggle() }, "one at a time");
  const total = times ? times.reduce((sum, time) => ({ model: sum.model + time.model, tools: sum.tools + time.tools }), { model: 0, tools: 0 }) : null;
  const legend = total ? h("span", { class: "quiet legend" }, h("i", { class: "key model" }), `model ${duration(total.model)}`, h("i", { class: "key tools" }), `tools ${duration(total.tools)}`) : null;
  const strip = h(
    "section",
    { class: "card turns" },
    h("div", { class: "between" }, h("div", {}, h("b", {}, `${number(count)} turns`), " ", legend), h("div", {}, label, " ", h("button", { title: "Previous turn ([)", onclick: () => to(state.turn - 1) }, "‹"), h("button", { title: "Next turn (])", onclick: () => to(state.turn + 1) }, "›"), " ", alone)),
    h("div", { class: "turn-bars" }, bars),
  );

  function tall(kind, share) {
    const step = share > 0 ? Math.max(1, Math.round(share * 20)) : 0;
    return h("span", { class: `${kind} tall${step}` });
  }

  function to(turn) {
    state.turn = Math.max(0, Math.min(count - 1, turn));
    const thread = root();
    while (!thread.querySelector(`[data-turn="${state.turn}"]`) && thread.querySelector(":scope > button.more")) thread.querySelector(":scope > button.more").click();
    thread.querySelectorAll(".current-turn").forEach((each) => each.classList.remove("current-turn"));
    thread.querySelectorAll(`[data-turn="${state.turn}"]`).forEach((each) => each.classList.add("current-turn"));
    bars.forEach((bar, place) => bar.classList.toggle("on", place === state.turn));
    const time = times?.[state.turn];
    replace(label, `turn ${number(state.turn + 1)} of ${number(count)}${time ? `, ${duration(time.model + time.tools)}` : ""}`);
    bars[state.turn].scrollIntoView({ block: "nearest", inline: "nearest" });
    if (!state.alone) thread.querySelector(".current-turn")?.scrollIntoView({ block: "start" });
  }

  function toggle() {
    state.alone = !state.alone;
    root().classList.toggle("alone", state.alone);
    alone.classList.toggle("on", state.alone);
    to(Math.max(0, state.turn));
  }

  return { strip, keys: { "]": () => to(state.turn + 1), "[": () => to(state.turn - 1), s: toggle } };
}
