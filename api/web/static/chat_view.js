// The chat. What the model writes is text of a stranger: it goes into the page as text alone.

import { byId, el, number, say, seconds } from "./dom.js";
import { ask } from "./service.js";
import { events } from "./sse.js";
import { cached, details, pair } from "./waterfall.js";

const MOST_SHOWN = 200000; // Characters of one answer that are shown. More makes the page slow.
const MOST_TURNS = 100; // Messages that stay on the page and in the prompt. More makes the page and the prompts long.
const SPOKEN_EVERY_MS = 3000; // Time between two announcements of an answer that is being written.

export class ChatView {
  #turns = [];
  #running = null;

  constructor() {
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("message").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#send();
      }
    });
    byId("chat").addEventListener("keydown", (event) => event.key === "Escape" && this.stop());
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.clear());
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#turns = [];
    byId("talk").replaceChildren();
    byId("spoken").replaceChildren();
    say(byId("chat-error"), "");
    byId("message").focus();
  }

  async #send() {
    const text = byId("message").value.trim();
    if (!text || this.#running) return;
    const maxTokens = byId("max-tokens");
    if (!maxTokens.reportValidity()) return;
    byId("message").value = "";
    say(byId("chat-error"), "");
    this.#add("user", "You", text);
    this.#turns.push({ role: "user", content: text });
    const body = { messages: this.#turns.slice(-MOST_TURNS), slo_class: byId("slo-class").value, max_tokens: Number(maxTokens.value) || 200 };
    await this.#answer(body);
  }

  async #answer(body) {
    const running = (this.#running = new AbortController());
    this.#busy(true);
    const answer = new Answer(this.#add("assistant", "Model", ""));
    try {
      const response = await ask("/baton/chat", { body, signal: running.signal });
      for await (const event of events(response)) answer.take(event);
      answer.ended();
    } catch (error) {
      if (running.signal.aborted) answer.ended("Stopped.");
      else this.#failed(error, answer);
    } finally {
      this.#running = null;
      this.#busy(false);
    }
    if (answer.text) this.#turns.push({ role: "assistant", content: answer.text });
    else this.#turns.pop();
  }

  #failed(error, answer) {
    const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
    const id = error.requestId ? ` (request ${error.requestId})` : "";
    const why = error instanceof TypeError ? "The service cannot be reached." : error.message;
    answer.ended();
    if (!answer.text) answer.remove();
    say(byId("chat-error"), `${why}${wait}${id}`);
  }

  #busy(isBusy) {
    byId("send").disabled = isBusy;
    byId("stop").disabled = !isBusy;
    byId("talk").setAttribute("aria-busy", String(isBusy));
  }

  #add(role, name, text) {
    const talk = byId("talk");
    const turn = el("article", { class: `turn ${role}`, "aria-label": name }, el("h3", {}, name), el("div", { class: "text", dir: "auto" }, text));
    talk.append(turn);
    while (talk.children.length > MOST_TURNS) talk.firstElementChild.remove();
    talk.scrollTop = talk.scrollHeight;
    return turn;
  }
}

/** One answer while it comes, and what became of it. */
class Answer {
  #spokenUpTo = 0;
  #spokenAt = Date.now();
  #sentAt = performance.now();
  #firstAt = null;
  #node = document.createTextNode("");

  constructor(turn) {
    this.turn = turn;
    this.text = "";
    turn.querySelector(".text").append(this.#node);
    byId("spoken").replaceChildren(el("p", {}, "The model answers."));
  }

  take({ name, data }) {
    if (data === "[DONE]") return;
    const value = JSON.parse(data);
    if (name === "baton") this.#report(value);
    else if (value.error) throw new Error(value.error.message);
    else this.#write(value.choices?.[0]?.delta?.content ?? "");
  }

  #write(piece) {
    if (!piece) return;
    this.#firstAt ??= performance.now();
    const room = MOST_SHOWN - this.text.length;
    this.text += piece.slice(0, room);
    this.#node.appendData(piece.slice(0, room));
    if (room > 0 && room <= piece.length) this.turn.append(el("p", { class: "quiet" }, `The rest is not shown: the answer has more than ${number(MOST_SHOWN)} characters.`));
    const talk = byId("talk");
    if (talk.scrollHeight - talk.scrollTop - talk.clientHeight < 120) talk.scrollTop = talk.scrollHeight;
    if (Date.now() - this.#spokenAt > SPOKEN_EVERY_MS) this.#speak(/[.!?\n]\s(?=[^.!?\n]*$)/);
  }

  /** Announce what has not been announced, up to the last place that matches: whole sentences, and seldom. */
  #speak(end) {
    const rest = this.text.slice(this.#spokenUpTo);
    const found = end ? rest.search(end) : rest.length - 1;
    if (found < 0 || !rest) return;
    const part = rest.slice(0, found + 1);
    this.#spokenUpTo += part.length;
    this.#spokenAt = Date.now();
    byId("spoken").append(el("p", { dir: "auto" }, part.slice(0, 2000)));
  }

  ended(note) {
    this.#speak(null);
    if (note) this.turn.append(el("p", { class: "quiet" }, note));
    byId("spoken").append(el("p", {}, note ?? "The answer is complete."));
  }

  remove() {
    this.turn.remove();
  }

  #report(report) {
    const seen = this.#firstAt === null ? "no token came" : `first text after ${seconds((this.#firstAt - this.#sentAt) / 1000)} in this browser`;
    const request = report.request;
    if (!request) {
      this.turn.append(el("p", { class: "outcome" }, `Path ${report.path ?? "none"}; predicted TTFT ${seconds(report.predicted_ttft_s)}, TPOT ${seconds(report.predicted_tpot_s)}; ${seen}. This replica keeps no route receipts (ingress.keep_receipts).`));
      return;
    }
    const summary = el("summary", {}, el("strong", {}, request.path ?? "never placed"), ` · TTFT ${pair(request.ttft_s, request.predicted_ttft_s)} predicted · TPOT ${pair(request.tpot_s, request.predicted_tpot_s)} predicted · ${cached(request)}`);
    this.turn.append(el("details", { class: "outcome" }, summary, el("p", { class: "quiet" }, `${seen}.`), details(request)));
    this.turn.dataset.receipt = request.request_id;
    const talk = byId("talk");
    talk.scrollTop = talk.scrollHeight;
  }
}

