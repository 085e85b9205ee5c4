// Pools, workers, links and queue. The number of elements is bounded, however many workers there are.

import { byId, bytesPerSecond, dash, el, fill, foreign, number, percent, say, seconds } from "./dom.js";
import { Trend } from "./trend.js";
import { WorkerMap } from "./worker_map.js";

const ROWS = 20; // Workers on one page of the table. More makes the page long; fewer needs more pages.

export class ClusterView {
  #page = 0;
  #known = null;
  #maps = { prefill: new WorkerMap("prefill"), decode: new WorkerMap("decode") };
  #trends = {
    goodput: new Trend("Goodput of this replica", (value) => (value === null ? dash : `${value.toFixed(2)}/s`), 0.1),
    open: new Trend("Open requests", (value) => (value === null ? dash : number(value)), 4),
    waiting: new Trend("Waiting", (value) => (value === null ? dash : number(value)), 4),
    usage: new Trend("KV usage of decode, mean", percent, 0.1),
  };

  constructor() {
    byId("trends").append(...Object.values(this.#trends).map((trend) => trend.node), ...Object.values(this.#maps).map((map) => map.node));
    byId("worker-tools").addEventListener("submit", (event) => event.preventDefault());
    for (const id of ["worker-pool", "worker-find", "worker-order"]) byId(id).addEventListener("input", () => this.#turn(-this.#page));
    byId("worker-before").addEventListener("click", () => this.#turn(-1));
    byId("worker-next").addEventListener("click", () => this.#turn(1));
  }

  show({ cluster, requests }) {
    const known = (this.#known = cluster.known);
    const isNow = cluster.error === null && known !== null;
    const decode = known?.pools.find((pool) => pool.pool === "decode");
    this.#trends.goodput.add(requests.num_kept ? requests.good_per_s : null);
    this.#trends.open.add(isNow ? known.num_open : null);
    this.#trends.waiting.add(isNow ? known.num_waiting : null);
    this.#trends.usage.add(isNow ? decode.mean_kv_usage : null);
    if (!known) return;
    this.#figures(known);
    this.#pools(known.pools);
    this.#workers();
    this.#links(known);
    this.#queue(known);
    for (const [pool, map] of Object.entries(this.#maps)) map.show(known.workers.filter((worker) => worker.pool === pool));
  }

  #figures(known) {
    const figures = [
      ["Workers", number(known.num_workers)],
      ["Open", number(known.num_open)],
      ["Waiting", number(known.num_waiting)],
      ["Links", number(known.num_links)],
    ];
    if (known.cells_away.length) figures.push(["Cells away", known.cells_away.join(", ")]);
    const list = byId("figures");
    while (list.children.length > figures.length) list.lastElementChild.remove();
    figures.forEach(([name, value], place) => {
      const item = list.children[place] ?? list.appendChild(el("div", {}, el("dt"), el("dd")));
      say(item.children[0], name);
      say(item.children[1], value);
    });
  }

  #pools(pools) {
    fill(byId("pools"), ["Pool", "Workers", "Not ready", "Requests", "KV used, mean", "KV used, most"], pools.map((pool) => [
      pool.pool,
      number(pool.num_workers),
      number(pool.num_not_ready),
      meter(pool.num_placed, pool.max_requests, `${number(pool.num_placed)} of ${number(pool.max_requests)}`, `Requests of the ${pool.pool} pool`),
      share(pool.mean_kv_usage, `Mean KV use of the ${pool.pool} pool`),
      share(pool.most_kv_usage, `Highest KV use in the ${pool.pool} pool`),
    ]));
  }

  #turn(step) {
    this.#page += step;
    this.#workers();
  }

  #workers() {
    if (!this.#known) return;
    const found = this.#found();
    const last = Math.max(0, Math.ceil(found.length / ROWS) - 1);
    this.#page = Math.min(last, Math.max(0, this.#page));
    const shown = found.slice(this.#page * ROWS, (this.#page + 1) * ROWS);
    fill(byId("workers"), ["Worker", "Pool", "State", "Requests", "In its batch", "KV used", "Reported", "Links", "Leases", "Held by", "Node"], shown.map((worker) => [
      named(worker.worker),
      worker.cell ? `${worker.pool}, ${worker.cell}` : worker.pool,
      worker.condition,
      meter(worker.num_placed, worker.max_requests, `${worker.num_placed} of ${worker.max_requests}`, `Requests of ${worker.worker}`),
      `${worker.num_running}${worker.num_waiting ? ` (+${worker.num_waiting} wait)` : ""}`,
      share(worker.kv_usage, `KV use of ${worker.worker}`),
      `${seconds(worker.report_age_s)} ago`,
      number(worker.num_links),
      worker.num_leases ? number(worker.num_leases) : dash,
      worker.num_holds ? `${worker.num_holds} ingress, ${seconds(worker.hold_s)}` : dash,
      named(worker.host),
    ]));
    const total = this.#known.num_workers;
    const more = total > this.#known.workers.length ? `, the busiest of ${number(total)}` : "";
    const first = found.length ? this.#page * ROWS + 1 : 0;
    say(byId("worker-page"), `${first} to ${this.#page * ROWS + shown.length} of ${number(found.length)}${more}`);
    byId("worker-before").disabled = this.#page === 0;
    byId("worker-next").disabled = this.#page === last;
  }

  #found() {
    const pool = byId("worker-pool").value;
    const text = byId("worker-find").value.trim().toLowerCase();
    const found = this.#known.workers.filter((worker) =>
      (!pool || worker.pool === pool) && (!text || worker.worker.toLowerCase().includes(text) || worker.host.includes(text)));
    return byId("worker-order").value === "id" ? found.sort((a, b) => (a.worker < b.worker ? -1 : 1)) : found;
  }

  #links(known) {
    const parts = [`${number(known.num_links)} proved`];
    if (known.num_unproved) parts.push(`${number(known.num_unproved)} not proved`);
    if (known.num_distrusted) parts.push(`${number(known.num_distrusted)} not trusted`);
    const total = known.num_links + known.num_unproved;
    if (total > known.links.length) parts.push(`${number(known.links.length)} are listed, baton probe has all`);
    say(byId("links-count"), parts.join(", "));
    fill(byId("links"), ["Prefill worker", "Decode worker", "State", "Latency", "Bandwidth"], known.links.map((link) => [
      named(link.prefill), named(link.decode), link.doubt ?? "proved", seconds(link.latency_s), bytesPerSecond(link.bytes_per_s),
    ]));
  }

  #queue(known) {
    const listed = known.queue.length < known.num_waiting ? `, of which the first ${known.queue.length} are listed` : "";
    say(byId("queue-count"), known.num_waiting ? `${number(known.num_waiting)} wait for a placement${listed}.` : "No request waits for a placement.");
    fill(byId("queue"), ["Request", "Class", "Before it", "Has waited", "Expected", "Refused in", "Paused"], known.queue.map((waiting) => [
      named(waiting.request_id), waiting.slo_class, number(waiting.num_before), seconds(waiting.waited_s),
      seconds(waiting.wait_s), seconds(waiting.gives_up_s), waiting.is_paused ? "yes" : "no",
    ]));
  }
}

const named = (id) => ({ key: id, node: () => foreign(id) });

function meter(value, most, text, label) {
  if (!most) return text;
  return { key: `${value}/${most}`, node: () => el("span", { class: "metered" }, el("meter", { min: 0, max: most, value, high: 0.9 * most, "aria-label": label }), text) };
}

function share(value, label) {
  return value === null ? dash : meter(Math.round(value * 100) / 100, 1, percent(value), label);
}
