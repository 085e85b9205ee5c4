// What the page asks of the admin port, and the admin key that it sends. The key is in sessionStorage: it belongs to this
// tab and to this origin (host and port), survives a reload, and is gone when the tab is closed. It is never in a URL.

const STORED = "baton-admin-key";

export class Refused extends Error {
  constructor(status, message, requestId, retryAfter) {
    super(message);
    this.status = status;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }
}

export const needsKey = document.documentElement.dataset.needsKey === "true";
export const storedKey = () => sessionStorage.getItem(STORED);
export const keepKey = (key) => sessionStorage.setItem(STORED, key);
export const forgetKey = () => sessionStorage.removeItem(STORED);

/** A response of the service. Throws Refused for an error of the service, and TypeError if it cannot be reached. */
export async function ask(path, { key = storedKey(), body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method: body ? "POST" : "GET",
    headers,
    body: body && JSON.stringify(body),
    signal,
    credentials: "omit",
    redirect: "error",
    referrerPolicy: "no-referrer",
  });
  if (!answer.ok) throw await refused(answer);
  return answer;
}

async function refused(answer) {
  let message = `HTTP ${answer.status}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // not an answer of Baton: the status says enough
  }
  return new Refused(answer.status, message, answer.headers.get("x-request-id"), answer.headers.get("retry-after"));
}
