// The latest requests: goodput by class, a line with a waterfall for each of the last ones, and one of them in full.

import { byId, clipped, clock, el, fill, foreign, number, percent, say, seconds } from "./dom.js";
import { details, legend, line, numCached, pair, resultText } from "./waterfall.js";

const HEADINGS = ["Ended", "Request", "Class", "Path", "TTFT / predicted", "TPOT / predicted", "Prompt (cached)", "Answer", "Result", "Stages"];

export class RequestView {
  #rows = new Map();
  #opened = null;

  constructor() {
    byId("legend").append(...legend());
    byId("last").append(el("thead", {}, el("tr", {}, ...HEADINGS.map((name) => el("th", { scope: "col" }, name)))), el("tbody"));
    byId("detail").addEventListener("keydown", (event) => event.key === "Escape" && this.#close());
  }

  show({ requests, replica, at }) {
    say(byId("requests-about"), about(requests, replica));
    fill(byId("classes"), ["Class", "Requests", "In time", "TTFT p50 / p90 / p99", "TPOT p50 / p90 / p99", "Missed or refused"], requests.classes.map((line) => [
      line.slo_class, number(line.num), line.num ? `${number(line.num_good)} (${percent(line.num_good / line.num)})` : "none counts",
      three(line.ttft_s), three(line.tpot_s), others(line.results),
    ]));
    this.#list(requests.last, at);
  }

  #list(last) {
    const body = byId("last").tBodies[0];
    const whole_s = Math.max(1e-3, ...last.map((request) => request.duration_s));
    const kept = new Set(last.map((request) => request.request_id));
    for (const [id, row] of this.#rows) {
      if (kept.has(id)) continue;
      if (row.node.contains(document.activeElement)) byId("requests").focus();
      row.node.remove();
      this.#rows.delete(id);
    }
    let before = null;
    for (const request of last) {
      let row = this.#rows.get(request.request_id);
      if (!row) this.#rows.set(request.request_id, (row = { node: this.#row(request), whole_s: 0 }));
      if (row.whole_s !== whole_s) row.node.lastElementChild.replaceChildren(line(request, whole_s));
      row.whole_s = whole_s;
      const place = before ? before.nextElementSibling : body.firstElementChild;
      if (row.node !== place) body.insertBefore(row.node, place);
      before = row.node;
    }
    byId("last").hidden = last.length === 0;
  }

  #row(request) {
    const open = el("button", { type: "button", class: "link", "aria-controls": "detail", onclick: () => this.#open(request, open) }, foreign(short(request.request_id)));
    const cached = numCached(request);
    const cells = [
      request.slo_class, request.path ?? "none", pair(request.ttft_s, request.predicted_ttft_s), pair(request.tpot_s, request.predicted_tpot_s),
      cached === null ? number(request.num_prompt_tokens) : `${number(request.num_prompt_tokens)} (${number(cached)})`,
      number(request.num_output_tokens),
    ];
    const mark = request.result === "good" ? "✓ " : request.result ? "✗ " : "";
    return el("tr", {}, el("td", {}, clock(request.closed_at)), el("th", { scope: "row" }, open),
      ...cells.map((text) => el("td", {}, text)),
      el("td", { class: request.result === "good" ? "good" : request.result ? "bad" : "" }, mark + (request.result ?? request.outcome).replaceAll("_", " ")),
      el("td", { class: "bar-cell" }));
  }

  #open(request, opener) {
    this.#opened = opener;
    const place = byId("detail");
    place.replaceChildren(
      el("h3", {}, "Request ", foreign(short(request.request_id)), `: ${resultText(request)}`),
      details(request),
      el("button", { type: "button", onclick: () => this.#close() }, "Close"));
    place.hidden = false;
    place.focus();
  }

  #close() {
    byId("detail").hidden = true;
    (this.#opened?.isConnected ? this.#opened : byId("requests")).focus();
  }
}

const short = (id) => clipped(id.replace(/^chatcmpl-/, "").replace(/^cmpl-/, ""), 9);

function about(requests, replica) {
  if (!requests.num_kept) return "This replica keeps no route receipts: set ingress.keep_receipts to see its requests.";
  const full = requests.covers_s < 299.5 ? `${number(requests.num)} requests of the last ${seconds(requests.covers_s)}, no more are counted` : `${number(requests.num)} requests of the last five minutes`;
  const paths = Object.entries(requests.paths).map(([path, num]) => `${number(num)} on ${unbroken(path)}`).join(", ");
  return `Ingress replica ${clipped(replica, 40)}: ${full}${paths ? ` (${paths})` : ""}. ${requests.good_per_s.toFixed(2)} requests per second met their objectives.`;
}

/** `P->D` on one line. */
const unbroken = (path) => path.replace("-", "-\u2060");

const three = (values) => (values.length ? values.map(seconds).join(" / ") : "–");

function others(results) {
  const bad = Object.entries(results).filter(([name]) => name !== "good");
  return bad.length ? bad.map(([name, num]) => `${number(num)} ${name.replaceAll("_", " ")}`).join(", ") : "none";
}
