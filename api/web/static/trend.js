// A small line chart of one figure over the last minutes, drawn as SVG. Its text says the same to screen readers.

import { el, say, svg } from "./dom.js";

const MOST_POINTS = 150;
const WIDTH = 240;
const HEIGHT = 44;

export class Trend {
  #points = [];
  #line = svg("polyline", { class: "trend-line", fill: "none" });
  #picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  #now = el("strong");
  #range = el("span", { class: "quiet" });

  /** `text`: how a value is written. `least`: the smallest top of the chart, so that noise does not fill it. */
  constructor(title, text, least) {
    this.text = text;
    this.least = least;
    this.#picture.append(svg("line", { class: "trend-base", x1: 0, y1: HEIGHT - 1, x2: WIDTH, y2: HEIGHT - 1 }), this.#line);
    this.node = el("div", { class: "trend" }, el("p", {}, `${title}: `, this.#now, " ", this.#range), this.#picture);
  }

  /** `value`: null draws nothing at this point. */
  add(value) {
    this.#points.push(value);
    if (this.#points.length > MOST_POINTS) this.#points.shift();
    const known = this.#points.filter((point) => point !== null);
    const top = Math.max(this.least, ...known);
    const points = this.#points.map((point, place) => [place, point]).filter(([, point]) => point !== null);
    const x = (place) => (WIDTH * (MOST_POINTS - this.#points.length + place)) / (MOST_POINTS - 1);
    const y = (point) => HEIGHT - 2 - ((HEIGHT - 6) * point) / top;
    this.#line.setAttribute("points", points.map(([place, point]) => `${x(place).toFixed(1)},${y(point).toFixed(1)}`).join(" "));
    say(this.#now, this.text(value));
    say(this.#range, known.length ? `(${this.text(Math.min(...known))} to ${this.text(Math.max(...known))})` : "");
  }
}
