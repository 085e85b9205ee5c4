// Vercel's AI SDK, with its providers for compatible services (chat completions), for OpenAI (responses) and for
// Anthropic (messages).

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  CAPITAL, CITIES, CITY, ITS_ANSWER, KEY, LONG, MODEL, MY_NAME, NOBODY, READ_PARTS, SKY, THE_NAME,
  TOOL, TOOL_DESCRIPTION, URL_, WEATHER, WHO_AM_I, WRONG_KEY, flow, raised, require, run,
} from "./flows.mjs";

const baseURL = `${URL_}/v1`;
const compatible = (apiKey) =>
  createOpenAICompatible({ name: "baton", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const openai = (apiKey) => createOpenAI({ baseURL, apiKey }).responses;
const anthropic = (apiKey) => createAnthropic({ baseURL, apiKey });

const asking = (model, prompt, more = {}) => ({ model, prompt, temperature: 0, maxOutputTokens: 60, maxRetries: 0, ...more });
const answer = async (model) => require((await generateText(asking(model, CAPITAL))).text, ITS_ANSWER);

async function streamed(model) {
  const result = streamText(asking(model, CAPITAL));
  const parts = [];
  for await (const part of result.textStream) parts.push(part);
  assert.ok(parts.length > 1);
  assert.ok((await result.usage).outputTokens > 1);
  return require(parts.join(""), ITS_ANSWER);
}

// The SDK runs the tool, sends its result, and goes on until the model calls no tool.
async function withTool(model) {
  const asked = [];
  const tools = {
    [TOOL]: tool({
      description: TOOL_DESCRIPTION,
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => (asked.push(city), SKY),
    }),
  };
  const result = streamText(asking(model, WEATHER, { tools, stopWhen: stepCountIs(3) }));
  const text = await result.text;
  assert.deepEqual(asked, [CITY]);
  assert.equal((await result.steps).length, 2);
  return require(text, SKY);
}

async function structured(model) {
  const schema = z.object({ city: z.enum(CITIES) });
  const { output } = await generateText(asking(model, CAPITAL, { output: Output.object({ schema }) }));
  assert.ok(CITIES.includes(output.city));
  return output.city;
}

async function turns(model) {
  const messages = [{ role: "user", content: MY_NAME }];
  const { prompt, ...body } = asking(model, "");
  messages.push(...(await generateText({ ...body, messages })).response.messages, { role: "user", content: WHO_AM_I });
  return require((await generateText({ ...body, messages })).text, THE_NAME);
}

async function refused(model, status) {
  const error = await raised(APICallError, () => generateText(asking(model, CAPITAL)));
  assert.equal(error.statusCode, status);
  return error.message;
}

// A response that is stored goes on when its client leaves, so none is stored here.
async function cancelled(model) {
  const controller = new AbortController();
  const result = streamText(asking(model, LONG, {
    maxOutputTokens: 3000,
    abortSignal: controller.signal,
    providerOptions: { openai: { store: false } },
  }));
  let seen = 0;
  const types = [];
  for await (const part of result.fullStream) {
    types.push(part.type);
    if (part.type === "text-delta" && ++seen === READ_PARTS) controller.abort();
  }
  assert.equal(types.at(-1), "abort");
  assert.ok(!types.includes("finish"), "the answer has ended before it was cancelled");
  return `after ${seen} parts`;
}

flow("chat: answer", () => answer(compatible(KEY)(MODEL)));
flow("chat: stream", () => streamed(compatible(KEY)(MODEL)));
flow("chat: tools, with their result", () => withTool(compatible(KEY)(MODEL)));
flow("chat: structured output", () => structured(compatible(KEY)(MODEL)));
flow("chat: several turns", () => turns(compatible(KEY)(MODEL)));
flow("chat: unknown model", () => refused(compatible(KEY)(NOBODY), 404));
flow("chat: wrong key", () => refused(compatible(WRONG_KEY)(MODEL), 401));
flow("chat: cancel in mid-stream", () => cancelled(compatible(KEY)(MODEL)));

flow("responses: answer", () => answer(openai(KEY)(MODEL)));
flow("responses: stream", () => streamed(openai(KEY)(MODEL)));
flow("responses: tools, with their result", () => withTool(openai(KEY)(MODEL)));
flow("responses: structured output", () => structured(openai(KEY)(MODEL)));
flow("responses: several turns", () => turns(openai(KEY)(MODEL)));
flow("responses: unknown model", () => refused(openai(KEY)(NOBODY), 404));
flow("responses: wrong key", () => refused(openai(WRONG_KEY)(MODEL), 401));
flow("responses: cancel in mid-stream", () => cancelled(openai(KEY)(MODEL)));

flow("messages: answer", () => answer(anthropic(KEY)(MODEL)));
flow("messages: stream", () => streamed(anthropic(KEY)(MODEL)));
flow("messages: tools, with their result", () => withTool(anthropic(KEY)(MODEL)));
flow("messages: several turns", () => turns(anthropic(KEY)(MODEL)));
flow("messages: unknown model", () => refused(anthropic(KEY)(NOBODY), 404));
flow("messages: wrong key", () => refused(anthropic(WRONG_KEY)(MODEL), 401));
flow("messages: cancel in mid-stream", () => cancelled(anthropic(KEY)(MODEL)));

await run();
