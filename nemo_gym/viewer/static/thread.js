// A conversation as a thread: messages, folded reasoning, tool calls with arguments and results side by side, images.

import { h, number, visible } from "./dom.js";
import { inside, plainText, pretty, splitThinking, textOf } from "./text.js";

const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const MAX_ITEMS = 400;

// Chat messages with `tool_calls` and role `tool` as the items of the Responses API.
function normalize(items) {
  return items.flatMap(({ item, path, turn }) => normalized(item, path).map((each) => ({ ...each, turn })));
}

function normalized(item, path) {
  if (item === null || typeof item !== "object") return [{ item: { role: "user", content: String(item) }, path }];
  if (item.role === "tool") return [{ item: { type: "function_call_output", call_id: item.tool_call_id, output: item.content }, path, outputKey: "content" }];
  const calls = (Array.isArray(item.tool_calls) ? item.tool_calls : []).map((call, number) => ({
    item: { type: "function_call", call_id: call?.id, name: call?.function?.name, arguments: call?.function?.arguments },
    path: [...path, "tool_calls", number, "function"],
  }));
  const reasoning = item.reasoning_content ? [{ item: { type: "reasoning", content: item.reasoning_content }, path: [...path, "reasoning_content"] }] : [];
  const isEmpty = calls.length && !item.content;
  return [...reasoning, ...(isEmpty ? [] : [{ item, path }]), ...calls];
}

function imageOf(part) {
  const given = typeof part.image_url === "string" ? part.image_url : part.image_url?.url;
  if (typeof given === "string" && IMAGE.test(given)) return h("img", { src: given, alt: "image of the message", loading: "lazy" });
  return h("p", { class: "cut" }, `Image, not loaded: ${visible(plainText(given ?? part.file_id ?? "").slice(0, 200))}`);
}

function contentParts(content, where) {
  if (!Array.isArray(content)) return [withThinking(content, where)];
  return content.map((part, number) => {
    const here = inside(where, number);
    if (part?.type === "input_image" || part?.type === "image_url") return imageOf(part);
    if (part?.type === "refusal") return [h("span", { class: "outcome bad" }, "refusal"), textOf(part.refusal, inside(here, "refusal"))];
    if (part?.text !== undefined) return withThinking(part.text, inside(here, "text"));
    return textOf(part, here, { code: true });
  });
}

function withThinking(text, where) {
  const { thinking, rest } = splitThinking(text);
  return thinking === null ? textOf(text, where) : [folded("reasoning", thinking, where), textOf(rest, where)];
}

function folded(title, value, where) {
  const size = plainText(value).length;
  return h("details", { class: "reasoning" }, h("summary", {}, `${title} · ${number(size)} characters`), textOf(value, where));
}

function reasoning(item, where) {
  const parts = [...(Array.isArray(item.summary) ? item.summary : []), ...(Array.isArray(item.content) ? item.content : [item.content])];
  const texts = parts.map((part) => part?.text ?? part).filter((part) => part !== undefined && part !== null && part !== "");
  if (!texts.length) return h("details", { class: "reasoning" }, h("summary", {}, "reasoning, encrypted or empty"));
  return folded("reasoning", texts.length === 1 ? texts[0] : texts.map(plainText).join("\n\n"), where);
}

// Arguments: a text with lines of its own, such as code, is shown as such.
function argumentsOf(item, where) {
  const given = item.arguments;
  let parsed = null;
  try {
    parsed = typeof given === "string" ? JSON.parse(given) : given;
  } catch {
    return [h("p", { class: "warn" }, "The arguments are not JSON."), textOf(given, inside(where, "arguments"), { code: true })];
  }
  const isObject = parsed !== null && typeof parsed === "object" && !Array.isArray(parsed) && !("$cut" in parsed);
  const long = isObject ? Object.entries(parsed).filter(([, value]) => typeof value === "string" && value.includes("\n")) : [];
  if (!long.length) return textOf(typeof given === "string" ? pretty(given) : given ?? "", inside(where, "arguments"), { code: true });
  const rest = Object.fromEntries(Object.entries(parsed).filter(([name]) => !long.some(([each]) => each === name)));
  return [
    Object.keys(rest).length ? textOf(JSON.stringify(rest, null, 2), where, { code: true }) : null,
    long.map(([name, value]) => [h("div", { class: "label" }, visible(name)), textOf(value, inside(where, "arguments"), { code: true })]),
  ];
}

function toolCall({ item, path }, result, where) {
  const here = { ...where, path };
  const output = result
    ? textOf(typeof result.item.output === "string" ? pretty(result.item.output) : result.item.output ?? "", { ...where, path: [...result.path, result.outputKey || "output"] }, { code: true })
    : h("p", { class: "warn" }, "No result.");
  return h(
    "article",
    { class: "item tool" },
    h("header", {}, "tool call ", h("b", {}, visible(plainText(item.name ?? "?")))),
    h(
      "div",
      { class: "sides" },
      h("div", { class: "arguments" }, h("div", { class: "label" }, "arguments"), argumentsOf(item, here)),
      h("div", { class: "result" }, h("div", { class: "label" }, "result"), output),
    ),
  );
}

function message({ item, path }, where) {
  const role = plainText(item.role ?? item.type ?? "item");
  const here = { ...where, path };
  const known = ["system", "developer", "user", "assistant"].includes(role) ? role : "other";
  const content = item.content === undefined ? textOf(item, here, { code: true }) : contentParts(item.content, inside(here, "content"));
  const source = item.produced_by ? ` · ${plainText(item.produced_by)}` : "";
  const branch = item.thread ? ` · thread ${plainText(item.thread)}` : "";
  return h("article", { class: `item ${known}` }, h("header", {}, visible((role + source + branch).slice(0, 120))), content);
}

export function thread(items, where) {
  const all = normalize(items);
  const results = new Map(all.filter(({ item }) => item.type === "function_call_output").map((each) => [each.item.call_id, each]));
  const called = new Set(all.filter(({ item }) => item.type === "function_call").map(({ item }) => item.call_id));
  const show = (each) => {
    const type = each.item.type;
    if (type === "function_call") return toolCall(each, results.get(each.item.call_id), where);
    if (type === "reasoning") return h("article", { class: "item assistant" }, reasoning(each.item, { ...where, path: each.path }));
    if (type === "function_call_output") {
      if (called.has(each.item.call_id)) return null;
      return h("article", { class: "item tool" }, h("header", {}, "result of an unknown call"), textOf(each.item.output ?? "", { ...where, path: [...each.path, "output"] }, { code: true }));
    }
    return message(each, where);
  };
  const list = h("div", { class: "thread" });
  const extend = (from) => {
    const shown = all.slice(from, from + MAX_ITEMS).map((each) => [each, show(each)]);
    for (const [{ turn }, article] of shown) if (article && turn !== undefined) article.dataset.turn = turn;
    list.append(...shown.map(([, article]) => article).filter(Boolean));
    const left = all.length - from - MAX_ITEMS;
    if (left <= 0) return;
    const more = h("button", { class: "more", onclick: () => (more.remove(), extend(from + MAX_ITEMS)) }, `Show more of ${number(left)} items`);
    list.append(more);
  };
  extend(0);
  return list;
}

// What the model was given and what it made of it, each item with its path in the record.
export function itemsOf(record, prefix = []) {
  const isFailure = typeof record.cause === "string" && record.row !== null && typeof record.row === "object";
  const row = isFailure ? record.row : record;
  const base = isFailure ? ["row"] : prefix;
  const params = row.responses_create_params ?? {};
  const given = params.input !== undefined ? ["responses_create_params", "input"] : row.messages !== undefined ? ["messages"] : ["prompt"];
  const input = given.reduce((value, key) => value?.[key], row);
  const list = (value, path) =>
    Array.isArray(value)
      ? value.map((item, number) => ({ item, path: [...path, number] }))
      : value === undefined || value === null
        ? []
        : [{ item: { role: "user", content: value }, path }];
  const instructions = params.instructions ? [{ item: { role: "system", content: params.instructions }, path: [...base, "responses_create_params", "instructions"] }] : [];
  return {
    input: [...instructions, ...list(input, [...base, ...given])],
    output: list(record.response?.output, [...prefix, "response", "output"]),
    tools: Array.isArray(params.tools) ? params.tools : [],
  };
}
