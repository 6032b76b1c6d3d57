// Who waited for whom: seconds that each producer was blocked by each consumer, as a map of M rows and R columns.
import { make, seconds } from "/page/format.js";

const MOST_HIGH = 300, CELL = 26;

export class Heat {
  constructor(place) {
    this.place = place;
    this.canvas = make("canvas", { tabindex: 0, role: "img" });
    this.read = make("output", { class: "heat-read", "aria-live": "polite" });
    this.least = make("span");
    this.most = make("span");
    this.others = make("span", {}, " · rest: all consumers that a producer waited for less");
    const ramp = make("p", { class: "key" }, this.least, make("span", { class: "ramp" }), this.most, this.others);
    this.left = make("div", { class: "ticks", "aria-hidden": "true" });
    this.below = make("div", { class: "ticks", "aria-hidden": "true" });
    this.frame = make("div", { class: "heat-frame" }, make("span", { class: "rows" }, "producers"), this.left, this.canvas, this.below, make("span", { class: "columns" }, "consumers"));
    this.body = make("div", {}, this.frame, this.read, ramp);
    this.none = make("p", { class: "empty" }, "No producer has waited for a consumer.");
    place.append(this.body, this.none);
    this.cursor = null;
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.tell(this.cursor));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  // `exchange`: the two vertices at the ends of an edge.
  show(producers, consumers) {
    const rows = producers?.subtasks ?? [];
    this.names = rows.map((task) => task.subtask);
    const columns = new Set((consumers?.subtasks ?? []).map((task) => task.subtask));
    for (const task of rows) for (const target of Object.keys(task.blocked ?? {})) if (target !== "rest") columns.add(Number(target));
    this.targets = [...columns].sort((a, b) => a - b);
    const rest = rows.some((task) => task.blocked?.rest > 0);
    this.others.hidden = !rest;
    if (rest) this.targets.push("rest");
    const place = new Map(this.targets.map((target, column) => [String(target), column]));
    this.values = new Float64Array(this.names.length * this.targets.length);
    this.top = { value: 0, row: 0, column: 0 };
    rows.forEach((task, row) => {
      for (const [target, held] of Object.entries(task.blocked ?? {})) {
        const column = place.get(target);
        this.values[row * this.targets.length + column] = held;
        if (held > this.top.value) this.top = { value: held, row, column };
      }
    });
    const seen = this.top.value > 0;
    this.body.hidden = !seen;
    this.none.hidden = seen;
    if (!seen) return;
    this.least.textContent = "0 s";
    this.most.textContent = seconds(this.top.value);
    this.canvas.setAttribute("aria-label", `Map of ${this.names.length} producers and ${columns.size} consumers, by blocked time. The longest: ${this.words(this.top)}. Arrow keys move about.`);
    if (this.cursor && (this.cursor.row >= this.names.length || this.cursor.column >= this.targets.length)) this.cursor = null;
    this.paint();
    this.tell(this.cursor);
  }

  words({ row, column }) {
    const held = this.values[row * this.targets.length + column], target = this.targets[column];
    return `producer ${this.names[row]} waited ${seconds(held)} for ${target === "rest" ? "all other consumers" : `consumer ${target}`}`;
  }

  tell(cell) {
    const text = this.values ? (cell ? this.words(cell) : `the longest: ${this.words(this.top)}`) : "";
    if (this.read.textContent !== text) this.read.textContent = text;
  }

  paint() {
    if (!this.values?.length || this.body.hidden) return;
    const style = getComputedStyle(document.documentElement);
    const [cold, hot] = ["--heat-0", "--heat-1"].map((name) => style.getPropertyValue(name).trim().split(" ").map(Number));
    const rows = this.names.length, columns = this.targets.length;
    const room = Math.max(40, this.frame.clientWidth - 56);
    const wide = Math.min(room, columns * CELL), high = Math.min(MOST_HIGH, rows * CELL);
    const dense = devicePixelRatio || 1;
    const width = Math.round(wide * dense), height = Math.round(high * dense);
    this.canvas.width = width;
    this.canvas.height = height;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    // More cells than pixels: a pixel shows the longest wait below it
    const across = Math.min(columns, width), down = Math.min(rows, height);
    const cells = new Float64Array(across * down);
    for (let row = 0; row < rows; row += 1) {
      const y = Math.floor((row * down) / rows) * across;
      for (let column = 0; column < columns; column += 1) {
        const at = y + Math.floor((column * across) / columns);
        const held = this.values[row * columns + column];
        if (held > cells[at]) cells[at] = held;
      }
    }
    const to = this.canvas.getContext("2d");
    const gap = width / across >= 6 && height / down >= 6 ? Math.round(dense) : 0;
    to.clearRect(0, 0, width, height);
    const colour = (held) => {
      const share = Math.sqrt(held / this.top.value);
      return cold.map((from, part) => Math.round(from + (hot[part] - from) * share));
    };
    if (!gap) {
      // Many cells: as one picture, which is stretched
      const small = new OffscreenCanvas(across, down), pixels = new ImageData(across, down);
      cells.forEach((held, at) => pixels.data.set([...colour(held), 255], 4 * at));
      small.getContext("2d").putImageData(pixels, 0, 0);
      to.imageSmoothingEnabled = false;
      to.drawImage(small, 0, 0, width, height);
    }
    for (let row = 0; gap && row < down; row += 1) {
      const y = Math.round((row * height) / down), tall = Math.round(((row + 1) * height) / down) - y - gap;
      for (let column = 0; column < across; column += 1) {
        to.fillStyle = `rgb(${colour(cells[row * across + column]).join(" ")})`;
        const x = Math.round((column * width) / across);
        to.fillRect(x, y, Math.round(((column + 1) * width) / across) - x - gap, tall);
      }
    }
    this.ticks(this.below, this.targets, wide, "left");
    this.ticks(this.left, this.names, high, "top");
    if (this.cursor) {
      to.strokeStyle = style.getPropertyValue("--ink");
      to.lineWidth = 2 * dense;
      const { row, column } = this.cursor;
      to.strokeRect((column * width) / columns + dense, (row * height) / rows + dense, width / columns - 2 * dense - gap, height / rows - 2 * dense - gap);
    }
  }

  // Numbers beside the cells, where there is room for them.
  ticks(place, names, length, side) {
    const each = length / names.length;
    const step = Math.ceil(20 / each);
    place.replaceChildren(...names.flatMap((name, number) => {
      if (number % step && name !== "rest") return [];
      const tick = make("span", {}, name === "rest" ? "rest" : String(name));
      tick.style[side] = `${(number + 0.5) * each}px`;
      return [tick];
    }));
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.names.length);
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.targets.length);
    if (row >= 0 && column >= 0 && row < this.names.length && column < this.targets.length) this.tell({ row, column });
  }

  key(event) {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (event.key === "Escape") this.cursor = null;
    else if (!step) return;
    else if (!this.cursor) this.cursor = { row: this.top.row, column: this.top.column };
    else {
      this.cursor = {
        row: Math.min(this.names.length - 1, Math.max(0, this.cursor.row + step[0])),
        column: Math.min(this.targets.length - 1, Math.max(0, this.cursor.column + step[1])),
      };
    }
    event.preventDefault();
    this.paint();
    this.tell(this.cursor);
  }
}
