// Cards: a tool call with its state, and an approval that a person answers in place.
import { useId, useMemo, useState } from "preact/hooks";
import { answerApproval, LEVELS } from "../approvals.js";
import { Code } from "../code.js";
import { pretty } from "../json.js";
import { isEmbeddedImage } from "../markdown.js";
import { may } from "../state.js";
import { Badge, Button, ErrorNote, html, Icon, Spinner, Time } from "../ui.js";

/** The states of a call: how the badge looks and reads. */
const STATES = {
  pending: ["", "pending"],
  running: ["info", "running"],
  waiting: ["warn", "waiting for approval"],
  done: ["good", "done"],
  failed: ["danger", "failed"],
  denied: ["danger", "denied"],
  stopped: ["", "stopped"],
};

const DENIED = /^The call of \S+ was not allowed/;

function stateOf(item, running) {
  if (item.status === "completed") return "done";
  if (item.error || item.status === "failed") return DENIED.test(errorText(item.error)) ? "denied" : "failed";
  if (!running) return "stopped";
  return item.argumentsDone || item.progress ? "running" : "pending";
}

/** A call that the server runs or ran. */
export function ToolCard({ item, running }) {
  const state = stateOf(item, running);
  const error = errorText(item.error);
  const images = (item.toolgate?.images ?? []).filter(isEmbeddedImage);
  return html`<${Card} name=${item.name} state=${state} summary=${oneLine(item.arguments)} outcome=${oneLine(error ?? item.output)}>
    <${Section} title="Arguments" text=${item.arguments} />
    ${error ? html`<${Section} title="Error" text=${error} />` : null}
    ${item.output ? html`<${Section} title="Result" text=${item.output} />` : null}
  <//>
  ${state === "running" && item.progress ? html`<${Progress} progress=${item.progress} />` : null}
  ${images.map((url) => html`<img class="tool-image" src=${url} alt=${`Image from ${item.name}`} />`)}`;
}

function Card({ name, state, summary, outcome, children, open: opened = false }) {
  const [open, setOpen] = useState(opened);
  const id = useId();
  const [kind, label] = STATES[state];
  return html`<div class=${`tool-card ${state}`} role="group" aria-label=${name}>
    <div class="tool-head">
      <button type="button" class="unfold" aria-label="Details" aria-expanded=${String(open)} aria-controls=${id} onClick=${() => setOpen(!open)}><${Icon} name="chevron" /></button><span class="tool-name">${name}</span>
      <${Badge} kind=${kind}>${state === "running" ? html`<span class="pulse"></span>` : null}${label}<//>
      ${open ? null : html`<span class="tool-line mono">${summary}</span>${outcome ? html`<span class="tool-line mono tool-outcome">${outcome}</span>` : null}`}
    </div>
    <div id=${id} hidden=${!open} class="tool-body">${open ? children : null}</div>
  </div>`;
}

function Section({ title, text }) {
  return html`<section><div class="section-title">${title}</div><${Code} text=${useMemo(() => pretty(text ?? ""), [text])} language=${/^\s*[[{]/.test(text ?? "") ? "json" : ""} label=${`Copy ${title.toLowerCase()}`} /></section>`;
}

function Progress({ progress: { message, done, total } }) {
  return html`<div class="tool-progress">${total ? html`<progress max=${total} value=${done ?? 0} aria-label="Progress"></progress>` : html`<${Spinner} label="Running" />`}
    <span>${message || (total ? `${done} of ${total}` : "Working")}</span></div>`;
}

function errorText(error) {
  if (!error) return null;
  if (typeof error === "string") return error;
  return (error.content ?? []).map((part) => part.text ?? "").join("\n") || error.message || "The call failed.";
}

const oneLine = (text) => (text ?? "").slice(0, 300).replace(/\s+/g, " ").trim();

/** An approval; `onAnswer(decision, answered)` is called after the server has taken the answer. */
export function ApprovalCard({ approval, onAnswer, withRequester = false }) {
  const [edited, setEdited] = useState(() => pretty(approval.arguments));
  const [level, setLevel] = useState("once");
  const [busy, setBusy] = useState(null);
  const [error, setError] = useState(null);
  const id = useId();
  const answer = async (decision) => {
    setBusy(decision);
    setError(null);
    try {
      const answered = await answerApproval(approval, { decision, level, edited });
      onAnswer?.(decision, answered);
    } catch (problem) {
      setError(problem);
      if ([404, 409, 410].includes(problem.status)) onAnswer?.(null);
    } finally {
      setBusy(null);
    }
  };
  const rows = Math.min(12, Math.max(2, edited.split("\n").length));
  return html`<div class="tool-card waiting approval" role="group" aria-label=${approval.tool}>
    <div class="tool-head"><${Icon} name="approvals" /><span class="tool-name">${approval.tool}</span><${Badge} kind="warn">waiting for approval<//>
      ${withRequester ? html`<span class="soft">for ${approval.caller}, <${Time} at=${approval.created_at} /></span>` : null}</div>
    <div class="tool-body">
      <p>${approval.question ?? approval.message ?? approval.title ?? `May ${approval.tool} run?`}</p>
      <p class="hint">${[approval.why && `Asked because ${approval.why}.`, `From ${approval.source}${approval.origin ? ` (${approval.origin})` : ""}.`].filter(Boolean).join(" ")} Expires <${Time} at=${approval.expires_at} />.</p>
      ${approval.tainted ? html`<p class="note warn"><${Icon} name="warning" /><span>This conversation holds text from outside, which may have led the model to this call.</span></p>` : null}
      <label class="field" for=${id}><span class="label">Arguments</span></label>
      <textarea id=${id} class="mono" rows=${rows} spellcheck="false" value=${edited} onInput=${(event) => setEdited(event.currentTarget.value)}></textarea>
      <${ErrorNote} error=${error} />
      <div class="row answer">
        <${Button} kind="primary" icon="check" busy=${busy === "approve"} disabled=${busy !== null} onClick=${() => answer("approve")}>Approve<//>
        <label class="level"><span>for</span><select aria-label="How long the approval holds" value=${level} onChange=${(event) => setLevel(event.currentTarget.value)}>
          ${LEVELS.map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select></label>
        <span class="grow"></span>
        <${Button} kind="danger" icon="cross" busy=${busy === "deny"} disabled=${busy !== null} onClick=${() => answer("deny")}>Deny<//>
      </div>
    </div>
  </div>`;
}

/** A call whose approval was answered, until the run shows it. */
export function DecidedCard({ approval, decision }) {
  const state = decision === "deny" ? "denied" : "running";
  const text = approval.edited_arguments ?? approval.arguments;
  return html`<${Card} name=${approval.tool} state=${state} summary=${oneLine(text)}><${Section} title="Arguments" text=${text} /><//>`;
}

/** An approval request that ended the response: this page continues the response with the answer. */
export function RequestCard({ item, onAnswer }) {
  const [error, setError] = useState(null);
  if (item.decision) return html`<${DecidedCard} approval=${{ tool: item.name, arguments: item.arguments }} decision=${item.decision} />`;
  if (may("tools") && item.approval) return html`<${ApprovalCard} approval=${item.approval} onAnswer=${onAnswer} />`;
  const answer = (decision) => Promise.resolve(onAnswer(decision)).catch(setError);
  return html`<div class="tool-card waiting approval" role="group" aria-label=${item.name}>
    <div class="tool-head"><${Icon} name="approvals" /><span class="tool-name">${item.name}</span><${Badge} kind="warn">waiting for approval<//></div>
    <div class="tool-body"><${Section} title="Arguments" text=${item.arguments} /><${ErrorNote} error=${error} />
      <div class="row answer"><${Button} kind="primary" icon="check" onClick=${() => answer("approve")}>Approve<//><span class="grow"></span><${Button} kind="danger" icon="cross" onClick=${() => answer("deny")}>Deny<//></div></div>
  </div>`;
}
