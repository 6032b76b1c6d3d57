// Where in the code a stage's tasks were found, as a flame graph: on a CPU, waiting, or both.
import { make, percent, timed } from "/page/format.js";

const HIGH = 22, THIN = 0.002, EVERY_MS = 5000;
const KINDS = { full: "all", on_cpu: "on CPU", off_cpu: "waiting" };

export class Flame {
  constructor(place, fetchJson, choose) {
    this.fetchJson = fetchJson;
    this.choose = choose;
    this.kind = "full";
    this.path = [];
    const kinds = make("fieldset", { "aria-label": "Which samples" });
    for (const [kind, words] of Object.entries(KINDS)) {
      const input = make("input", { type: "radio", name: "kind", value: kind, checked: kind === "full" });
      input.addEventListener("change", () => { this.kind = kind; this.path = []; this.load(true); });
      kinds.append(make("label", {}, input, ` ${words}`));
    }
    this.pick = make("select");
    this.pick.addEventListener("change", () => this.choose(this.pick.value === "" ? null : Number(this.pick.value)));
    this.back = make("button", { type: "button", disabled: true }, "Whole graph");
    this.back.addEventListener("click", () => { this.path = []; this.paint(); });
    this.stack = make("div", { class: "flames" });
    this.read = make("output", { class: "flame-read" });
    this.none = make("p", { class: "empty" });
    place.append(make("div", { class: "tools" }, make("label", {}, "Subtask ", this.pick), kinds, this.back), this.stack, this.read, this.none);
  }

  show(job, vertex, subtask) {
    const numbers = vertex.subtasks.map((task) => task.subtask);
    const known = numbers.join();
    if (known !== this.known) {
      this.known = known;
      this.pick.replaceChildren(make("option", { value: "" }, "all"), ...numbers.map((number) => make("option", { value: number }, String(number))));
    }
    this.pick.value = subtask === null || !numbers.includes(subtask) ? "" : String(subtask);
    const where = `/jobs/${encodeURIComponent(job.id)}/vertices/${encodeURIComponent(vertex.id)}/flamegraph`;
    const which = this.pick.value === "" ? "" : `&subtaskindex=${this.pick.value}`;
    const changed = where !== this.where || which !== this.which;
    if (changed) this.path = [];
    Object.assign(this, { where, which, quiet: !timed(vertex.subtasks) });
    this.load(changed);
  }

  async load(now) {
    if (!now && (performance.now() - (this.loaded ?? -Infinity) < EVERY_MS || this.stack.contains(document.activeElement))) return;
    this.loaded = performance.now();
    const asked = `${this.where}?type=${this.kind}${this.which}`;
    this.asked = asked;
    const found = await this.fetchJson(asked);
    if (found && this.asked === asked) { this.tree = found.data; this.paint(); }
  }

  paint() {
    const tree = this.tree;
    let top = tree;
    for (const name of this.path) top = top?.children.find((child) => child.name === name);
    if (!top) { top = tree; this.path = []; }
    this.back.disabled = !this.path.length;
    this.none.hidden = tree.value > 0;
    this.none.textContent = this.quiet ? "Of these tasks no code is looked at." : this.kind === "full" ? "No line of the function was found running: it has not been busy when it was looked at." : `No stacks were taken ${KINDS[this.kind]}.`;
    this.stack.hidden = this.read.hidden = !tree.value;
    if (!tree.value) return;
    const nodes = [];
    let deepest = 0;
    const lay = (node, depth, left, path) => {
      const share = node.value / top.value;
      if (share < THIN) return;
      deepest = Math.max(deepest, depth);
      const name = path.length ? node.name : "all samples";
      const words = `${name}: ${percent(node.value / tree.value)} (${node.value} of ${tree.value} samples)`;
      const button = make("button", { type: "button", class: "abc"[(name.length + depth) % 3], title: words, "aria-label": words }, name);
      button.style.left = `${100 * left}%`;
      button.style.width = `${100 * share}%`;
      button.style.top = `${depth * HIGH}px`;
      button.addEventListener("click", () => { this.path = path; this.paint(); this.stack.querySelector("button")?.focus(); });
      for (const kind of ["mouseenter", "focus"]) button.addEventListener(kind, () => { this.read.textContent = words; });
      nodes.push(button);
      let from = left;
      for (const child of node.children) { lay(child, depth + 1, from, [...path, child.name]); from += child.value / top.value; }
    };
    lay(top, 0, 0, this.path);
    this.stack.style.height = `${Math.min(420, (deepest + 1) * HIGH)}px`;
    this.stack.replaceChildren(...nodes);
    if (!this.read.textContent) this.read.textContent = "Click a line to see it alone.";
  }
}
