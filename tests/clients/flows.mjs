// What drivers in JavaScript share; flows.py is the same for drivers in Python, and explains the names.

import assert from "node:assert/strict";

export const URL_ = process.env.BATON_URL;
export const MODEL = process.env.BATON_MODEL;
export const KEY = process.env.BATON_KEY;
export const WRONG_KEY = process.env.BATON_WRONG_KEY;
export const TIMEOUT_MS = 120_000;

export const CAPITAL = "What is the capital of France?";
export const ITS_ANSWER = "Paris";
export const MY_NAME = "My name is Anna.";
export const WHO_AM_I = "What is my name?";
export const THE_NAME = "Anna";
export const WEATHER = "What is the weather in Paris?";
export const CITY = "Paris";
export const TOOL = "get_weather";
export const TOOL_DESCRIPTION = "Get the current weather of a city.";
export const SKY = "sunny";
export const LONG = "Tell me a story.";
export const READ_PARTS = 3;
export const NOBODY = "no-such-model";
export const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const CITIES = ["Rome", "Paris"];

const flows = [];

export function flow(name, action) {
  flows.push([name, action]);
}

export async function run() {
  for (const [name, action] of flows) {
    try {
      tell(name, true, await action());
    } catch (error) {
      const place = /driver\.mjs:(\d+)/.exec(error.stack ?? "");
      tell(name, false, `${error.constructor?.name}: ${error.message}${place ? ` (line ${place[1]})` : ""}`);
    }
  }
}

// The error that a call raises, which must be of exactly this class: a client's users name it.
export async function raised(expected, call) {
  let answer;
  try {
    answer = await call();
  } catch (error) {
    assert.equal(error.constructor, expected, `raised ${error.constructor?.name}: ${error.message}`);
    return error;
  }
  assert.fail(`answered instead of raising ${expected.name}: ${JSON.stringify(answer)}`);
}

export function require(text, part) {
  assert.ok(typeof text === "string" && text.includes(part), `${part} is not in ${JSON.stringify(text)}`);
  return text;
}

function tell(name, ok, detail) {
  console.log(JSON.stringify({ flow: name, ok, detail: String(detail ?? "") }));
}
