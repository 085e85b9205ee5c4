// All workers of a large pool at a glance: one cell for each, filled as high as its KV use. One canvas, whatever their
// number. The tables say the same in words.

import { el, say } from "./dom.js";

const CELL = 12; // Side of a cell in CSS pixels.
const FEWEST = 12; // Workers below which the table says it all.

export class WorkerMap {
  #canvas = el("canvas", { class: "map", "aria-hidden": "true" });
  #title = el("p");

  constructor(pool) {
    this.pool = pool;
    this.node = el("div", { class: "trend", hidden: true }, this.#title, this.#canvas);
  }

  show(workers) {
    this.node.hidden = workers.length < FEWEST;
    if (this.node.hidden) return;
    say(this.#title, `KV use of ${workers.length} ${this.pool} workers, crossed where one gets no requests:`);
    const columns = Math.max(1, Math.floor((this.node.clientWidth || 240) / CELL));
    const rows = Math.ceil(workers.length / columns);
    const scale = window.devicePixelRatio || 1;
    this.#canvas.width = columns * CELL * scale;
    this.#canvas.height = rows * CELL * scale;
    this.#canvas.style.width = `${columns * CELL}px`;
    this.#canvas.style.height = `${rows * CELL}px`;
    const style = getComputedStyle(this.#canvas);
    const context = this.#canvas.getContext("2d");
    context.scale(scale, scale);
    const ordered = [...workers].sort((a, b) => (a.worker < b.worker ? -1 : 1)); // a worker keeps its cell
    ordered.forEach((worker, place) => this.#cell(context, style, worker, (place % columns) * CELL, Math.floor(place / columns) * CELL));
  }

  #cell(context, style, worker, x, y) {
    const side = CELL - 2;
    context.fillStyle = style.getPropertyValue("--track");
    context.fillRect(x, y, side, side);
    const height = Math.round(side * Math.min(1, worker.kv_usage));
    context.fillStyle = style.getPropertyValue("--decode");
    context.fillRect(x, y + side - height, side, height);
    if (worker.condition === "ready") return;
    context.strokeStyle = style.getPropertyValue("--bad");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + side, y + side);
    context.moveTo(x + side, y);
    context.lineTo(x, y + side);
    context.stroke();
  }
}
