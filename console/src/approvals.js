// Approvals that wait for a person: watching them, and answering.
import { signal } from "@preact/signals";
import { ApiError, get, pause, post } from "./api.js";
import { pretty } from "./json.js";
import { pendingApprovals } from "./state.js";

/** How long the server holds its answer while nothing changes, in seconds. */
const WAIT_SECONDS = 25;
const HIDDEN_EVERY = 15_000;
const LONGEST_PAUSE = 8000;

export const LEVELS = [
  ["once", "this call only"],
  ["session", "this conversation"],
  ["workspace", "this workspace"],
  ["always", "always"],
];

/** The approvals that wait, those of every key in turn; null before the first look. */
export const pending = signal(null);
/** Why the last look failed. */
export const watchError = signal(null);

/** The list that `pending` was read from. */
let version = "";

async function look(options, wait) {
  const page = await get("/v1/approvals", { state: "pending", order: "fair", limit: 100, ...(wait ? { wait, version } : {}) }, options);
  const isNew = page.version !== version || pending.value === null;
  version = page.version;
  if (isNew) pending.value = page.data;
  pendingApprovals.value = page.data.length;
  watchError.value = null;
}

/** Look at what waits now. */
export const refreshPending = () => look().catch((error) => (watchError.value = error));

/** Keep the list up to date: the server answers when it changes; while the page is hidden it is asked now and then. Returns what ends it. */
export function watchApprovals() {
  const ended = new AbortController();
  let current = new AbortController();
  const turn = () => current.abort();
  const follow = async () => {
    for (let failures = 0; !ended.signal.aborted; ) {
      current = new AbortController();
      const { signal } = current;
      try {
        await look({ signal }, document.hidden ? 0 : WAIT_SECONDS);
        failures = 0;
        if (document.hidden) await pause(HIDDEN_EVERY, signal);
      } catch (error) {
        if (signal.aborted) continue;
        watchError.value = error;
        await pause(Math.min(LONGEST_PAUSE, 500 * 2 ** failures++), signal);
      }
    }
  };
  document.addEventListener("visibilitychange", turn);
  follow();
  return () => {
    document.removeEventListener("visibilitychange", turn);
    ended.abort();
    current.abort();
    pending.value = pendingApprovals.value = null;
    version = "";
  };
}

/**
 * Answer an approval; edited arguments are sent only if they differ from those that were asked about.
 * Returns the approval as it is now, also if another person was faster.
 */
export async function answerApproval(approval, { decision, level = "once", edited = null, reason = "" }) {
  const body = { decision, ...(decision === "approve" ? { level } : {}), ...(reason ? { reason } : {}) };
  let text = JSON.stringify(body);
  if (decision === "approve" && edited !== null) {
    checkArguments(edited);
    // The text itself is sent: decoding it would round long numbers.
    if (pretty(edited) !== pretty(approval.arguments)) text = `${text.slice(0, -1)},"arguments":${edited}}`;
  }
  try {
    return await post(`/v1/approvals/${approval.id}`, text);
  } finally {
    refreshPending();
  }
}

/** Raise an error that a person can act on if the arguments are no JSON object. */
function checkArguments(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ApiError(400, `The arguments are not valid JSON: ${error.message}`, { param: "arguments" });
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new ApiError(400, "The arguments must be a JSON object.", { param: "arguments" });
}
