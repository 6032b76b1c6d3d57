// The job over time, and the moment that is shown.
import { clock, count, make, timed } from "/page/format.js";

const MOST = 30_000; // moments: eight hours of seconds

export class Line {
  constructor(place, scrubber, moment, live, seek) {
    Object.assign(this, { place, scrubber, moment, live, seek, data: [[], [], [], []] });
    scrubber.addEventListener("input", () => this.seek(this.data[0][Number(scrubber.value)]));
    live.addEventListener("click", () => this.seek(null));
    new ResizeObserver(() => this.plot?.setSize({ width: place.clientWidth, height: 170 })).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // All of a job's moments, or one more.
  load(found) {
    this.data = [found.at, found.blocked, found.busy, found.recordsPerSecond];
    this.ran = false;
    this.draw();
  }

  add(job, at) {
    const times = this.data[0];
    const ran = this.ran;
    this.ran = job.state === "RUNNING";
    if (!this.ran && !ran) return; // its last moment is there already
    if (times.length && at - times[times.length - 1] < 0.9) return;
    const known = timed(job.vertices.flatMap((vertex) => vertex.subtasks)); // else there are no shares: null draws nothing
    const blocked = known ? Math.max(0, ...job.edges.filter((edge) => edge.kind === "exchange").map((edge) => edge.blocked)) : null;
    const busy = known ? Math.max(0, ...job.vertices.map((vertex) => vertex.busy.max)) : null;
    const rows = Math.max(0, ...job.vertices.filter((vertex) => vertex.side === "consumers").map((vertex) => vertex.recordsPerSecond));
    [at, blocked, busy, rows].forEach((value, column) => this.data[column].push(value));
    if (times.length > MOST) for (const column of this.data) column.splice(0, MOST / 10);
    if (this.plot) this.plot.setData(this.data);
    else this.draw();
  }

  show(at) {
    const last = Math.max(0, this.data[0].length - 1);
    this.scrubber.max = last;
    this.scrubber.disabled = !last;
    this.live.setAttribute("aria-pressed", at === null);
    if (at === null) this.scrubber.value = last;
    const shown = at ?? this.data[0][last];
    this.moment.textContent = shown === undefined ? "" : clock(shown);
    this.scrubber.setAttribute("aria-valuetext", this.moment.textContent);
    this.at = at;
    this.plot?.redraw(false);
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    if (!this.data[0].length) {
      this.place.replaceChildren(make("p", { class: "empty" }, "Nothing of this job has been kept yet."));
      return;
    }
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), font: "12px system-ui, sans-serif", grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
    const share = (plot, value, series, at) => (value === null || value === undefined ? (at === null || at === undefined ? "" : "not known") : `${Math.round(100 * value)} %`);
    const options = {
      width: this.place.clientWidth, height: 170,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true }, share: { range: [0, 1] }, rows: { range: (plot, low, high) => [0, Math.max(10, high)] } },
      axes: [
        { ...axis, grid: { show: false }, space: 70, incrs: [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600], values: (plot, ticks) => ticks.map(clock) },
        { ...axis, scale: "share", size: 48, values: (plot, ticks) => ticks.map((tick) => `${Math.round(100 * tick)} %`) },
        { ...axis, scale: "rows", side: 1, size: 56, grid: { show: false }, values: (plot, ticks) => ticks.map(count) },
      ],
      series: [
        { label: " ", value: (plot, at) => (at ? clock(at) : "") },
        { label: "held back", scale: "share", stroke: colour("--high"), width: 2, points: { show: false }, fill: `color-mix(in srgb, ${colour("--high")} 12%, transparent)`, value: share },
        { label: "busiest subtask", scale: "share", stroke: colour("--user"), width: 1.5, dash: [6, 4], points: { show: false }, value: share },
        { label: "rows/s (right)", scale: "rows", stroke: colour("--ok"), width: 1.5, dash: [2, 3], points: { show: false }, value: (plot, rows) => (rows === null || rows === undefined ? "" : count(rows)) },
      ],
      hooks: { draw: [(plot) => this.mark(plot, colour("--ink"))] },
    };
    this.place.replaceChildren();
    this.plot = new uPlot(options, this.data, this.place);
    this.plot.over.addEventListener("click", () => { const { idx } = this.plot.cursor; if (idx !== null && idx !== undefined) { this.scrubber.value = idx; this.seek(this.data[0][idx]); } });
  }

  mark(plot, ink) {
    if (this.at === null || this.at === undefined) return;
    const x = plot.valToPos(this.at, "x", true), { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ink;
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }
}
