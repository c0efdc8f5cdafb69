// The final state of an environment beside the expected one, value by value.

import { brief, entries, h, visible } from "./dom.js";
import { inside, textOf } from "./text.js";

const MAX_VALUES = 300;

// The values of nested objects by their path. Lists are values.
function flat(value, path = [], found = new Map()) {
  if (found.size >= MAX_VALUES) return found;
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value) && !("$cut" in value);
  if (!isObject || !entries(value).length) return path.length ? found.set(path.join(" › "), value) : found;
  for (const [name, each] of entries(value)) flat(each, [...path, name], found);
  return found;
}

const same = (one, other) => JSON.stringify(one ?? null).toLowerCase() === JSON.stringify(other ?? null).toLowerCase();

export function states(record, where) {
  const { final_state: last, expected_state: expected } = record;
  if (last === undefined && expected === undefined) return null;
  const [left, right] = [flat(expected), flat(last)];
  const paths = [...new Set([...left.keys(), ...right.keys()])];
  const missing = h("span", { class: "quiet" }, "–");
  const cell = (values, path, name) => {
    if (!values.has(path)) return missing.cloneNode(true);
    const value = values.get(path);
    return typeof value === "string" && value.length > 200 ? textOf(value, inside(where, name)) : visible(typeof value === "string" ? value : brief(value, 2000));
  };
  const line = (path) => {
    const isSame = same(left.get(path), right.get(path)) && left.has(path) === right.has(path);
    return h("tr", { class: isSame ? "same" : "differs" }, h("td", { class: "mark" }, isSame ? "=" : "≠"), h("td", {}, visible(path)), h("td", {}, cell(left, path, "expected_state")), h("td", {}, cell(right, path, "final_state")));
  };
  const differing = paths.filter((path) => !same(left.get(path), right.get(path)) || left.has(path) !== right.has(path));
  const head = differing.length ? h("span", { class: "down" }, `${differing.length} of ${paths.length} ${paths.length === 1 ? "value differs" : "values differ"}`) : h("span", { class: "up" }, "as expected");
  const body = paths.length ? h("table", { class: "plain states" }, h("tr", {}, ["", "", "expected", "final"].map((title) => h("th", {}, title))), [...differing, ...paths.filter((path) => !differing.includes(path))].map(line)) : h("p", { class: "quiet" }, "Nothing was to be changed, and nothing was.");
  return h("section", { class: "card state" }, h("h2", {}, "State ", head), body);
}
