// Streams: for each query its stages, why its checkpoint waits, and its last checkpoints.
import { clock, count, make, named, percent, seconds, size, withCode } from "/page/format.js";

const CHECKPOINTS = 8;
const QUERIES = 6;
const WAITS = { credit: "for credit", link: "for the network", segment: "for memory" };
const STAGES = [["Stage"], ["Tasks", "number"], ["Rows in/s", "number"], ["Rows out/s", "number wide"], ["Held back"], ["Without rows", "number wide"], ["Watermark", "wide"], ["Lag", "number"]];
const ATTEMPTS = [["Checkpoint"], ["Took", "number"], ["Start delay", "number wide"], ["Alignment", "number"], ["Sync", "number wide"], ["Async", "number wide"], ["Written", "number"], ["Slowest, or why it failed", "wide"]];

export class Streams {
  constructor(section, place) {
    this.section = section;
    this.place = place;
  }

  show(queries) {
    this.section.hidden = !queries.length;
    const last = [...queries].sort((a, b) => a.running - b.running).slice(-QUERIES).reverse();
    const text = JSON.stringify(last);
    if (this.said === text) return;
    this.said = text;
    this.place.replaceChildren(...last.map(article));
  }
}

function article(query) {
  const about = [`generation ${query.generation}`, `${count(query.restarts)} restart${query.restarts === 1 ? "" : "s"}`, `since ${clock(query.began)}`];
  const made = make("article", { "data-query": query.name, class: query.running ? "" : "over" });
  made.append(make("h3", {}, named(query.name), " ", make("b", { class: `level ${of(query.state)}` }, query.state), make("span", { class: "about" }, ` · ${about.join(" · ")}`)));
  made.append(make("p", { class: "sentence" }, ...withCode(query.sentence)));
  if (query.stages.length) made.append(table("stages", STAGES, query.stages.map(stage)));
  for (const said of query.times) made.append(make("p", { class: "times" }, ...withCode(said)));
  if (query.waiting) made.append(make("p", { class: "waiting", role: "status" }, make("b", {}, "The checkpoint in progress "), query.waiting));
  if (query.checkpoints.length) made.append(table("checkpoints", ATTEMPTS, query.checkpoints.slice(-CHECKPOINTS).reverse().map(checkpoint)));
  return made;
}

const of = (state) => ({ running: "ok", failed: "high", restarting: "low" })[state] ?? "";

function table(kind, head, rows) {
  const line = make("tr", {}, ...head.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, number) => make("td", { class: head[number][1] }, cell))));
  return make("table", { class: kind }, make("thead", {}, line), make("tbody", {}, ...body));
}

function stage(found) {
  const tasks = found.running === found.tasks ? String(found.tasks) : `${found.running} of ${found.tasks}`;
  const waits = found.waits ? ` · waits ${WAITS[found.waits] ?? found.waits}` : "";
  const held = make("span", { class: `level ${found.level.toLowerCase()}` }, percent(found.backPressured), waits);
  const idle = found.idle === null ? "–" : percent(found.idle);
  const mark = found.watermark_ms === undefined ? "–" : new Date(found.watermark_ms).toISOString().replace("T", " ").replace(/\.000Z$|Z$/, "");
  const lag = found.watermark_lag_s === undefined ? "–" : seconds(found.watermark_lag_s);
  return [named(found.name), tasks, count(found.rowsInPerSecond), count(found.rowsOutPerSecond), held, idle, mark, lag];
}

function checkpoint(found) {
  const state = { completed: "", failed: " failed", "in progress": " in progress" }[found.state] ?? "";
  const part = (name) => (found[name] === undefined ? "–" : brief(found[name]));
  const id = make("span", { class: found.state === "failed" ? "level high" : "" }, `${found.id}${state}`);
  return [id, brief(found.duration_s), part("start_delay_s"), part("alignment_s"), part("sync_s"), part("async_s"), size(found.bytes ?? 0), found.reason || found.slowest || "–"];
}

const brief = (value) => (value < 1 ? `${Math.round(1000 * value)} ms` : seconds(value));
