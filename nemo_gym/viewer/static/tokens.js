// Tokens of a rollout: ids, what is trained on, log-prob heat, and where a prompt does not extend what came before.

import { get } from "./api.js";
import { h, number, replace, visible } from "./dom.js";
import { setViewKeys } from "./keys.js";
import { go, link } from "./route.js";

const heat = (logProb) => (logProb === null || logProb === undefined ? "" : `heat${Math.max(0, Math.min(9, Math.floor(-logProb * 2)))}`);

// The text of a token with its white space visible, or its id.
const shown = (id, text) => (text === null || text === undefined ? String(id) : visible(text).replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/ /g, "·") || String(id));

function ids(call) {
  const prompt = call.prompt.map((id, place) => h("span", { class: "token masked", title: `${id}: prompt, not trained on` }, shown(id, call.prompt_texts[place])));
  const made = call.generation.map((id, place) => {
    const logProb = call.log_probs[place];
    const chance = logProb === undefined || logProb === null ? "no log-prob" : `log-prob ${number(logProb)} (${number(100 * Math.exp(logProb))} %)`;
    return h("span", { class: `token made ${heat(logProb)}`, title: `${id}: generated, trained on, ${chance}` }, shown(id, call.generation_texts[place]));
  });
  return [prompt, made];
}

function callCard(call, file, row, page, signal) {
  const list = h("div", { class: "tokens" }, ids(call));
  const most = Math.max(call.new_tokens, call.generated_tokens);
  const turn = async (offset) => {
    const found = await get("tokens", { file, row, call: call.call, offset }, signal);
    replace(list, ids(found.calls[call.call]));
    label.textContent = `tokens from ${number(offset)}`;
    Object.assign(call, { offset });
  };
  const label = h("span", { class: "quiet" });
  const pages = most > page ? [h("button", { onclick: () => turn(Math.max(0, call.offset - page)) }, "‹"), h("button", { onclick: () => call.offset + page < most && turn(call.offset + page) }, "›"), label] : null;
  return h(
    "section",
    { class: "card" },
    h("h2", {}, `call ${call.call + 1}`),
    h("p", {}, `${number(call.shared_tokens)} tokens as before, ${number(call.new_tokens)} new in the prompt, ${number(call.generated_tokens)} generated, mean log-prob ${number(call.mean_log_prob)} `, pages),
    call.is_break ? h("p", { class: "warn break" }, `Prefix break: the prompt does not extend the tokens so far. Only ${number(call.shared_tokens)} agree; a new segment starts here.`) : null,
    list,
  );
}

export async function tokensView({ params, file, signal }) {
  const row = Number(params.get("row") || 0);
  const found = await get("tokens", { file, row }, signal);
  const back = link("row", { file, row });
  setViewKeys({ u: () => (location.hash = back), t: () => go("row", { file, row }) });
  const head = h("div", { class: "between head" }, h("div", {}, h("a", { href: back }, `‹ row ${number(row)}`), h("b", {}, " tokens")), h("div", { class: "legend" }, h("span", { class: "token masked" }, "prompt"), [0, 2, 4, 6, 9].map((step) => h("span", { class: `token made heat${step}` }, step ? `≤ ${-step / 2}` : "≈ 0")), " log-prob"));
  if (!found.calls.length) return h("div", {}, head, h("p", { class: "quiet", id: "no-tokens" }, "This rollout has no token ids. A model server for training writes them, for example vllm_model."));
  const faults = found.faults.length ? h("section", { class: "card warn" }, h("h2", {}, "What does not fit"), h("ul", {}, found.faults.map((fault) => h("li", {}, fault)))) : null;
  const noTexts = found.has_texts ? null : h("p", { class: "quiet", id: "no-texts" }, "The record has the ids of tokens, not their text. To see it, open the file with the tokenizer: ng view FILE --tokenizer tokenizer.json");
  return h("div", {}, head, noTexts, faults, found.calls.map((call) => callCard(call, file, row, found.page, signal)));
}
