// One rollout or a selection as a single HTML file, without scripts: what is on the page, with its style.

import { get } from "./api.js";
import { h } from "./dom.js";
import { fileNamed } from "./route.js";
import { rolloutBody } from "./rollout.js";

const MAX_ROWS = 300;
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

async function documentOf(rows) {
  const style = await (await fetch("/style.css")).text();
  const { files } = await get("files", {});
  const page = h("body");
  for (const { file, row } of rows.slice(0, MAX_ROWS)) {
    const found = await get("row", { file, row });
    const body = rolloutBody(found, file);
    for (let more = body.querySelector("button.more"); more; more = body.querySelector("button.more")) more.click();
    body.querySelectorAll("button, a.raw").forEach((each) => each.remove());
    page.append(h("section", { class: "exported" }, h("h1", {}, `${fileNamed(files, file).name}, row ${row}`), body));
  }
  const head = `<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${POLICY}"><title>Rollouts</title>`;
  return `<!doctype html>\n<html lang="en"><head>${head}<style>${style}</style></head>${page.outerHTML}</html>\n`;
}

export async function exportRows(rows) {
  const text = await documentOf(rows);
  const name = rows.length === 1 ? `rollout-${rows[0].row}.html` : `rollouts-${rows.length}.html`;
  const url = URL.createObjectURL(new Blob([text], { type: "text/html" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
