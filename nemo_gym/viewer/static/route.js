// Deep links: #/rows?file=0&where=reward+%3C+1. Every view can be opened, bookmarked and sent by its address.

export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { name: path, params: new URLSearchParams(query || "") };
}

export function link(name, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") query.append(key, each);
    }
  }
  const text = query.toString();
  return `#/${name}${text ? `?${text}` : ""}`;
}

export function go(name, parameters) {
  location.hash = link(name, parameters);
}

// The current view with some parameters changed. A page number does not survive another change.
export function withParams(changes) {
  const { name, params } = current();
  const next = { offset: undefined };
  for (const key of new Set(params.keys())) if (key !== "offset") next[key] = params.getAll(key);
  return link(name, { ...next, ...changes });
}

// Files of the command line are called 0, 1, …; others have the id of their run.
export const fileOf = (params) => params.get("file") || "0";
export const fileNamed = (files, id) => files.find((each) => each.id === id);
