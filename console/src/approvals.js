// Approvals that wait for a person: watching them, and answering.
import { signal } from "@preact/signals";
import { ApiError, get, post } from "./api.js";
import { pendingApprovals } from "./state.js";

const WATCH_EVERY = 2500;

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

/** Look at what waits now. */
export async function refreshPending() {
  try {
    const page = await get("/v1/approvals", { state: "pending", order: "fair", limit: 100 });
    pending.value = page.data;
    pendingApprovals.value = page.data.length;
    watchError.value = null;
  } catch (error) {
    watchError.value = error;
  }
}

/** Keep the list up to date while the page is visible; returns what ends it. */
export function watchApprovals() {
  const look = () => document.hidden || refreshPending();
  look();
  const timer = setInterval(look, WATCH_EVERY);
  document.addEventListener("visibilitychange", look);
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", look);
  };
}

/**
 * Answer an approval; edited arguments are sent only if they differ from those that were asked about.
 * Returns the approval as it is now, also if another person was faster.
 */
export async function answerApproval(approval, { decision, level = "once", edited = null, reason = "" }) {
  const body = { decision };
  if (decision === "approve") {
    body.level = level;
    const given = edited === null ? null : parseArguments(edited);
    if (given !== null && JSON.stringify(given) !== JSON.stringify(parseArguments(approval.arguments))) body.arguments = given;
  }
  if (reason) body.reason = reason;
  try {
    return await post(`/v1/approvals/${approval.id}`, body);
  } finally {
    refreshPending();
  }
}

/** Decode arguments; an error that a person can act on if they are no JSON object. */
export function parseArguments(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ApiError(400, `The arguments are not valid JSON: ${error.message}`, { param: "arguments" });
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new ApiError(400, "The arguments must be a JSON object.", { param: "arguments" });
  return value;
}
