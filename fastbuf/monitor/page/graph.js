// The stages as a graph: nodes filled by their busiest subtask, edges by how far producers are held back.
import { clip, count, draw, percent, timed } from "/page/format.js";

const WIDTH = 252, HEIGHT = 60, MARGIN = 10;
const CAUSES = { credit: "no credit", link: "network full", segment: "no memory" };

// As much of a name as there is room for.
function fit(element, text, room) {
  if (element.dataset.of === `${text} ${room}`) return;
  element.dataset.of = `${text} ${room}`;
  element.textContent = text;
  for (let most = text.length; most > 1 && element.getComputedTextLength() > room; most -= 1) {
    most = Math.min(most, Math.ceil((most * room) / element.getComputedTextLength()) + 1);
    element.textContent = clip(text, most - 1);
  }
}

export class Graph {
  constructor(place, choose) {
    this.place = place;
    this.choose = choose;
    this.shape = "";
  }

  show(job, vertex) {
    const shape = JSON.stringify([job.vertices.map((v) => v.id), job.edges.map((e) => [e.from, e.to])]);
    if (shape !== this.shape) this.lay(job);
    this.shape = shape;
    // A slow network is between two stages, not in one of them; the root names the consumer that it leads to, or the senders
    const links = new Set((job.diagnosis?.roots ?? []).filter((root) => root.cause === "slow_link").map((root) => root.vertex));
    const roots = new Set((job.diagnosis?.roots ?? []).filter((root) => root.cause !== "slow_link").map((root) => root.vertex));
    const first = job.diagnosis?.roots?.[0]?.vertex;
    for (const found of job.vertices) this.node(found, found.id === vertex, roots.has(found.id), found.id === first);
    const quiet = new Set(job.vertices.filter((found) => !timed(found.subtasks)).map((found) => found.id));
    job.edges.forEach((edge, number) => this.edge(edge, this.edges[number], quiet.has(edge.from), edge.kind === "exchange" && (links.has(edge.from) || links.has(edge.to))));
  }

  lay(job) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", ranksep: 62, nodesep: 28, marginx: MARGIN, marginy: MARGIN });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const vertex of job.vertices) graph.setNode(vertex.id, { width: WIDTH, height: HEIGHT });
    for (const edge of job.edges) graph.setEdge(edge.from, edge.to, {});
    dagre.layout(graph);
    const { width, height } = graph.graph();
    const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Stages and what flows between them" });
    root.style.maxWidth = `${Math.round(1.2 * width)}px`;
    root.style.margin = "0 auto";
    this.edges = job.edges.map((edge) => {
      const points = graph.edge(edge.from, edge.to).points;
      const end = points[points.length - 1], middle = points[Math.floor(points.length / 2)];
      const way = points.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");
      const group = draw("g", { class: "edge" });
      group.append(draw("path", { class: "way", d: way }));
      group.append(draw("path", { class: "head", d: `M${end.x - 6} ${end.y - 9}L${end.x + 6} ${end.y - 9}L${end.x} ${end.y}Z` }));
      const plate = draw("rect", { class: "plate", rx: 4, y: middle.y - 10, height: 20 });
      const text = draw("text", { x: middle.x, y: middle.y + 4 });
      group.append(plate, text, draw("title"));
      root.append(group);
      return { group, plate, text, x: middle.x };
    });
    this.nodes = new Map();
    for (const vertex of job.vertices) {
      const { x, y } = graph.node(vertex.id);
      const left = x - WIDTH / 2, top = y - HEIGHT / 2;
      const group = draw("g", { class: "node", tabindex: 0, role: "button", transform: `translate(${left} ${top})`, "data-vertex": vertex.id });
      group.append(
        draw("rect", { class: "ring", x: -6, y: -6, width: WIDTH + 12, height: HEIGHT + 12, rx: 13 }),
        draw("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 8 }),
      );
      const fill = draw("rect", { class: "fill", x: 1.5, y: 1.5, height: HEIGHT - 3, rx: 6, width: 0 });
      const mean = draw("path", { class: "mean" });
      group.append(fill, mean, draw("text", { class: "name", x: 14, y: 25 }), draw("text", { class: "about", x: 14, y: 45 }), draw("text", { class: "badge", x: WIDTH - 12, y: 24 }, "root"), draw("title"));
      group.addEventListener("click", () => this.choose(vertex.id));
      group.addEventListener("keydown", (event) => this.key(event, vertex.id));
      root.append(group);
      this.nodes.set(vertex.id, { group, fill, mean });
    }
    this.place.replaceChildren(root);
  }

  key(event, id) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.choose(id);
    else if (step) {
      const ids = [...this.nodes.keys()];
      this.nodes.get(ids[Math.min(ids.length - 1, Math.max(0, ids.indexOf(id) + step))]).group.focus();
    } else return;
    event.preventDefault();
  }

  node(vertex, chosen, ringed, first) {
    const { group, fill, mean } = this.nodes.get(vertex.id);
    group.classList.toggle("root", ringed);
    group.setAttribute("aria-pressed", chosen);
    const { max, mean: average } = vertex.busy, several = vertex.subtasks.length > 1, known = timed(vertex.subtasks);
    fill.setAttribute("width", Math.max(0, (WIDTH - 3) * Math.min(1, max)));
    const at = 1.5 + (WIDTH - 3) * Math.min(1, average);
    mean.setAttribute("d", several && known ? `M${at.toFixed(1)} ${HEIGHT - 9}V${HEIGHT - 2}` : "");
    const tasks = `${vertex.parallelism} ${vertex.parallelism === 1 ? "subtask" : "subtasks"}`;
    const shares = `busy ${percent(max)}` + (several ? `, mean ${percent(average)}` : "");
    const busy = !vertex.subtasks.length ? "nothing told yet" : known ? shares : `${count(vertex.records)} rows`;
    fit(group.querySelector(".name"), vertex.name, WIDTH - (ringed ? 62 : 28));
    group.querySelector(".about").textContent = `${tasks} · ${busy}`;
    group.querySelector("title").textContent = vertex.name;
    group.setAttribute("aria-label", `${vertex.name}: ${tasks}, ${busy}${ringed ? `; ${first ? "the root" : "a root"} of the lost time` : ""}`);
  }

  edge(edge, { group, plate, text, x }, quiet, root) {
    const forward = edge.kind === "forward";
    group.setAttribute("class", `edge ${forward ? "forward" : edge.level.toLowerCase()}${root ? " root" : ""}`);
    const cause = edge.cause && edge.blocked >= 0.01 ? ` · ${CAUSES[edge.cause] ?? edge.cause}` : "";
    const words = forward ? edge.through : quiet ? edge.mode : `${root ? "root: " : ""}${percent(edge.blocked)} held back${cause}`;
    if (text.textContent !== words) {
      text.textContent = words;
      const width = words.length * 6.4 + 12;
      plate.setAttribute("x", x - width / 2);
      plate.setAttribute("width", width);
    }
    group.querySelector("title").textContent = forward || quiet ? words : `${words} (${edge.level}, ${edge.mode})`;
  }
}
