// Calls the server's public API: requests with the caller's key, server-sent events, and errors with their text.
// It must not know pages or components.
import { key, signedOut } from "./state.js";

export const root = new URL("..", location.href.replace(/[?#].*$/, "")).href.replace(/\/$/, "");

/** A refusal of the server, or a server that could not be reached (status 0). */
export class ApiError extends Error {
  constructor(status, message, { code = null, param = null, body = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", status, code, param, body, retryAfter });
  }
}

const UNREACHABLE = "The server cannot be reached. It may be stopped or restarting.";

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  const error = body?.error ?? body ?? {};
  const message = (typeof error === "string" ? error : error.message) || `The server answered with status ${response.status}.`;
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  return new ApiError(response.status, message, { code: error.code, param: error.param, body, retryAfter });
}

async function send(method, path, { body, signal, headers = {} } = {}) {
  const init = { method, signal, headers: { ...headers }, credentials: "omit", cache: "no-store" };
  const used = key.value;
  if (used) init.headers.authorization = `Bearer ${used}`;
  if (body !== undefined) {
    init.headers["content-type"] = "application/json";
    init.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(root + path, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, UNREACHABLE);
  }
  if (response.ok) return response;
  const error = await errorOf(response);
  // A refusal may come late: it says nothing of a key that was entered meanwhile.
  if (error.status === 401 && key.value === used) signedOut(error.message);
  throw error;
}

/** Send a request and return its decoded JSON answer. */
export async function call(method, path, options) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

export const get = (path, params, options) => call("GET", path + query(params), options);
export const post = (path, body = {}, options) => call("POST", path, { ...options, body });
export const del = (path, options) => call("DELETE", path, options);

/** Wait for a while, or until the signal aborts. */
export function pause(milliseconds, aborted) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    aborted.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** Encode query parameters; those that are empty are left out. */
export function query(params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Yield the server-sent events of a request as `{event, data}`; `data` is decoded JSON. A plain JSON answer is one event. */
export async function* events(method, path, options = {}) {
  const response = await send(method, path, { ...options, headers: { accept: "text/event-stream", ...options.headers } });
  options.onOpen?.(response);
  if (response.headers.get("content-type")?.startsWith("application/json")) {
    yield { event: "message", data: await response.json() };
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      let chunk;
      try {
        chunk = await reader.read();
      } catch (error) {
        if (options.signal?.aborted) throw error;
        throw new ApiError(0, "The connection to the server broke.");
      }
      if (chunk.done) return;
      pending += chunk.value.replaceAll("\r", "");
      let start = 0;
      for (let end; (end = pending.indexOf("\n\n", start)) >= 0; start = end + 2) {
        const frame = decodeFrame(pending.slice(start, end));
        if (frame) yield frame;
      }
      pending = pending.slice(start);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function decodeFrame(text) {
  let event = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
  }
  const joined = data.join("\n");
  return !data.length || joined === "[DONE]" ? null : { event, data: JSON.parse(joined) };
}
