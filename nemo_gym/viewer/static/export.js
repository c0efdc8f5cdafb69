// One rollout or a selection as a single HTML file, without scripts: what is on the page, with its style.

import { get } from "./api.js";
import { h } from "./dom.js";
import { rolloutBody } from "./rollout.js";

const MAX_ROWS = 300;
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

async function documentOf(rows) {
  const page = document.implementation.createHTMLDocument("Rollouts");
  const style = page.createElement("style");
  style.textContent = await (await fetch("/style.css")).text();
  const charset = page.createElement("meta");
  charset.setAttribute("charset", "utf-8");
  const policy = page.createElement("meta");
  policy.setAttribute("http-equiv", "Content-Security-Policy");
  policy.setAttribute("content", POLICY);
  page.head.prepend(charset, policy);
  page.head.append(style);
  const { files } = await get("files", {});
  for (const { file, row } of rows.slice(0, MAX_ROWS)) {
    const found = await get("row", { file, row });
    const body = rolloutBody(found, file);
    body.querySelectorAll("button, a.raw").forEach((each) => each.remove());
    page.body.append(page.importNode(h("section", { class: "exported" }, h("h1", {}, `${files[file].name}, row ${row}`), body), true));
  }
  return `<!doctype html>\n${page.documentElement.outerHTML}\n`;
}

export async function exportRows(rows) {
  const text = await documentOf(rows);
  const name = rows.length === 1 ? `rollout-${rows[0].row}.html` : `rollouts-${rows.length}.html`;
  const url = URL.createObjectURL(new Blob([text], { type: "text/html" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
