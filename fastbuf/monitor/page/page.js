// The page: what is shown, of which moment, and what has been chosen.
import { clock, make, named, percent, seconds, timed, withCode } from "/page/format.js";
import { Flame } from "/page/flame.js";
import { Graph } from "/page/graph.js";
import { Heat } from "/page/heat.js";
import { Line } from "/page/line.js";
import { Streams } from "/page/streams.js";
import { Tasks } from "/page/tasks.js";

const at = (id) => document.getElementById(id);
const chosen = { job: null, vertex: null, subtask: null, moment: null };
let latest = null; // the last snapshot that came
let shown = null; // and the one that is looked at
let lineOf = null;
let cameAt = 0;
let events = null; // the stream of snapshots
let again = 0; // the timer of the next try, when it was refused
let refused = false; // for want of a token: no further try helps
const AGAIN_MS = 2000;

const graph = new Graph(at("graph"), (vertex) => { chosen.vertex = vertex; chosen.subtask = null; render(); });
const tasks = new Tasks(at("tasks"), at("legend"), (subtask) => { chosen.subtask = chosen.subtask === subtask ? null : subtask; render(); });
const heat = new Heat(at("heat"));
const streams = new Streams(at("streams"), at("queries"));
const flame = new Flame(at("flame"), fetchJson, (subtask) => { chosen.subtask = subtask; render(); });
const line = new Line(at("line"), at("scrubber"), at("moment"), at("live"), seek);
tasks.again = render;
at("job").addEventListener("change", () => { Object.assign(chosen, { job: at("job").value, vertex: null, subtask: null }); seek(null); });

async function fetchJson(path) {
  try {
    const answer = await fetch(path, { credentials: "same-origin" });
    if (answer.status === 401) shut();
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

function shut() {
  refused = true;
  events?.close();
  say("This page needs its whole address: open the URL that was printed, with all that stands behind the #.");
  tell("not let in", true);
}

// Only what has changed is put in anew: who selects text to copy it keeps the selection.
function fill(element, text, ...nodes) {
  if (element.dataset.said === text) return;
  element.dataset.said = text;
  element.replaceChildren(...nodes);
}

function say(text) { fill(at("sentence"), text, ...withCode(text)); }

function tell(text, lost = false) {
  if (at("status").textContent !== text) at("status").textContent = text;
  at("status").classList.toggle("lost", lost);
}

// Another moment; null: now.
let seeking = 0;
async function seek(moment) {
  chosen.moment = moment;
  line.show(moment);
  const mine = (seeking += 1);
  if (moment === null) shown = latest;
  else {
    const found = await fetchJson(`/history/moment?at=${moment}`);
    if (mine !== seeking || !found) return;
    shown = found;
  }
  render();
}

// The job that was chosen; else one that runs; else the last.
function pick(snapshot) {
  const { jobs } = snapshot;
  return jobs.find((job) => job.id === chosen.job) ?? jobs.findLast((job) => job.state === "RUNNING") ?? jobs.at(-1);
}

function list(jobs) {
  const options = jobs.toReversed().map((job) => ({ id: job.id, words: `${job.name} · ${clock(job.began)} · ${job.state.toLowerCase()}` }));
  const text = JSON.stringify(options);
  if (text === at("job").dataset.shown) return;
  at("job").dataset.shown = text;
  at("job").replaceChildren(...options.map(({ id, words }) => make("option", { value: id }, words)));
}

function render() {
  if (!shown) return;
  list(latest.jobs);
  const job = pick(shown) ?? (chosen.moment === null ? null : pick(latest));
  const queries = shown.queries ?? [];
  streams.show(queries);
  document.body.classList.toggle("idle", !job);
  document.body.classList.toggle("bare", !job && queries.length > 0);
  if (!job) {
    const query = queries.findLast((one) => one.running) ?? queries.at(-1);
    say(query?.sentence ?? "Nothing has run yet. As soon as an exchange begins, it is shown here.");
    return;
  }
  at("job").value = job.id;
  if (lineOf !== job.id) {
    lineOf = job.id;
    line.load({ at: [], blocked: [], busy: [], recordsPerSecond: [] });
    fetchJson(`/jobs/${encodeURIComponent(job.id)}/history`).then((found) => { if (found && lineOf === job.id) { line.load(found); line.show(chosen.moment); } });
  }
  // Of one that failed nobody asks who held it up
  const failed = verdict(job), roots = (failed ? null : job.diagnosis)?.roots ?? [];
  const vertex = job.vertices.find((v) => v.id === chosen.vertex) ?? job.vertices.find((v) => v.id === roots[0]?.vertex) ?? job.vertices.findLast((v) => v.running) ?? job.vertices.at(-1);
  graph.show(failed ? { ...job, diagnosis: null } : job, vertex.id);
  fill(at("subtasks-title"), vertex.name, "Subtasks of ", named(vertex.name), ", by lost time");
  tasks.show(vertex, chosen.subtask, new Set(roots.filter((root) => root.vertex === vertex.id).map((root) => root.subtask)));
  const ends = job.vertices.filter((v) => v.exchange === vertex.exchange);
  heat.show(ends.find((v) => v.side === "producers"), ends.find((v) => v.side === "consumers"));
  flame.show(job, vertex, chosen.subtask);
  line.show(chosen.moment);
}

function verdict(job) {
  const { diagnosis } = job;
  // Of several failed exchanges the one with the shortest reason: the others quote it, and add to it
  const failed = job.exchanges.filter((exchange) => exchange.outcome === "aborted").reduce((a, b) => (a && a.reason.length <= b.reason.length ? a : b), null);
  const roots = failed ? [] : diagnosis?.roots ?? [];
  // What to do stands in a line of its own
  const split = (root) => (root.remedy && root.sentence.endsWith(root.remedy) ? root.sentence.slice(0, -root.remedy.length).trim() : root.sentence);
  const frame = (root, text) => (root.frame ? text.replace(root.frame, `\`${root.frame}\``) : text);
  if (failed) say(`\`${failed.name}\` failed: ${failed.reason.split("\n")[0]}`);
  else if (roots.length) say(frame(roots[0], split(roots[0])));
  else say(diagnosis?.sentence ?? `Nothing is known of what holds up this exchange: its tasks ${timed(job.vertices.flatMap((v) => v.subtasks)) ? "do not tell while they run" : "tell their rows and bytes alone"}.`);
  const remedy = roots[0]?.remedy ?? "";
  fill(at("remedy"), remedy, remedy);
  fill(at("reason"), failed?.reason ?? "", make("summary", {}, "All that it said"), make("pre", {}, failed?.reason ?? ""));
  at("reason").hidden = !failed?.reason.includes("\n");
  const others = roots.slice(1).map((root) => frame(root, root.sentence));
  fill(at("also"), others.join("\n"), ...others.map((words) => make("li", {}, ...withCode(words))));
  const items = [];
  if (failed) items.push(make("li", {}, make("span", { class: "level high" }, "FAILED")));
  else if (diagnosis) {
    items.push(make("li", {}, make("span", { class: `level ${diagnosis.level.toLowerCase()}` }, diagnosis.level), " · producers held back ", make("b", {}, percent(diagnosis.blocked))));
    if (roots.length) items.push(make("li", {}, "share of the lost time ", make("b", {}, percent(roots[0].share))), make("li", {}, "confidence ", make("b", {}, percent(roots[0].confidence))));
  }
  items.push(make("li", {}, job.state === "RUNNING" ? "running for " : "took ", make("b", {}, seconds(job.seconds))));
  fill(at("evidence"), items.map((item) => item.textContent).join("\n"), ...items);
  return Boolean(failed);
}

function took(snapshot) {
  latest = snapshot;
  cameAt = performance.now();
  if (chosen.moment === null) shown = snapshot;
  const job = pick(snapshot);
  if (job && job.id === lineOf) line.add(job, snapshot.at);
  if (chosen.moment === null) render();
  else { list(snapshot.jobs); line.show(chosen.moment); }
}

function watch() {
  events?.close();
  const mine = events = new EventSource("/events");
  mine.addEventListener("snapshot", (event) => {
    const begin = performance.now();
    took(JSON.parse(event.data));
    document.documentElement.dataset.drawMs = (performance.now() - begin).toFixed(1);
  });
  mine.addEventListener("error", () => {
    tell("connection lost; trying again", true);
    // A refusal closes it for good: the driver is another one, or too many pages watch
    if (mine === events && mine.readyState === EventSource.CLOSED) later();
  });
}

function later() {
  clearTimeout(again);
  again = setTimeout(start, AGAIN_MS);
}

function tick() {
  if (events?.readyState !== EventSource.OPEN || !latest) return;
  if (chosen.moment === null) tasks.grow();
  const late = (performance.now() - cameAt) / 1000;
  if (late > 5) tell(`no news for ${Math.round(late)} s`, true);
  else tell(chosen.moment === null ? `live · ${clock(latest.at)}` : `looking back at ${clock(chosen.moment)}`);
}

const given = () => new URLSearchParams(location.hash.slice(1)).get("token");

async function start() {
  const token = given();
  clearTimeout(again);
  refused = false;
  if (token) {
    history.replaceState(null, "", "/");
    lineOf = null; // another driver may have a job of the same name
    await fetch("/login", { method: "POST", credentials: "same-origin", headers: { "content-type": "application/json" }, body: JSON.stringify({ token }) }).catch(() => null);
  }
  const snapshot = await fetchJson("/snapshot");
  if (snapshot) {
    took(snapshot);
    watch();
  } else if (!refused) later();
}

addEventListener("hashchange", () => { if (given()) start(); }); // the whole address was put into this tab
setInterval(tick, 200);
start();
