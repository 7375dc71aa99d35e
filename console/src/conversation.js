// Conversations and their turns: asks the model, follows the stream, goes on after a break, and saves what happened.
// It must not know components; they read its signals.
import { signal } from "@preact/signals";
import { applyEvent, continueAnswer, finish, isRunning, newAnswer } from "./answer.js";
import { ApiError, events, get, pause, post } from "./api.js";
import { deleteConversation, deleteTurn, listConversations, loadTurns, saveConversation, saveTurn } from "./chats.js";
import { caller, may, status } from "./state.js";

const SAVE_EVERY = 1000;
const LONGEST_WAIT = 4000;

/** The conversations of this key, the last used first. */
export const conversations = signal([]);
/** Those that are loaded, by id: one that is left goes on. */
const loaded = new Map();

export const newId = () => crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Forget all that is loaded: another key has its own conversations. */
export function closeConversations() {
  for (const one of loaded.values()) for (const turn of one.turns.value) turn.controller?.abort();
  loaded.clear();
  conversations.value = [];
}

/** Read the list; conversations that were left while they ran go on. */
export async function loadConversations() {
  conversations.value = await listConversations(caller.value.name);
  for (const meta of conversations.value.filter((one) => one.running)) {
    const found = findConversation(meta.id);
    found.load().then(() => found.rest());
  }
}

/** A question and its answer. `changes` counts, so that a component that read it is rendered again. */
class Turn {
  constructor(record) {
    Object.assign(this, record);
    this.changes = signal(0);
    this.reconnecting = signal(false);
    this.controller = null;
    this.frame = 0;
    this.savedAt = 0;
  }

  get record() {
    const { id, conversation, position, text, images, request, answer } = this;
    return { id, conversation, position, text, images, request, answer };
  }

  /** Show a change with the next frame, and save it within a second. */
  touch() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.changes.value += 1;
    });
    if (isRunning(this.answer) && Date.now() - this.savedAt > SAVE_EVERY) this.save();
  }

  save() {
    this.savedAt = Date.now();
    return saveTurn(this.record);
  }

  show() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.changes.value += 1;
    return this.save();
  }
}

/** One conversation: its turns, and what can be done with them. */
export class Conversation {
  constructor(meta) {
    this.meta = meta;
    this.turns = signal([]);
    this.ready = signal(false);
  }

  /** Load the turns; one that was running goes on. */
  async load() {
    if (this.loading) return this.loading;
    this.loading = loadTurns(this.meta.id).then((records) => {
      this.turns.value = [...records.map((record) => new Turn(record)), ...this.turns.value];
      this.ready.value = true;
      const last = this.turns.value.at(-1);
      if (!last || !isRunning(last.answer)) return;
      if (last.answer.id && last.request.background) this.follow(last);
      else this.fail(last, new ApiError(0, "The page was closed before the answer was complete.")).then(() => last.show());
    });
    return this.loading;
  }

  get running() {
    const last = this.turns.value.at(-1);
    return Boolean(last) && (last.changes.value, isRunning(last.answer));
  }

  /** Ask with a new message. `request` has model, tools and whether the server keeps the run. */
  async send(text, images, request) {
    const turn = new Turn({ id: newId(), conversation: this.meta.id, position: (this.turns.value.at(-1)?.position ?? -1) + 1, text, images, request, answer: newAnswer(request.model) });
    this.turns.value = [...this.turns.value, turn];
    if (!this.meta.title) this.meta.title = text.trim().split("\n")[0].slice(0, 80) || "Image";
    this.meta = { ...this.meta, updated: Date.now(), model: request.model, running: true };
    conversations.value = [this.meta, ...conversations.value.filter((one) => one.id !== this.meta.id)];
    // The question is stored before it is asked: a page that closes has then nothing that the next one lacks.
    await Promise.all([saveConversation(this.meta), turn.save()]);
    if (isRunning(turn.answer)) await this.follow(turn);
  }

  /** Drop a turn and all after it, to ask again. */
  async cutFrom(turn) {
    const at = this.turns.value.indexOf(turn);
    for (const one of this.turns.value.slice(at)) {
      await this.stop(one);
      deleteTurn(one.id);
    }
    this.turns.value = this.turns.value.slice(0, at);
  }

  /** Stop the answer; the server stops working on it, too. */
  async stop(turn = this.turns.value.at(-1)) {
    if (!turn || !isRunning(turn.answer)) return;
    const { answer } = turn;
    if (answer.id && turn.request.background) {
      try {
        finish(answer, await post(`/v1/responses/${answer.id}/cancel`));
      } catch (error) {
        if (error.status === 0) throw error;
      }
    }
    turn.controller?.abort();
    if (isRunning(answer)) answer.status = "cancelled";
    answer.endedAt ??= Date.now();
    await turn.show();
    this.rest();
  }

  /** Read the stream of a turn to its end, over broken connections and restarts of the server. */
  async follow(turn) {
    const { answer } = turn;
    const controller = (turn.controller = new AbortController());
    const { signal: aborted } = controller;
    for (let attempt = 0; isRunning(answer) && !aborted.aborted; ) {
      try {
        for await (const { data } of this.stream(turn, aborted)) {
          const hadId = answer.id;
          applyEvent(answer, data);
          attempt = 0;
          turn.reconnecting.value = false;
          if (!hadId && answer.id) await turn.save(); // before any text is shown, so that the next page can go on with it
          turn.touch();
        }
        if (isRunning(answer)) throw new ApiError(0, "The connection ended before the answer did.");
      } catch (error) {
        if (aborted.aborted) break;
        if (error.code === "previous_response_not_found" && this.forgetResponses(turn)) continue;
        if (!answer.id || !turn.request.background || !isPassing(error)) {
          await this.fail(turn, error);
          break;
        }
        turn.reconnecting.value = true;
        await pause(Math.min(LONGEST_WAIT, 400 * 2 ** attempt++), aborted);
      }
    }
    turn.reconnecting.value = false;
    if (aborted.aborted) return;
    if (this.isAnswered(turn)) {
      continueAnswer(answer);
      await this.follow(turn);
      return;
    }
    await this.describeRequests(turn);
    await turn.show();
    this.rest();
    if (status.value?.prices) this.findCost(turn);
  }

  /** Ask what the answer cost, which the server writes down a moment after its end. */
  async findCost(turn) {
    const { answer } = turn;
    const path = turn.request.background ? `/v1/runs/${answer.id}` : `/v1/requests/${answer.request}`;
    for (const wait of [300, 1500, 4000]) {
      await pause(wait, turn.controller.signal);
      const { cost } = await get(path).catch(() => ({ cost: null }));
      if (!cost) continue;
      answer.cost = cost;
      turn.show();
      return;
    }
  }

  /** Note in the list that nothing runs any more. */
  rest() {
    if (!this.meta.running || this.running) return;
    this.meta = { ...this.meta, running: false };
    saveConversation(this.meta);
    conversations.value = conversations.value.map((one) => (one.id === this.meta.id ? this.meta : one));
  }

  stream(turn, signal) {
    const { answer } = turn;
    if (answer.id) return events("GET", `/v1/responses/${answer.id}?stream=true&starting_after=${answer.sequence}`, { signal });
    const body = { ...turn.request, stream: true, store: true, ...(answer.previous ? decisionsOf(answer) : this.inputOf(turn)) };
    const onOpen = (response) => {
      answer.request = response.headers.get("x-request-id");
      const warning = response.headers.get("x-toolgate-warning");
      if (warning && !answer.warnings.includes(warning)) answer.warnings = [...answer.warnings, warning];
    };
    // An approval for the session holds for this conversation.
    return events("POST", "/v1/responses", { body, signal, onOpen, headers: { "x-toolgate-session": this.meta.id } });
  }

  /** Continue a response that ended with approval requests, as soon as all of them are answered. */
  async answerRequest(turn, item, decision) {
    const { answer } = turn;
    const current = answer.items.find((one) => one.id === item.id) ?? item;
    // With `null` another person was faster; whatever the answer, the server has it.
    Object.assign(current, { decision: decision ?? "approve", taken: Boolean(item.approval) });
    turn.show();
    if (!this.isAnswered(turn)) return; // an answer that is still running is continued by `follow` when it has ended
    continueAnswer(answer);
    await this.follow(turn);
  }

  /** Whether the response of a turn has ended with approval requests and all of them are answered. */
  isAnswered({ answer }) {
    const asked = answer.items.slice(answer.before).filter((one) => one.type === "mcp_approval_request");
    return answer.status === "completed" && asked.length > 0 && asked.every((one) => one.decision);
  }

  /** Show what is asked, if this key may see it: the question, the reason and the expiry. */
  async describeRequests(turn) {
    for (const item of turn.answer.items) {
      if (item.type !== "mcp_approval_request" || item.decision || item.approval || !may("tools")) continue;
      item.approval = await get(`/v1/approvals/${item.id}`).catch(() => null);
    }
  }

  /** What the model is asked: the last finished response, and what came after it. */
  inputOf(turn) {
    const turns = this.turns.value.slice(0, this.turns.value.indexOf(turn));
    const base = turns.findLastIndex((one) => one.answer.id && one.answer.status === "completed" && !one.answer.lost);
    const input = turns.slice(base + 1).flatMap((one) => [userMessage(one), ...one.answer.items.map(asInput).filter(Boolean)]);
    return { input: [...input, userMessage(turn)], previous_response_id: base >= 0 ? turns[base].answer.id : undefined };
  }

  /** The server has lost earlier responses: from now on their items are sent. Whether that changes anything. */
  forgetResponses(turn) {
    const earlier = this.turns.value.slice(0, this.turns.value.indexOf(turn)).filter((one) => one.answer.id && !one.answer.lost);
    for (const one of earlier) {
      one.answer.lost = true;
      one.save();
    }
    return earlier.length > 0;
  }

  async fail(turn, error) {
    const { answer } = turn;
    if (answer.id && error.code === "stream_not_kept") {
      try {
        finish(answer, await get(`/v1/responses/${answer.id}`));
        return;
      } catch (other) {
        error = other;
      }
    }
    answer.status = "failed";
    answer.error = { message: error.message, code: error.code ?? null, status: error.status };
    answer.endedAt = Date.now();
  }
}

/** Whether it helps to try again later. */
const isPassing = (error) => [0, 429, 500, 502, 503, 504].includes(error.status);

function userMessage(turn) {
  const images = turn.images.map((url) => ({ type: "input_image", image_url: url }));
  return { type: "message", role: "user", content: [...images, ...(turn.text ? [{ type: "input_text", text: turn.text }] : [])] };
}

/** An item of an answer as history: its texts, and the calls that have ended. */
function asInput(item) {
  if (item.type === "message" && item.content?.some((part) => part.text))
    return { type: "message", role: "assistant", content: item.content.filter((part) => part.text).map((part) => ({ type: "output_text", text: part.text })) };
  if (item.type === "mcp_call" && (item.output !== null || item.error))
    return { type: "mcp_call", id: item.id, server_label: item.server_label, name: item.name, arguments: item.arguments, output: item.output, error: item.error };
  return null;
}

/** The answers to the approval requests at the end of a response, without those that the server has got already. */
function decisionsOf(answer) {
  const asked = answer.items.filter((item) => item.type === "mcp_approval_request" && item.decision && !item.taken);
  const input = asked.map((item) => ({ type: "mcp_approval_response", approval_request_id: item.id, approve: item.decision === "approve" }));
  return { previous_response_id: answer.previous, input };
}

/** A conversation that is not in the list before its first message. */
export function newConversation() {
  const now = Date.now();
  const made = new Conversation({ id: newId(), owner: caller.value.name, title: "", created: now, updated: now, model: null });
  made.ready.value = true;
  made.loading = Promise.resolve();
  loaded.set(made.meta.id, made);
  return made;
}

/** The conversation of an id; null if this browser does not have it. */
export function findConversation(id) {
  if (loaded.has(id)) return loaded.get(id);
  const meta = conversations.value.find((one) => one.id === id);
  if (!meta) return null;
  const found = new Conversation(meta);
  loaded.set(id, found);
  return found;
}

export async function removeConversation(id) {
  await loaded.get(id)?.stop();
  loaded.delete(id);
  conversations.value = conversations.value.filter((one) => one.id !== id);
  await deleteConversation(id);
}
