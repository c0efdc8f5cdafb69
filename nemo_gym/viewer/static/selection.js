// What the user has selected for export, and the list that j and k walk through.

const chosen = new Map();
const list = { file: null, address: "", ids: [] };

const key = (file, row) => `${file}:${row}`;

export const isSelected = (file, row) => chosen.has(key(file, row));
export const selectedRows = () => [...chosen.values()];
export const clearSelection = () => chosen.clear();

export function select(file, row, isOn) {
  if (isOn) chosen.set(key(file, row), { file, row });
  else chosen.delete(key(file, row));
}

export function rememberList(file, ids) {
  Object.assign(list, { file, ids, address: location.hash });
}

export const listAddress = (file) => (list.file === file && list.address ? list.address : `#/rows?file=${file}`);

// The row after or before this one, in the order of the table it was opened from; else in the order of the file.
export function neighbour(file, row, step) {
  const place = list.file === file ? list.ids.indexOf(row) : -1;
  if (place < 0) return Math.max(0, row + step);
  return list.ids[place + step];
}
