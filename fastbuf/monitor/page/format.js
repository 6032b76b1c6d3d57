// Words and numbers, and the few helpers that make elements.  Names are always put in as text.

export const STATES = {
  user: "busy in the function", codec: "encodes or decodes", credit: "waits for credit", link: "waits for the network",
  segment: "waits for memory", engine_out: "waits for its reader", input: "waits for rows",
  engine_in: "waits for its input", starting: "waits for producers to start", other: "other",
};
export const ORDER = ["user", "codec", "other", "credit", "link", "segment", "engine_out", "input", "engine_in", "starting"];

export function make(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "class") found.className = value;
    else found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children);
  return found;
}

export function draw(tag, attributes = {}, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

// The beginning and the end of what is too long; all of it is in the title.
export const MOST_NAME = 64;
export function named(text) {
  if (text.length <= MOST_NAME) return make("code", {}, text);
  return make("code", { title: text }, `${text.slice(0, MOST_NAME / 2)}…${text.slice(1 - MOST_NAME / 2)}`);
}

// `names` between backticks become code; all else is text.
export function withCode(text) {
  return text.split("`").map((part, number) => (number % 2 ? named(part) : part));
}

export const percent = (share) => `${Math.round(100 * share)} %`;

export function seconds(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 600) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function count(value) {
  if (value < 10_000) return Math.round(value).toLocaleString("en");
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  return String(value);
}

export function size(value) {
  let unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export const clock = (at) => new Date(1000 * at).toLocaleTimeString("en-GB");

export const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Whether tasks tell what they do with their time; those of a blocking exchange tell their rows alone.
export const timed = (tasks) => !tasks.length || tasks.some((task) => task.seconds);

// Seconds of a task by state, with what it has been doing since it last told: a wait that goes on grows.  Of tasks that
// tell their rows alone (``runs``) there are none.
export function grown(task, since) {
  const found = { ...(task.seconds ?? {}) };
  if (task.state && task.state !== "runs" && since > 0) found[task.state] = (found[task.state] ?? 0) + since;
  return found;
}
