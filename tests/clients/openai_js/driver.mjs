// OpenAI's client for JavaScript: chat completions, responses, conversations, and its errors.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  CAPITAL, CITIES, CITY, ITS_ANSWER, KEY, LONG, MODEL, MY_NAME, NOBODY, PARAMETERS, READ_PARTS, SKY, THE_NAME,
  TIMEOUT_MS, TOOL, TOOL_DESCRIPTION, URL_, WEATHER, WHO_AM_I, WRONG_KEY, flow, raised, require, run,
} from "./flows.mjs";

const client = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: KEY, timeout: TIMEOUT_MS, maxRetries: 0 });
const stranger = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: WRONG_KEY, timeout: TIMEOUT_MS, maxRetries: 0 });
const Answer = z.object({ city: z.enum(CITIES) });
const FUNCTION = { name: TOOL, description: TOOL_DESCRIPTION, parameters: PARAMETERS };
const TOOLS = [{ type: "function", function: FUNCTION }];

const asking = (content) => ({ model: MODEL, messages: [{ role: "user", content }], temperature: 0 });
const responding = (input) => ({ model: MODEL, input, temperature: 0 });

flow("models: list and retrieve", async () => {
  const ids = [];
  for await (const card of client.models.list()) ids.push(card.id);
  assert.ok(ids.includes(MODEL));
  return (await client.models.retrieve(MODEL)).id;
});

flow("chat: answer", async () => {
  const answer = await client.chat.completions.create(asking(CAPITAL));
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  return require(answer.choices[0].message.content, ITS_ANSWER);
});

flow("chat: stream", async () => {
  const parts = [];
  for await (const chunk of await client.chat.completions.create({ ...asking(CAPITAL), stream: true })) {
    if (chunk.choices[0]?.delta.content) parts.push(chunk.choices[0].delta.content);
  }
  assert.ok(parts.length > 1);
  return require(parts.join(""), ITS_ANSWER);
});

flow("chat: tools, with their result", async () => {
  const messages = [{ role: "user", content: WEATHER }];
  const asked = await client.chat.completions.create({ ...asking(""), messages, tools: TOOLS });
  const [call] = asked.choices[0].message.tool_calls;
  assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], [TOOL, { city: CITY }]);
  messages.push(asked.choices[0].message, { role: "tool", tool_call_id: call.id, content: SKY });
  const told = await client.chat.completions.create({ ...asking(""), messages, tools: TOOLS });
  return require(told.choices[0].message.content, SKY);
});

flow("chat: tools run by the client", async () => {
  const asked = [];
  const getWeather = ({ city }) => (asked.push(city), SKY);
  const tools = [{ type: "function", function: { ...FUNCTION, function: getWeather, parse: JSON.parse } }];
  const text = await client.chat.completions.runTools({ ...asking(WEATHER), tools, stream: true }).finalContent();
  assert.deepEqual(asked, [CITY]);
  return require(text, SKY);
});

flow("chat: structured output", async () => {
  const body = { ...asking(CAPITAL), response_format: zodResponseFormat(Answer, "answer") };
  const { parsed } = (await client.chat.completions.parse(body)).choices[0].message;
  assert.ok(CITIES.includes(parsed.city));
  return parsed.city;
});

flow("chat: several turns", async () => {
  const messages = [{ role: "user", content: MY_NAME }];
  messages.push((await client.chat.completions.create({ ...asking(""), messages })).choices[0].message);
  messages.push({ role: "user", content: WHO_AM_I });
  return require((await client.chat.completions.create({ ...asking(""), messages })).choices[0].message.content, THE_NAME);
});

flow("chat: unknown model", async () => {
  const error = await raised(OpenAI.NotFoundError, () =>
    client.chat.completions.create({ ...asking(CAPITAL), model: NOBODY }));
  assert.equal(error.code, "model_not_found");
  return require(error.message, NOBODY);
});

flow("chat: wrong key", async () => {
  const error = await raised(OpenAI.AuthenticationError, () => stranger.chat.completions.create(asking(CAPITAL)));
  return require(error.code, "invalid_api_key");
});

flow("chat: cancel in mid-stream", async () => {
  const stream = await client.chat.completions.create({ ...asking(LONG), max_tokens: 3000, stream: true });
  let seen = 0;
  for await (const chunk of stream) {
    assert.ok(!chunk.choices[0]?.finish_reason, "the answer has ended before it was cancelled");
    if (++seen === READ_PARTS) stream.controller.abort();
  }
  assert.ok(seen >= READ_PARTS);
  return require((await client.chat.completions.create(asking(CAPITAL))).choices[0].message.content, ITS_ANSWER);
});

flow("responses: answer", async () => {
  const answer = await client.responses.create(responding(CAPITAL));
  assert.equal(answer.status, "completed");
  return require(answer.output_text, ITS_ANSWER);
});

flow("responses: stream", async () => {
  const parts = [];
  const stream = client.responses.stream(responding(CAPITAL));
  stream.on("response.output_text.delta", (event) => parts.push(event.delta));
  const final = await stream.finalResponse();
  assert.ok(parts.length > 1);
  assert.equal(parts.join(""), final.output_text);
  return require(final.output_text, ITS_ANSWER);
});

flow("responses: tools, with their result", async () => {
  const tools = [{ type: "function", ...FUNCTION, strict: false }];
  const asked = await client.responses.create({ ...responding(WEATHER), tools });
  const [call] = asked.output.filter((item) => item.type === "function_call");
  assert.deepEqual([call.name, JSON.parse(call.arguments)], [TOOL, { city: CITY }]);
  const input = [{ type: "function_call_output", call_id: call.call_id, output: SKY }];
  const told = await client.responses.create({ ...responding(input), previous_response_id: asked.id, tools });
  return require(told.output_text, SKY);
});

flow("responses: structured output", async () => {
  const body = { ...responding(CAPITAL), text: { format: zodTextFormat(Answer, "answer") } };
  const { output_parsed: parsed } = await client.responses.parse(body);
  assert.ok(CITIES.includes(parsed.city));
  return parsed.city;
});

flow("responses: several turns", async () => {
  const conversation = await client.conversations.create({});
  const said = [];
  for (const question of [MY_NAME, WHO_AM_I]) {
    said.push(await client.responses.create({ ...responding(question), conversation: conversation.id }));
  }
  const items = [];
  for await (const item of client.conversations.items.list(conversation.id, { order: "asc" })) items.push(item.role);
  assert.deepEqual(items, ["user", "assistant", "user", "assistant"]);
  return require(said[1].output_text, THE_NAME);
});

flow("responses: unknown model", async () => {
  const error = await raised(OpenAI.NotFoundError, () =>
    client.responses.create({ ...responding(CAPITAL), model: NOBODY }));
  return require(error.code, "model_not_found");
});

flow("responses: wrong key", async () => {
  const error = await raised(OpenAI.AuthenticationError, () => stranger.responses.create(responding(CAPITAL)));
  return require(error.code, "invalid_api_key");
});

flow("responses: cancel in mid-stream", async () => {
  const stream = client.responses.stream({ ...responding(LONG), store: false });
  let seen = 0;
  stream.on("response.output_text.delta", () => ++seen === READ_PARTS && stream.abort());
  const error = await raised(OpenAI.APIUserAbortError, () => stream.done());
  return error.message;
});

await run();
