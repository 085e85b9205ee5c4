// The page: who may look, and what happens with each document that comes.

import { byId, foreign, say, seconds } from "./dom.js";
import { ChatView } from "./chat_view.js";
import { ClusterView } from "./cluster_view.js";
import { Polling } from "./polling.js";
import { RequestView } from "./request_view.js";
import { ask, forgetKey, keepKey, needsKey, Refused, storedKey } from "./service.js";

const FORM = 1; // The form of the document that this page reads (api/web/live_document.py).

const chat = new ChatView();
const cluster = new ClusterView();
const requests = new RequestView();
const polling = new Polling(shown, missing);
let latest = null; // {document, came}: the last document, and when it came, in milliseconds.

function shown(document) {
  if (document.form !== FORM) {
    polling.stop();
    state("off", "This page is of another version than the service: load it again.");
    return;
  }
  latest = { document, came: Date.now() };
  say(byId("model"), document.model);
  cluster.show(document);
  requests.show(document);
  const away = document.cluster.error;
  banner(away && ["The Scheduler does not answer: ", foreign(away), document.cluster.known ? `. Pools, workers and queue are as of ${seconds(document.cluster.age_s)} before.` : ". Nothing is known of the workers yet."]);
  state(away ? "warn" : "on", away ? "The Scheduler is away" : "Live");
  age();
}

function missing(error, retryMs) {
  if (error instanceof Refused && error.status === 401) {
    signOut("The service does not take this key any more.");
    return;
  }
  const why = error instanceof TypeError ? "the service cannot be reached" : error.message;
  state("off", "No answer");
  banner([`No answer: ${why}. What is shown is old. The page tries again in ${seconds(retryMs / 1000)}.`]);
  age();
}

function state(kind, text) {
  byId("state").dataset.kind = kind;
  say(byId("state-text"), text);
}

function banner(parts) {
  const place = byId("stale");
  const text = parts ? parts.map((part) => part.textContent ?? part).join("") : "";
  place.hidden = !parts;
  // The seconds in it change all the time: a screen reader hears of a new cause alone
  if (parts && place.dataset.said !== text.replace(/[\d.]+/g, "")) {
    place.dataset.said = text.replace(/[\d.]+/g, "");
    place.replaceChildren(...parts);
  }
  if (!parts) place.dataset.said = "";
}

function age() {
  if (!latest) return;
  const old_s = Math.round((Date.now() - latest.came) / 1000);
  say(byId("state-age"), old_s < 2 ? `document ${latest.document.number}, just now` : `document ${latest.document.number}, ${old_s} s old`);
}

function signIn() {
  byId("login").hidden = true;
  byId("board").hidden = false;
  byId("pause").hidden = false;
  byId("forget").hidden = !needsKey;
  polling.start();
}

function signOut(why) {
  polling.stop();
  chat.stop();
  chat.clear();
  forgetKey();
  byId("board").hidden = true;
  byId("pause").hidden = true;
  byId("forget").hidden = true;
  byId("login").hidden = false;
  say(byId("login-error"), why);
  state("off", "Not connected");
  say(byId("state-age"), "");
  byId("key").focus();
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = byId("key");
  const key = field.value.trim();
  say(byId("login-error"), "");
  if (!/^[\x21-\x7e]+$/.test(key)) {
    say(byId("login-error"), "This is no admin key: it has letters that no key has.");
    return;
  }
  try {
    await ask("/baton/live", { key });
  } catch (error) {
    say(byId("login-error"), error instanceof Refused ? error.message : "The service cannot be reached.");
    return;
  }
  keepKey(key);
  field.value = "";
  signIn();
  byId("message").focus();
});

byId("pause").addEventListener("click", () => {
  polling.pause(!polling.isPaused);
  byId("pause").setAttribute("aria-pressed", String(polling.isPaused));
  if (polling.isPaused) state("warn", "Paused");
});
byId("forget").addEventListener("click", () => signOut("The key is forgotten."));
setInterval(() => document.hidden || age(), 1000);

// A table that is wider than its place can be scrolled by keyboard
const watching = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const place = target.parentElement;
    if (place.scrollWidth > place.clientWidth + 1) {
      place.setAttribute("tabindex", "0");
      place.setAttribute("role", "group");
      place.setAttribute("aria-label", target.getAttribute("aria-label") ?? byId(target.getAttribute("aria-labelledby"))?.textContent ?? "Table");
    } else for (const name of ["tabindex", "role", "aria-label"]) place.removeAttribute(name);
  }
});
for (const table of document.querySelectorAll("#board .wide > table")) watching.observe(table);

if (!needsKey || storedKey()) signIn();
else {
  byId("login").hidden = false;
  byId("key").focus();
}
