// Metrics of a whole file: rewards, pass@k, reward against length, averages, the hardest and most uncertain tasks.

import { get } from "./api.js";
import { bars, curve, histogram, scatter } from "./charts.js";
import { h, number, percent, visible } from "./dom.js";
import { go, link } from "./route.js";

const card = (title, ...content) => h("section", { class: "card" }, h("h2", {}, title), content);

function taskList(file, groups) {
  if (!groups.length) return h("p", { class: "quiet" }, "None: there are no groups of repeats.");
  return h(
    "ol",
    { class: "tasks" },
    groups.map((group) =>
      h(
        "li",
        {},
        h("a", { href: link("row", { file, row: group.first }) }, group.task === null ? `row ${group.first}` : `task ${group.task}`),
        ` mean ${number(group.mean)}${group.spread ? `, spread ${number(group.spread)}` : ""}, ${number(group.scored)} ${group.scored === 1 ? "rollout" : "rollouts"} `,
        h("span", { class: "quiet" }, visible(group.prompt.slice(0, 90))),
      ),
    ),
  );
}

export async function overviewView({ params, file, signal }) {
  const where = params.get("where") || "";
  const [summary, hardest, uncertain] = await Promise.all([
    get("summary", { file, where }, signal),
    get("tasks", { file, where, sort: "mean", limit: 10 }, signal),
    get("tasks", { file, where, sort: "-spread", limit: 10 }, signal),
  ]);
  if (!summary.scored) {
    const outcomes = Object.entries(summary.outcomes);
    return h("div", { class: "cards" }, card("Rows", outcomes.length ? bars(outcomes) : h("p", {}, "The file has no rows.")));
  }
  const means = Object.entries(summary.means).filter(([, value]) => value !== null);
  const outcomes = Object.entries(summary.outcomes);
  const metrics = [
    ["rows", number(summary.rows)],
    ["mean reward", number(summary.reward.mean)],
    [`pass rate (reward ≥ ${summary.pass_threshold})`, percent(summary.passed / summary.scored)],
    ["tasks", number(summary.tasks)],
    ["groups without variance", `${number(summary.groups_without_variance)} of ${number(summary.groups)}`],
    ...means.map(([name, value]) => [`mean ${name.replace("_", " ")}`, number(value)]),
  ];
  return h(
    "div",
    { class: "cards" },
    card("Metrics", h("table", { class: "plain" }, metrics.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", { class: "figure" }, value))))),
    card("Rewards", histogram(summary.histogram, { labels: true })),
    card("pass@k", curve(summary.pass_at_k)),
    summary.scatter.length ? card("Reward against length", scatter(summary.scatter, { onpick: (row) => go("row", { file, row }) })) : null,
    card("Outcomes", bars(outcomes)),
    card("Hardest tasks", taskList(file, hardest.groups)),
    card("Most uncertain tasks", taskList(file, uncertain.groups.filter((group) => group.spread))),
  );
}
