// Elements and texts. Text goes into the page as text nodes alone: nothing here makes HTML of a string.

const SVG = "http://www.w3.org/2000/svg";

/** An element with these properties and children. Strings become text nodes. */
export function el(name, properties = {}, ...children) {
  return filled(document.createElement(name), properties, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Set the text of a node, without touching it if it is the same: screen readers and selections stay. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Text of others, apart from the direction of what is around it. */
export const foreign = (text) => el("bdi", {}, clipped(text, 200));

export function clipped(text, most) {
  const whole = String(text ?? "");
  return whole.length > most ? `${whole.slice(0, most - 1)}…` : whole;
}

/**
 * Show rows in a table that keeps its elements: only what has changed is touched. Each cell is a string, or
 * {text, title, node, key}: a node is replaced if its key has changed.
 */
export function fill(table, headings, rows) {
  if (!table.tHead) {
    const cells = headings.map((heading) => el("th", { scope: "col" }, heading));
    table.append(el("thead", {}, el("tr", {}, ...cells)), el("tbody"));
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  rows.forEach((cells, number) => {
    const row = body.rows[number] ?? body.appendChild(emptyRow(cells.length));
    cells.forEach((cell, column) => show(row.cells[column], cell));
  });
  table.hidden = rows.length === 0;
}

function emptyRow(columns) {
  const cells = Array.from({ length: columns }, (_, column) =>
    column === 0 ? el("th", { scope: "row" }) : el("td"));
  return el("tr", {}, ...cells);
}

function show(place, cell) {
  const value = typeof cell === "object" && cell !== null ? cell : { text: cell };
  if (value.node) {
    if (place.dataset.key === value.key) return;
    place.dataset.key = value.key;
    place.replaceChildren(value.node());
  } else {
    say(place, String(value.text));
    if (value.title !== undefined && place.title !== value.title) place.title = value.title;
  }
}

export const dash = "–";

export function seconds(value) {
  if (value === null || value === undefined) return dash;
  if (value >= 100) return `${Math.round(value)} s`;
  if (value >= 1) return `${value.toFixed(2)} s`;
  if (value >= 0.01) return `${Math.round(value * 1000)} ms`;
  return value === 0 ? "0 ms" : `${(value * 1000).toFixed(1)} ms`;
}

export const percent = (share) => (share === null || share === undefined ? dash : `${Math.round(share * 100)} %`);

export const number = (value) => (value === null || value === undefined ? dash : value.toLocaleString("en"));

export function bytesPerSecond(value) {
  if (value === null || value === undefined) return dash;
  const [unit, size] = value >= 1e9 ? ["GB/s", 1e9] : value >= 1e6 ? ["MB/s", 1e6] : ["kB/s", 1e3];
  return `${(value / size).toFixed(1)} ${unit}`;
}

export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");
