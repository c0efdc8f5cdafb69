// Runs in progress.

import { h } from "./dom.js";

export async function liveView() {
  return h("p", {}, "");
}
