// Anthropic's client for JavaScript: messages, and its errors.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import {
  CAPITAL, CITIES, CITY, ITS_ANSWER, KEY, LONG, MODEL, MY_NAME, NOBODY, PARAMETERS, READ_PARTS, SKY, THE_NAME,
  TIMEOUT_MS, TOOL, TOOL_DESCRIPTION, URL_, WEATHER, WHO_AM_I, WRONG_KEY, flow, raised, require, run,
} from "./flows.mjs";

const client = new Anthropic({ baseURL: URL_, apiKey: KEY, timeout: TIMEOUT_MS, maxRetries: 0 });
const stranger = new Anthropic({ baseURL: URL_, apiKey: WRONG_KEY, timeout: TIMEOUT_MS, maxRetries: 0 });
const TOOLS = [{ name: TOOL, description: TOOL_DESCRIPTION, input_schema: PARAMETERS }];

const saying = (messages, more = {}) => ({ model: MODEL, max_tokens: 60, temperature: 0, messages, ...more });
const asking = (content, more = {}) => saying([{ role: "user", content }], more);

flow("messages: answer", async () => {
  const message = await client.messages.create(asking(CAPITAL));
  assert.equal(message.stop_reason, "end_turn");
  return require(message.content[0].text, ITS_ANSWER);
});

flow("messages: stream", async () => {
  const parts = [];
  const final = await client.messages.stream(asking(CAPITAL)).on("text", (part) => parts.push(part)).finalMessage();
  assert.ok(parts.length > 1);
  assert.equal(parts.join(""), final.content[0].text);
  return require(final.content[0].text, ITS_ANSWER);
});

flow("messages: tools, with their result", async () => {
  const messages = [{ role: "user", content: WEATHER }];
  const asked = await client.messages.create(saying(messages, { tools: TOOLS }));
  assert.equal(asked.stop_reason, "tool_use");
  const [use] = asked.content.filter((block) => block.type === "tool_use");
  assert.deepEqual([use.name, use.input], [TOOL, { city: CITY }]);
  messages.push({ role: "assistant", content: asked.content });
  messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: SKY }] });
  return require((await client.messages.create(saying(messages, { tools: TOOLS }))).content[0].text, SKY);
});

flow("messages: tools in a stream", async () => {
  let json = "";
  const stream = client.messages.stream(asking(WEATHER, { tools: TOOLS })).on("inputJson", (part) => (json += part));
  const [use] = (await stream.finalMessage()).content.filter((block) => block.type === "tool_use");
  assert.deepEqual(use.input, { city: CITY });
  return json;
});

flow("messages: tools run by the client", async () => {
  const asked = [];
  const tool = betaZodTool({
    name: TOOL,
    description: TOOL_DESCRIPTION,
    inputSchema: z.object({ city: z.string() }),
    run: ({ city }) => (asked.push(city), SKY),
  });
  const last = await client.beta.messages.toolRunner(asking(WEATHER, { tools: [tool] }));
  assert.deepEqual(asked, [CITY]);
  return require(last.content[0].text, SKY);
});

flow("messages: structured output", async () => {
  const format = zodOutputFormat(z.object({ city: z.enum(CITIES) }));
  const { parsed_output: parsed } = await client.messages.parse(asking(CAPITAL, { output_config: { format } }));
  assert.ok(CITIES.includes(parsed.city));
  return parsed.city;
});

flow("messages: several turns", async () => {
  const messages = [{ role: "user", content: MY_NAME }];
  messages.push({ role: "assistant", content: (await client.messages.create(saying(messages))).content });
  messages.push({ role: "user", content: WHO_AM_I });
  return require((await client.messages.create(saying(messages))).content[0].text, THE_NAME);
});

flow("messages: count tokens", async () => {
  const { input_tokens: counted } = await client.messages.countTokens({
    model: MODEL, messages: [{ role: "user", content: CAPITAL }],
  });
  const { usage } = await client.messages.create(asking(CAPITAL));
  assert.equal(counted, usage.input_tokens + (usage.cache_read_input_tokens ?? 0));
  return counted;
});

flow("messages: unknown model", async () => {
  const error = await raised(Anthropic.NotFoundError, () => client.messages.create(asking(CAPITAL, { model: NOBODY })));
  assert.equal(error.error.error.type, "not_found_error");
  return require(error.message, NOBODY);
});

flow("messages: wrong key", async () => {
  const error = await raised(Anthropic.AuthenticationError, () => stranger.messages.create(asking(CAPITAL)));
  return require(error.error.error.type, "authentication_error");
});

flow("messages: cancel in mid-stream", async () => {
  const stream = client.messages.stream(asking(LONG, { max_tokens: 3000 }));
  let seen = 0;
  stream.on("text", () => ++seen === READ_PARTS && stream.abort());
  const error = await raised(Anthropic.APIUserAbortError, () => stream.done());
  assert.equal(stream.aborted, true);
  return error.message;
});

await run();
