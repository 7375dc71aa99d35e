// Builds an answer from the events of a Responses stream: its items, its state and what it cost.
// Pure: events in, changed answer out. It must not know the network or the page.
import { MarkdownBlocks } from "./markdown.js";

export const RUNNING = new Set(["sending", "queued", "in_progress"]);

/** An answer before its first event. */
export function newAnswer(model) {
  return { id: null, model, status: "sending", sequence: -1, items: [], before: 0, usage: null, error: null, warnings: [], sentAt: Date.now(), firstAt: null, endedAt: null };
}

export const isRunning = (answer) => RUNNING.has(answer.status);

/** Change the answer by one event of its stream. */
export function applyEvent(answer, event) {
  if (Number.isInteger(event.sequence_number)) {
    if (event.sequence_number <= answer.sequence) return;
    answer.sequence = event.sequence_number;
  }
  const item = event.item_id ? answer.items.find((one) => one.id === event.item_id) : null;
  switch (event.type) {
    case "response.created":
    case "response.queued":
    case "response.in_progress":
      answer.id = event.response.id;
      answer.status = event.response.status;
      return;
    case "response.output_item.added":
    case "response.output_item.done":
      putItem(answer, answer.before + event.output_index, event.item);
      return;
    case "response.output_text.delta":
    case "response.refusal.delta":
      if (item) appendText(item, event.content_index, event.delta, event.type.includes("refusal") ? "refusal" : "output_text");
      break;
    case "response.reasoning_summary_text.delta":
      if (item) appendReasoning(item, "summary", event.summary_index, event.delta);
      break;
    case "response.reasoning_text.delta":
      if (item) appendReasoning(item, "content", event.content_index, event.delta);
      break;
    case "response.mcp_call_arguments.delta":
    case "response.function_call_arguments.delta":
      if (item) item.arguments = (item.arguments ?? "") + event.delta;
      break;
    case "response.mcp_call_arguments.done":
      if (item) Object.assign(item, { arguments: event.arguments, argumentsDone: true });
      break;
    case "response.mcp_call.in_progress":
      if (item && event.toolgate) item.progress = event.toolgate;
      break;
    case "response.completed":
    case "response.incomplete":
    case "response.failed":
    case "response.cancelled":
      finish(answer, event.response);
      return;
    case "error":
      answer.status = "failed";
      answer.error = { message: event.message ?? event.error?.message ?? "The answer failed.", code: event.code ?? event.error?.code ?? null };
      answer.endedAt = Date.now();
      return;
    default:
      return;
  }
  answer.firstAt ??= Date.now();
}

/** Take over what the server stored of a response. */
export function finish(answer, response) {
  answer.id = response.id;
  answer.status = response.status;
  answer.usage = added(answer.usageBefore, response.usage) ?? answer.usage;
  response.output?.forEach((item, at) => putItem(answer, answer.before + at, item));
  if (response.error) answer.error = response.error;
  if (response.incomplete_details) answer.error = { message: `The answer is incomplete: ${response.incomplete_details.reason}.`, code: response.incomplete_details.reason };
  if (!RUNNING.has(response.status)) answer.endedAt ??= Date.now();
}

/** Continue an answer by another response: what it has stays, and the tokens add up. */
export function continueAnswer(answer) {
  Object.assign(answer, { previous: answer.id, id: null, status: "sending", sequence: -1, before: answer.items.length, usageBefore: answer.usage, error: null, endedAt: null });
}

function added(one, other) {
  if (!one || !other) return other;
  const sum = { ...other };
  for (const name of ["input_tokens", "output_tokens", "total_tokens"]) sum[name] += one[name];
  return sum;
}

function putItem(answer, at, item) {
  const before = answer.items.findIndex((one) => one.id === item.id);
  if (before >= 0) answer.items[before] = { ...answer.items[before], ...item };
  else answer.items.splice(Math.min(at, answer.items.length), 0, { ...item });
}

function appendText(item, at, delta, type) {
  item.content ??= [];
  item.content[at] ??= { type, text: "" };
  const name = type === "refusal" ? "refusal" : "text";
  item.content[at][name] = (item.content[at][name] ?? "") + delta;
}

function appendReasoning(item, name, at, delta) {
  item[name] ??= [];
  item[name][at] ??= { text: "" };
  item[name][at].text += delta;
}

// ---- texts of an answer

const blocksOf = new Map();
/** Characters that are read in one frame: what is left follows in the next ones. */
const MOST_AT_ONCE = 8192;

/** The Markdown blocks of a text part; while the part grows, only its new end is read, and a long one not at once. */
export function blocks(id, text) {
  let known = blocksOf.get(id);
  if (!known || !text.startsWith(known.text)) {
    known = new MarkdownBlocks();
    blocksOf.set(id, known);
    if (blocksOf.size > 2000) blocksOf.delete(blocksOf.keys().next().value);
  }
  const from = known.text.length;
  if (from < text.length) known.append(text.slice(from, from + MOST_AT_ONCE));
  return known;
}

export const textOf = (item) => (item.content ?? []).map((part) => part?.text ?? part?.refusal ?? "").join("\n\n");
export const reasoningOf = (item) => [...(item.summary ?? []), ...(item.content ?? [])].map((part) => part?.text ?? "").join("\n\n");

/** The whole text of an answer, for copying. */
export const answerText = (answer) =>
  answer.items
    .filter((item) => item.type === "message")
    .map(textOf)
    .join("\n\n");
