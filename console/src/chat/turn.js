// One turn of the log: the question, and the answer as it grows.
import { useEffect, useRef, useState } from "preact/hooks";
import { answerText, blocks, isRunning, reasoningOf, textOf } from "../answer.js";
import { get } from "../api.js";
import { pending } from "../approvals.js";
import { sameJson } from "../json.js";
import { isEmbeddedImage } from "../markdown.js";
import { href, may } from "../state.js";
import { Button, Copy, duration, ErrorNote, html, Icon, money, number, Spinner, useInterval } from "../ui.js";
import { ApprovalCard, DecidedCard, RequestCard, ToolCard } from "./cards.js";

/** The list of what waits is live, but has the first hundred only, and not those that another run asked about. */
const LOOK_EVERY = 4000;

export function TurnView({ turn, conversation, onAskAgain }) {
  return html`<div class="turn"><${Question} turn=${turn} onAskAgain=${onAskAgain} /><${Answer} turn=${turn} conversation=${conversation} onAskAgain=${onAskAgain} /></div>`;
}

function Question({ turn, onAskAgain }) {
  const [editing, setEditing] = useState(false);
  if (editing) return html`<${EditQuestion} turn=${turn} onCancel=${() => setEditing(false)} onAskAgain=${onAskAgain} />`;
  return html`<article class="message user" aria-label="You">
    ${turn.images.length ? html`<div class="images">${turn.images.map((url, at) => html`<img src=${url} alt=${`Attached image ${at + 1}`} />`)}</div>` : null}
    ${turn.text ? html`<div class="bubble" dir="auto">${turn.text}</div>` : null}
    <div class="message-foot"><${Button} kind="ghost" icon="edit" label="Edit message" onClick=${() => setEditing(true)} /><${Copy} text=${turn.text} label="Copy message" /></div>
  </article>`;
}

function EditQuestion({ turn, onCancel, onAskAgain }) {
  const [text, setText] = useState(turn.text);
  const field = useRef(null);
  useEffect(() => {
    field.current.focus();
    field.current.setSelectionRange(text.length, text.length);
  }, []);
  const submit = () => text.trim() && onAskAgain(turn, text);
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), submit());
    if (event.key === "Escape") onCancel();
  };
  return html`<article class="message user editing" aria-label="You">
    <textarea ref=${field} aria-label="Edited text" rows=${Math.min(12, text.split("\n").length + 1)} value=${text} onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${onKeyDown}></textarea>
    <div class="row"><span class="hint grow">What follows this message is replaced.</span><${Button} onClick=${onCancel}>Cancel<//><${Button} kind="primary" onClick=${submit}>Ask again<//></div>
  </article>`;
}

// An answer is changed in place, and a component with the same properties is not rendered again: `changes` differs.
function Answer({ turn, conversation, onAskAgain }) {
  const changes = turn.changes.value;
  const { answer } = turn;
  const running = isRunning(answer);
  return html`<article class="message assistant" aria-label=${answer.model} aria-busy=${running ? "true" : null}>
    <div class="by">${answer.model}</div>
    ${answer.items.map((item) => html`<${Item} key=${item.id} item=${item} changes=${changes} running=${running} turn=${turn} conversation=${conversation} />`)}
    ${running && turn.request.background && turn.request.tool_execution && may("tools") ? html`<${RunApprovals} turn=${turn} changes=${changes} />` : null}
    <${Waiting} turn=${turn} changes=${changes} running=${running} />
    ${answer.status === "cancelled" ? html`<p class="soft stopped">Stopped.</p>` : null}
    ${answer.error ? html`<${ErrorNote} error=${answer.error} onRetry=${answer.status === "failed" ? () => onAskAgain(turn, turn.text) : null} />` : null}
    ${answer.warnings?.map((warning) => html`<p class="note warn"><${Icon} name="warning" /><span>${warning}</span></p>`)}
    ${running ? null : html`<${AnswerFoot} turn=${turn} changes=${changes} onAskAgain=${onAskAgain} />`}
  </article>`;
}

function Item({ item, changes, running, turn, conversation }) {
  switch (item.type) {
    case "message": {
      const text = textOf(item);
      const read = blocks(item.id, text);
      if (read.text.length < text.length) turn.touch();
      return text ? html`<div class="markdown">${read.render()}</div>` : null;
    }
    case "reasoning":
      return html`<${Reasoning} item=${item} changes=${changes} running=${running && item === turn.answer.items.at(-1)} turn=${turn} />`;
    case "mcp_call":
      return item.status === "incomplete" && !item.arguments ? null : html`<${ToolCard} item=${item} changes=${changes} running=${running} />`;
    case "mcp_approval_request":
      if (turn.answer.items.some((one) => one.approval_request_id === item.id)) return null; // the call itself is shown
      return html`<${RequestCard} item=${item} changes=${changes} onAnswer=${(decision) => conversation.answerRequest(turn, item, decision)} />`;
    case "image_generation_call": {
      const url = `data:image/${item.output_format ?? "png"};base64,${item.result ?? ""}`;
      return item.result && isEmbeddedImage(url) ? html`<img class="tool-image" src=${url} alt="Generated image" />` : null;
    }
    case "function_call":
    case "custom_tool_call":
      return html`<${ToolCard} item=${{ ...item, arguments: item.arguments ?? item.input, argumentsDone: true }} running=${running} />`;
    default:
      return null;
  }
}

function Reasoning({ item, running, turn }) {
  const [open, setOpen] = useState(false);
  const text = reasoningOf(item);
  if (!text && !running) return null;
  const read = open ? blocks(`${item.id}/reasoning`, text) : null;
  if (read && read.text.length < text.length) turn.touch();
  return html`<div class="reasoning"><button type="button" class="fold" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}><${Icon} name="chevron" />${running ? "Thinking" : "Thought"}${running ? html`<${Spinner} label="Thinking" />` : null}</button>
    ${open ? html`<div class="markdown">${read.render()}</div>` : null}</div>`;
}

/** What the answer waits for, while nothing of it moves. */
function Waiting({ turn, running }) {
  if (!running) return null;
  const { answer } = turn;
  const last = answer.items.at(-1);
  const writing = last?.type === "message" && textOf(last);
  const text = turn.reconnecting.value ? "Reconnecting" : answer.status === "sending" ? "Sending" : answer.status === "queued" ? "Waiting for its turn" : writing ? "" : "Working";
  return html`<div class="answering" role="status"><span class="dots" aria-hidden="true"><i></i><i></i><i></i></span>${text ? html`<span class=${turn.reconnecting.value ? "" : "hidden"}>${text}</span>` : null}</div>`;
}

/** The approvals that a durable run waits for: its stream does not show them, so they are looked for. */
function RunApprovals({ turn }) {
  const [asked, setAsked] = useState([]);
  const [decided, setDecided] = useState([]);
  const look = async () => {
    const { id } = turn.answer;
    if (!id) return;
    const waiting = await waitingApprovals(id).catch(() => null);
    if (waiting && waiting.map((one) => one.id).join() !== asked.map((one) => one.id).join()) setAsked(waiting);
  };
  useInterval(look, LOOK_EVERY);
  useEffect(() => {
    look();
  }, [pending.value, turn.answer.id]);
  const onAnswer = (approval) => (decision, answered) => {
    const known = new Set(turn.answer.items.map((item) => item.id));
    setAsked((before) => before.filter((one) => one !== approval));
    if (decision) setDecided((before) => [...before, { approval: answered ?? approval, decision, known }]);
  };
  // The stream shows a call when it starts, without the id of its approval: name and arguments tell.
  const isShown = ({ approval, known }) => turn.answer.items.some((item) => item.type === "mcp_call" && !known.has(item.id) && item.name === approval.tool && sameJson(item.arguments, approval.edited_arguments ?? approval.arguments));
  const done = new Set(decided.map(({ approval }) => approval.id));
  return html`${asked.filter((one) => !done.has(one.id)).map((one) => html`<${ApprovalCard} key=${one.id} approval=${one} onAnswer=${onAnswer(one)} />`)}
    ${decided.filter((one) => !isShown(one)).map(({ approval, decision }) => html`<${DecidedCard} key=${approval.id} approval=${approval} decision=${decision} />`)}`;
}

/** The approvals that a run waits for: its own, or those of another run that made the same call before. */
async function waitingApprovals(id) {
  const own = await get("/v1/approvals", { state: "pending", run: id, limit: 100, order: "asc" });
  if (own.data.length) return own.data;
  const run = await get(`/v1/runs/${id}`);
  const shared = run.state === "waiting" ? run.timeline.filter((one) => one.outcome === "waiting" && one.approval) : [];
  const found = await Promise.all(shared.map((one) => get(`/v1/approvals/${one.approval}`)));
  return found.filter((one) => one.state === "pending");
}

function AnswerFoot({ turn, onAskAgain }) {
  const { answer } = turn;
  const { usage } = answer;
  const parts = [];
  if (usage) parts.push(`${number(usage.input_tokens)} in`, `${number(usage.output_tokens)} out`);
  if (answer.endedAt) parts.push(duration(answer.endedAt - answer.sentAt));
  if (answer.cost) parts.push(money(answer.cost));
  const title = usage
    ? `${number(usage.input_tokens)} tokens read${usage.input_tokens_details?.cached_tokens ? `, ${number(usage.input_tokens_details.cached_tokens)} of them cached` : ""}; ${number(usage.output_tokens)} tokens written` +
      (answer.firstAt ? `; first after ${duration(answer.firstAt - answer.sentAt)}` : "")
    : null;
  return html`<div class="message-foot"><${Copy} text=${() => answerText(answer)} label="Copy answer" />
    <${Button} kind="ghost" icon="refresh" label="Answer again" onClick=${() => onAskAgain(turn, turn.text)} />
    ${turn.request.background && answer.id ? html`<a class="button ghost bare" href=${href("runs", answer.id)} aria-label="Timeline" title="Timeline"><${Icon} name="runs" /></a>` : null}
    <span class="stats" title=${title}>${parts.join(" · ")}</span></div>`;
}
