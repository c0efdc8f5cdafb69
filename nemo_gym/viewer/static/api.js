// Requests to the viewer's own server. The token, if the server wants one, comes in the address: #token=...

const KEY = "nemo-gym-token";

export function takeToken() {
  const match = /[#&]token=([^&]+)/.exec(location.hash);
  if (!match) return;
  sessionStorage.setItem(KEY, decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname);
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(extra) {
  const token = sessionStorage.getItem(KEY);
  return token === null ? extra : { ...extra, "nemo-gym-token": token };
}

export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") query.append(name, each);
    }
  }
  return `/api/${path}?${query}`;
}

async function request(path, parameters, options = {}) {
  const answer = await fetch(address(path, parameters), { ...options, headers: headers(options.headers || {}) });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, body.detail || `The server answered ${answer.status}.`);
}

export async function get(path, parameters, signal) {
  return (await request(path, parameters, { signal })).json();
}

export async function post(path, body, signal) {
  const options = { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal };
  return (await request(path, {}, options)).json();
}

// Call `each` with every object of a stream of JSON lines.
export async function stream(path, parameters, each, signal) {
  const reader = (await request(path, parameters, { signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value || "")).split("\n");
    rest = lines.pop();
    for (const line of lines) each(JSON.parse(line));
    if (done) return;
  }
}

// Open a value in full in another tab. With a token, a link cannot ask for it, so the page does.
export async function openRaw(event, parameters) {
  if (!hasToken()) return;
  event.preventDefault();
  const blob = await (await request("raw", parameters)).blob();
  window.open(URL.createObjectURL(new Blob([blob], { type: "text/plain;charset=utf-8" })), "_blank", "noopener");
}
