// The subtasks of a stage, by lost time.
import { count, grown, make, ORDER, percent, seconds, size, STATES } from "/page/format.js";

const FIRST = 12;
// As LOSSES of task.py
const LOSSES = [["buffers_dropped", "dropped {} buffers"], ["records_dropped", "dropped {} records"], ["consumers_cut", "cut off {} consumers"], ["producers_lost", "lost {} producers"], ["records_cut", "dropped {} half records"], ["records_missed", "missed {} records"], ["skipped", "skipped {} records"]];

export class Tasks {
  constructor(place, legend, choose) {
    this.place = place;
    this.choose = choose;
    this.all = false;
    this.rows = new Map();
    for (const state of ORDER) if (state !== "other") legend.append(make("li", {}, make("i", { class: `s-${state}` }), STATES[state]));
  }

  show(vertex, subtask, roots) {
    if (this.vertex?.id !== vertex.id) {
      this.rows.clear();
      this.all = false;
      this.place.replaceChildren();
    }
    this.vertex = vertex;
    this.since = performance.now();
    if (!vertex.subtasks.length) {
      this.place.replaceChildren(make("p", { class: "empty" }, "None of them has told its figures yet; each does so once a second."));
      this.rows.clear();
      return;
    }
    if (!this.rows.size) this.frame(vertex);
    const order = [...vertex.subtasks].sort((a, b) => b.lost - a.lost || b.busy - a.busy || a.subtask - b.subtask);
    const shown = this.all ? order : order.slice(0, FIRST);
    const wanted = new Set(shown.map((task) => task.subtask));
    for (const [number, row] of this.rows) if (!wanted.has(number)) { row.line.remove(); this.rows.delete(number); }
    const most = Math.max(...order.map((task) => sum(grown(task, 0))), 1e-9);
    shown.forEach((task, place) => {
      const row = this.rows.get(task.subtask) ?? this.row(task.subtask);
      if (this.body.children[place] !== row.line) this.body.insertBefore(row.line, this.body.children[place] ?? null);
      row.task = task;
      row.most = most;
      row.line.classList.toggle("root", roots.has(task.subtask) || roots.has(null));
      row.line.setAttribute("aria-current", task.subtask === subtask);
      this.fill(row, 0);
    });
    this.more.hidden = order.length <= FIRST;
    this.more.textContent = this.all ? `Show the first ${FIRST}` : `Show all ${order.length}`;
  }

  frame(vertex) {
    const lost = vertex.side === "consumers" ? "Waited for" : "Held back";
    const said = vertex.side === "consumers" ? "Waited for: seconds of all producers together." : "Held back: seconds in which it could not send.";
    const key = make("p", { class: "key" }, said, make("span", { class: "extra" }, " Pools: how full the memory for rows on their way is. Pauses: seconds in which the task could not run, since it began."));
    const head = [["Subtask"], ["Now", "wide"], ["Time"], [lost, "number"], ["Rows/s", "number wide"], ["Bytes/s", "number extra"], ["Pools", "extra"], ["Pauses", "extra"]];
    this.body = make("tbody");
    this.more = make("button", { type: "button", class: "more" });
    this.more.addEventListener("click", () => { this.all = !this.all; this.again?.(); });
    const line = make("tr", {}, ...head.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)));
    this.place.replaceChildren(make("table", { "aria-labelledby": "subtasks-title" }, make("thead", {}, line), this.body), this.more, key);
  }

  row(number) {
    const pick = make("button", { type: "button", "aria-label": `Subtask ${number}: show its code` }, String(number));
    pick.addEventListener("click", () => this.choose(number));
    const bar = make("div", { class: "bar", role: "img" });
    const parts = new Map();
    for (const state of ORDER) {
      const part = make("span", { class: `s-${state}` });
      parts.set(state, part);
      bar.append(part);
    }
    const small = make("span", { class: "small narrow" });
    const cells = { now: make("td", { class: "wide now" }), lost: make("td", { class: "number" }), rows: make("td", { class: "number wide" }), bytes: make("td", { class: "number extra" }), pools: make("td", { class: "extra pools" }), pauses: make("td", { class: "extra pauses" }) };
    const line = make("tr", { "data-subtask": number }, make("td", {}, pick), cells.now, make("td", { class: "time" }, bar, small), cells.lost, cells.rows, cells.bytes, cells.pools, cells.pauses);
    const row = { line, bar, parts, cells, small };
    this.rows.set(number, row);
    return row;
  }

  // What changes between two reports, too.
  fill(row, since) {
    const { task, cells } = row, took = grown(task, since), known = new Set(ORDER);
    const other = Object.entries(took).reduce((all, [state, held]) => all + (known.has(state) ? 0 : held), 0);
    const total = Math.max(sum(took), 1e-9), scale = 100 / Math.max(row.most, total);
    const shares = [];
    for (const [state, part] of row.parts) {
      const held = state === "other" ? other : took[state] ?? 0;
      part.style.width = `${(held * scale).toFixed(2)}%`;
      if (held > 0.005 * total) { shares.push(`${STATES[state]} ${percent(held / total)}`); part.title = `${STATES[state]}: ${seconds(held)} (${percent(held / total)})`; }
    }
    row.bar.setAttribute("aria-label", shares.join(", ") || "nothing told");
    put(cells.now, now(task, took));
    // Where there is no room for a column of rows, they are all that is told of such a task
    put(row.small, now(task, took) + (task.seconds ? "" : ` · ${count(task.records ?? 0)} rows`));
    const gone = task.lost + (lostNow(task) ? since : 0);
    put(cells.lost, gone >= 0.05 ? seconds(gone) : "–");
    if (since) return;
    put(cells.rows, rate(task, task.recordsPerSecond, task.records, count));
    put(cells.bytes, rate(task, task.bytesPerSecond, task.bytes, size));
    const pools = [["out", task.outPoolUsage], ["in", task.inPoolUsage], ["floating", task.floatingBuffersUsage]].filter(([, used]) => used !== undefined && used !== null);
    const full = [pools.map(([name, used]) => `${name} ${percent(used)}`).join(", ") || (task.segments ? `peak ${task.peak_segments ?? 0} of ${task.segments}` : "")];
    const queued = task.outputQueueLength ?? task.inputQueueLength;
    if (queued) full[0] += `${full[0] && ", "}${count(queued)} queued`;
    for (const [name, words] of LOSSES) if (task[name]) full.push(words.replace("{}", count(task[name])));
    if (task.samples?.taken) full.push(`sampled ${percent((task.samples.blocked ?? 0) / task.samples.taken)} ${task.samples.level ?? ""}`);
    lines(cells.pools, full.filter(Boolean));
    const pauses = [["gc", task.gc_s], ["stopped", task.stopped_s], ["no CPU", task.queued_s], ["throttled", task.throttled_s], ["disk", task.io_wait_s]].filter(([, held]) => held >= 0.05);
    lines(cells.pauses, pauses.map(([name, held]) => `${name} ${seconds(held)}`));
  }

  // Waits under way grow as one looks; a task that has not told for long stands still.
  grow() {
    if (!this.vertex) return;
    const since = Math.min((performance.now() - this.since) / 1000, 3);
    for (const row of this.rows.values()) if (row.task.state) this.fill(row, since);
  }
}

const sum = (took) => Object.values(took).reduce((all, held) => all + held, 0);
const rate = (task, now, all, words) => (now !== undefined ? words(now) : task.state ? "–" : `${words(all ?? 0)} in all`);
const lostNow = (task) => ["credit", "link", "segment"].includes(task.state);

function now(task, took) {
  if (!task.state) return "ended";
  const target = task.target === undefined || task.target === null ? "" : ` of ${task.target}`;
  const words = (STATES[task.state] ?? task.state) + target;
  return ["user", "runs"].includes(task.state) ? words : `${words} (${seconds(took[task.state] ?? 0).replaceAll(" ", "\u00a0")})`;
}

function lines(cell, said) {
  if (cell.dataset.said === said.join()) return;
  cell.dataset.said = said.join();
  cell.replaceChildren(...(said.length ? said.map((words) => make("div", {}, words)) : ["–"]));
}

function put(cell, text) { if (cell.textContent !== text) cell.textContent = text; }
