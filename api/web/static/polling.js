// Polls the live document: one request at a time, none while the page is hidden or paused, and more seldom after errors.

import { ask } from "./service.js";

const SLOWEST_MS = 30000; // Longest time between two polls after errors. Longer shows a recovery later.
const TIMEOUT_MS = 8000; // Time that an answer may take. Longer notices a service that hangs later.

export class Polling {
  #timer = null;
  #failures = 0;
  #running = null;
  #isOn = false;
  isPaused = false;

  /** onDocument(document), onFailure(error, retryMs): what to do with an answer, and without one. */
  constructor(onDocument, onFailure) {
    this.onDocument = onDocument;
    this.onFailure = onFailure;
    document.addEventListener("visibilitychange", () => this.#look());
  }

  start() {
    this.#isOn = true;
    this.#look();
  }

  stop() {
    this.#isOn = false;
    this.#look();
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.#look();
  }

  get #mayRun() {
    return this.#isOn && !this.isPaused && !document.hidden;
  }

  #look() {
    clearTimeout(this.#timer);
    if (!this.#mayRun) this.#running?.abort();
    else if (!this.#running) this.#poll();
  }

  async #poll() {
    const running = (this.#running = new AbortController());
    const timeout = setTimeout(() => running.abort(new Error("no answer in time")), TIMEOUT_MS);
    let delay;
    try {
      const live = await (await ask("/baton/live", { signal: running.signal })).json();
      this.#failures = 0;
      delay = Math.max(1000, live.every_s * 1500);
      if (this.#mayRun) this.onDocument(live);
    } catch (error) {
      this.#failures += 1;
      delay = Math.min(SLOWEST_MS, 1000 * 2 ** Math.min(this.#failures, 6)) * (0.75 + Math.random() / 2);
      if (this.#mayRun) this.onFailure(running.signal.reason ?? error, delay);
    } finally {
      clearTimeout(timeout);
      this.#running = null;
    }
    if (this.#mayRun) this.#timer = setTimeout(() => this.#look(), delay);
  }
}
