// The stages of a request as bars: one line for a list, and a table with one line for each stage.

import { clipped, dash, el, foreign, number, seconds, svg } from "./dom.js";

/** Kinds of stages, by what the request does meanwhile. Each has its own fill: a colour, and a pattern or none. */
export const KINDS = {
  ingress: "In the ingress",
  wait: "Waits",
  placement: "Placement",
  prefill: "Prefill",
  move: "Moves (pull, network)",
  decode: "Decode",
  other: "Other",
};
const KIND_OF = {
  prepare: "ingress", verify: "ingress", release: "ingress",
  admit: "wait", queue: "wait", pause: "wait", wait: "wait", hold: "wait", engine_queue: "wait",
  placement: "placement",
  prefill: "prefill",
  connect: "move", send: "move", network: "move", deliver: "move", receive: "move", output: "move", promise: "move",
  decode: "decode", first_decode: "decode",
};
const LEAST_WIDTH = 0.006; // Share of a bar that a stage has at least, so that short stages can be seen in the table.
const LEAST_SHARE = 0.002; // Stages shorter than this share of the line are not drawn in it. The table has them.

export function kindOf(stage) {
  return KIND_OF[stage.name] ?? (stage.name.startsWith("pull") ? "move" : "other");
}

export function legend() {
  return Object.entries(KINDS).map(([kind, name]) =>
    el("li", {}, svg("svg", { class: "swatch", "aria-hidden": "true" }, svg("rect", { class: `stage ${kind}`, width: "100%", height: "100%" })), name));
}

/** One line: all stages after each other, on a scale of `whole_s` seconds. */
export function line(request, whole_s) {
  const bar = svg("svg", { class: "bar", role: "img", "aria-label": inWords(request) });
  for (const stage of joined(request.stages)) {
    const share = (stage.end_s - stage.start_s) / whole_s;
    if (share < LEAST_SHARE) continue;
    bar.append(box(stage, 0, whole_s, svg("title", {}, `${stage.name}: ${seconds(stage.end_s - stage.start_s)}`)));
  }
  bar.append(...marks(request, whole_s));
  return bar;
}

/** Neighbours of one kind as one box, so that a long prompt of many steps stays one box. */
function joined(stages) {
  const boxes = [];
  for (const stage of stages) {
    const before = boxes.at(-1);
    if (before && kindOf(before) === kindOf(stage) && stage.start_s - before.end_s < 1e-4) before.end_s = stage.end_s;
    else boxes.push({ ...stage });
  }
  return boxes;
}

function box(stage, from_s, whole_s, ...children) {
  const x = Math.max(0, stage.start_s - from_s) / whole_s;
  const width = Math.max(LEAST_WIDTH, Math.min(1, (stage.end_s - from_s) / whole_s) - x);
  const kind = kindOf(stage);
  return svg("rect", { class: `stage ${kind}`, x: `${(100 * Math.min(x, 1 - LEAST_WIDTH)).toFixed(2)}%`, width: `${(100 * width).toFixed(2)}%`, height: "100%" }, ...children);
}

function marks(request, whole_s) {
  const mark = (at_s, name) => {
    if (at_s === null || at_s > whole_s) return null;
    const x = `${(100 * at_s / whole_s).toFixed(2)}%`;
    return svg("line", { class: `mark ${name}`, x1: x, x2: x, y1: 0, y2: "100%" });
  };
  return [mark(request.ttft_s, "first"), mark(request.slo_ttft_s, "objective")].filter(Boolean);
}

function inWords(request) {
  const sums = new Map();
  for (const stage of request.stages) {
    const kind = KINDS[kindOf(stage)];
    sums.set(kind, (sums.get(kind) ?? 0) + stage.end_s - stage.start_s);
  }
  return [...sums].map(([kind, sum]) => `${kind} ${seconds(sum)}`).join(", ") || "no stages";
}

/** What is known of one request, with its stages as a table of bars. */
export function details(request) {
  const zoom = el("input", { type: "checkbox" });
  const rows = el("tbody");
  const table = el("table", { class: "stages" },
    el("caption", {}, "Stages, from the arrival of the request"),
    el("thead", {}, el("tr", {}, ...["Stage", "Where", "From", "Takes", "", "Notes"].map((name) => el("th", { scope: "col" }, name || el("span", { class: "unseen" }, "Bar"))))),
    rows);
  const draw = () => rows.replaceChildren(...stageRows(request, zoom.checked));
  zoom.addEventListener("change", draw);
  draw();
  const canZoom = request.ttft_s !== null && request.stages.length > 1;
  return el("div", {},
    facts(request),
    canZoom ? el("p", {}, el("label", {}, zoom, " Only until the first token")) : null,
    request.stages.length ? el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Stages of the request" }, table) : el("p", { class: "quiet" }, "No stages are known of this request."));
}

function stageRows(request, isZoomed) {
  const whole_s = Math.max(1e-6, isZoomed ? request.ttft_s : Math.max(request.duration_s, ...request.stages.map((stage) => stage.end_s)));
  const shown = request.stages.filter((stage) => !isZoomed || stage.start_s < whole_s);
  return shown.map((stage) => el("tr", {},
    el("th", { scope: "row" }, stage.name.replaceAll("_", " "), stage.is_measured === false ? notMeasured() : null),
    el("td", {}, foreign(stage.place ?? "")),
    el("td", { class: "figure" }, seconds(stage.start_s)),
    el("td", { class: "figure" }, seconds(stage.end_s - stage.start_s)),
    el("td", { class: "bar-cell" }, svg("svg", { class: "bar", "aria-hidden": "true" }, box(stage, 0, whole_s))),
    el("td", { class: "notes" }, foreign(notes(stage)))));
}

/** Marks a stage that is what is left between measured ones. */
function notMeasured() {
  return el("span", { title: "not measured: what is left between measured stages" }, " ~", el("span", { class: "unseen" }, " not measured"));
}

function notes(stage) {
  return Object.entries(stage.notes ?? {}).map(([name, value]) => `${name.replace(/(?<!_per)_s$/, "").replaceAll("_", " ")} ${noted(name, value)}`).join(", ");
}

function noted(name, value) {
  if (typeof value !== "number") return clipped(value, 160);
  if (/(?<!_per)_s$/.test(name)) return seconds(value);
  return number(value);
}

const RESULTS = {
  good: "met its objectives",
  ttft_missed: "missed its TTFT objective",
  tpot_missed: "missed its TPOT objective",
  both_missed: "missed both objectives",
  rejected: "was refused",
  failed: "failed",
};
export const resultText = (request) => RESULTS[request.result] ?? `${request.outcome} (goodput does not count it)`;

function facts(request) {
  const list = el("dl", { class: "facts" });
  const add = (name, ...values) => list.append(el("dt", {}, name), el("dd", {}, ...values));
  add("Path", route(request));
  add("TTFT", compared(request.ttft_s, request.predicted_ttft_s, request.slo_ttft_s));
  add("TPOT", compared(request.tpot_s, request.predicted_tpot_s, request.slo_tpot_s));
  add("Result", resultText(request));
  add("Prompt", `${number(request.num_prompt_tokens)} tokens: ${cached(request)}`);
  add("Answer", `${number(request.num_output_tokens)} tokens in ${seconds(request.duration_s)}`);
  if (request.num_attempts > 1) add("Placements", `${request.num_attempts}, of which ${request.num_pauses} after a pause`);
  if (request.why) add("Why", foreign(request.why));
  if (request.error) add("Error", foreign(request.error));
  add("Receipt", el("code", {}, foreign(request.request_id)));
  if (request.http_request) add("HTTP request", el("code", {}, foreign(request.http_request)));
  return list;
}

function route(request) {
  if (!request.path) return "was never placed";
  const workers = [request.prefill_worker, request.worker].filter(Boolean).join(" → ");
  return el("span", {}, `${request.path}: `, foreign(workers));
}

function compared(measured, predicted, objective) {
  return `${seconds(measured)} measured, ${seconds(predicted)} predicted, ${seconds(objective)} at most by its objective`;
}

/** Where the KV of the prompt came from. */
export function cached(request) {
  const sources = request.sources;
  if (!sources) return "the sources of its KV are not known";
  const parts = [`${number(sources.computed)} computed`, `${number(sources.local)} cached`];
  if (sources.pulled) parts.push(`${number(sources.pulled)} pulled from the prefill worker`);
  if (sources.offloaded) parts.push(`${number(sources.offloaded)} from a tier`);
  if (request.prefill_sources) parts.push(`and on the prefill worker ${number(request.prefill_sources.computed)} computed, ${number(request.prefill_sources.local)} cached`);
  return parts.join(", ");
}

export const numCached = (request) => {
  const sources = request.prefill_sources ?? request.sources;
  return sources ? sources.local + sources.offloaded : null;
};

export const pair = (measured, predicted) => `${seconds(measured)} / ${predicted === null ? dash : seconds(predicted)}`;

