// Run requests through the official SDKs of Node: one JSON request a line on stdin, one JSON answer a line on stdout.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const require = createRequire(join(process.argv[2], "index.js"));
const { OpenAI } = require("openai");
const { Anthropic } = require("@anthropic-ai/sdk");
const { Ollama } = require("ollama");

let warnings = [];
const watched = async (...request) => {
  const response = await fetch(...request);
  const warning = response.headers.get("x-toolgate-warning");
  if (warning) warnings.push(warning);
  return response;
};

const openai = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, fetch: watched });
const anthropic = (url) => new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0, fetch: watched });

async function chat({ url, body, stream, headers, cancel }) {
  const api = openai(url).chat.completions;
  if (!stream) return api.create(body, { headers });
  if (!cancel) {
    const events = api.stream({ ...body, stream_options: { include_usage: true } }, { headers });
    // The SDK keeps only the last piece of a field it does not know; its users join the pieces of the chunks.
    let thought = "";
    events.on("chunk", (chunk) => (thought += chunk.choices[0]?.delta.reasoning_content ?? ""));
    const final = await events.finalChatCompletion();
    if (thought) final.choices[0].message.reasoning_content = thought;
    return final;
  }
  for await (const chunk of await api.create({ ...body, stream: true }, { headers })) {
    if (chunk.choices[0]?.delta.content) break;
  }
  return {};
}

async function responses({ url, body, stream, headers, cancel }) {
  const api = openai(url).responses;
  if (!stream) return api.create(body, { headers });
  if (!cancel) return api.stream(body, { headers }).finalResponse();
  for await (const event of await api.create({ ...body, stream: true }, { headers })) {
    if (event.type === "response.output_text.delta") break;
  }
  return {};
}

async function messages({ url, body, stream, headers, cancel }) {
  const api = anthropic(url).messages;
  if (!stream) return api.create(body, { headers });
  if (!cancel) return api.stream(body, { headers }).finalMessage();
  for await (const event of await api.create({ ...body, stream: true }, { headers })) {
    if (event.type === "content_block_delta") break;
  }
  return {};
}

async function ollama({ url, body, stream, headers, cancel }) {
  const client = new Ollama({ host: url, headers, fetch: watched });
  if (!stream) return client.chat(body);
  const chunks = [];
  const answer = await client.chat({ ...body, stream: true });
  for await (const chunk of answer) {
    chunks.push(chunk);
    if (cancel && chunk.message.content) {
      answer.abort();
      return {};
    }
  }
  return chunks;
}

const apis = { chat, responses, messages, ollama };
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  warnings = [];
  let told;
  try {
    const answer = await apis[request.api](request);
    told = { answer, warnings: warnings.join(" ") };
  } catch (error) {
    told = { error: { status: error.status ?? error.status_code ?? null, message: String(error.message ?? error) } };
  }
  process.stdout.write(JSON.stringify(told) + "\n");
}
