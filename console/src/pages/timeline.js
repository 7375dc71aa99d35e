// The drawing of a run: a row for each step and each call, a bar from its start to its end, so that what ran side by side
// stands side by side. Each row opens to what was asked and answered.
import { useState } from "preact/hooks";
import { pretty } from "../json.js";
import { href } from "../state.js";
import { Badge, Copy, Icon, duration, html, number } from "../ui.js";
import { State } from "./parts.js";

const TICKS = 5;
const OPEN = ["running", "waiting"];
/** Outcomes of what a server was doing when it died: it has no end. */
const cutOff = (item) => !item.ended && !OPEN.includes(item.outcome);

/** The steps and the calls, each with its place; calls with the numbers that they have in the drawing ("2.1" is the first
 * call of step 2). After a crash a step or a call can be there twice; `last` marks the last attempt at a call. */
export function numbered(timeline) {
  const items = timeline.map((one, place) => ({ ...one, place }));
  const steps = items.filter((one) => one.type === "step");
  const counts = new Map();
  const last = new Map(items.filter((one) => one.type === "call").map((one) => [one.call, one.place]));
  const calls = items.filter((one) => one.type === "call").map((one) => {
    const count = (counts.get(one.step) ?? 0) + 1;
    counts.set(one.step, count);
    return { ...one, number: `${one.step}.${count}`, last: last.get(one.call) === one.place };
  });
  return { steps, calls };
}

/** When a step or the tool of a call began to run; before that, a call was checked and waited for its approval. */
const ranFrom = (item) => item.tool_started ?? item.started;

export function Timeline({ run }) {
  const { steps, calls } = numbered(run.timeline ?? []);
  const lastOf = new Map(steps.map((step) => [step.step, step.place]));  // of a step that was made again, the one that called
  const callsOf = new Map(steps.map((step) => [step.place, []]));
  for (const call of calls) callsOf.get(lastOf.get(call.step))?.push(call);
  const now = Date.now() / 1000;
  const starts = [...steps, ...calls].map((one) => one.started).filter(Boolean);
  if (!starts.length) return html`<section class="timeline" aria-label="Timeline"><p class="soft">Nothing has been recorded yet.</p></section>`;
  const from = Math.min(...starts);
  const ended = Boolean(run.ended);
  const endOf = (one) => one.ended ?? (OPEN.includes(one.outcome) ? (ended ? run.ended : now) : one.started);
  const to = Math.max(from + 0.001, ...[...steps, ...calls].map(endOf));
  const scale = { from, span: to - from, endOf };
  return html`<section class="timeline" aria-label="Timeline">
    <${Axis} span=${scale.span} />
    <ol>${steps.map((step) => html`<li key=${step.place} class="step-group">
      <${Offered} step=${step} calls=${callsOf.get(step.place)} />
      <${Row} item=${step} name="Step" number=${step.step} label=${step.model ?? run.model} scale=${scale}><${StepDetail} step=${step} /><//>
      <ol aria-label=${`Calls of step ${step.step}`}>${callsOf.get(step.place).map(
        (call) => html`<li key=${call.place}><${Row} item=${call} name="Call" number=${call.number} label=${call.tool} scale=${scale}><${CallDetail} call=${call} /><//></li>`,
      )}</ol>
    </li>`)}</ol>
  </section>`;
}

function Axis({ span }) {
  const marks = Array.from({ length: TICKS }, (_, index) => (span * 1000 * index) / (TICKS - 1));
  return html`<div class="axis" aria-hidden="true">${marks.map((milliseconds, index) => html`<span key=${index} style=${{ left: `${(index / (TICKS - 1)) * 100}%` }}>${index ? duration(milliseconds) : "0"}</span>`)}</div>`;
}

/** The tools that the model could call in this step; those that it called are marked. */
function Offered({ step, calls }) {
  const offered = step.offered ?? [];
  const [all, setAll] = useState(false);
  if (!offered.length) return null;
  const called = new Set(calls.map((call) => call.tool));
  const order = [...offered.filter((name) => called.has(name)), ...offered.filter((name) => !called.has(name))];
  const shown = all ? order : order.slice(0, 8);
  return html`<p class="offered"><span class="soft">offered</span>${shown.map((name) => html`<${Badge} key=${name} kind=${called.has(name) ? "accent" : ""}>${name}<//>`)}
    ${order.length > shown.length ? html`<button type="button" class="link" onClick=${() => setAll(true)}>${order.length - shown.length} more</button>` : null}</p>`;
}

function Row({ item, name, number, label, scale, children }) {
  const [open, setOpen] = useState(false);
  const end = scale.endOf(item);
  const left = Math.max(0, ((item.started - scale.from) / scale.span) * 100);
  const width = Math.max(0, Math.min(100 - left, ((end - item.started) / scale.span) * 100));
  const waited = item.approval ? Math.max(0, Math.min(width, ((ranFrom(item) - item.started) / scale.span) * 100)) : 0;
  const took = item.copied ? "copied" : cutOff(item) ? "cut off" : duration(Math.max(0, (end - ranFrom(item)) * 1000));
  const outside = left + width < 80 ? { left: `${left + width}%` } : { right: `${100 - left}%` };
  return html`<div class=${`bar-row ${item.type}`}>
    <button type="button" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <span class="label"><span class="hidden">${name} </span><span class="number">${number}</span><span class="clip">${label}</span><span class="hidden"> ${item.outcome.replaceAll("_", " ")} </span></span>
      <span class="track"><span class=${`bar ${item.copied ? "copied" : cutOff(item) ? "unknown" : item.outcome}`} style=${{ left: `${left + waited}%`, width: `${width - waited}%` }}></span>${waited ? html`<span class="bar waiting" style=${{ left: `${left}%`, width: `${waited}%` }}></span>` : null}<span class=${`took ${outside.left ? "" : "before"}`} style=${outside}>${took}</span></span>
      <${Icon} name="chevron" />
    </button>
    ${open ? html`<div class="detail">${children}</div>` : null}
  </div>`;
}

function StepDetail({ step }) {
  const tokens = step.input_tokens || step.output_tokens ? `${number(step.input_tokens)} tokens in, ${number(step.output_tokens)} out` : "";
  return html`<p class="row"><${State} state=${step.outcome} /><span class="soft">${tokens}</span></p>
    ${step.copied ? html`<p class="hint">Copied from the run that was forked; it was not run again.</p>` : null}
    ${step.text ? html`<${Text} label="Answer" text=${step.text} length=${step.text_length} />` : null}`;
}

function CallDetail({ call }) {
  const kept = call.arguments !== null && call.arguments !== undefined;
  return html`<p class="row"><${State} state=${call.outcome} /><a href=${href("tools", call.tool)}>${call.tool}</a><span class="soft">${call.source}</span>
      ${call.approval ? html`<a href=${href("approvals", call.approval)}>its approval</a>` : null}
      ${call.approval && (call.tool_started ?? call.ended) ? html`<span class="soft">waited ${duration(((call.tool_started ?? call.ended) - call.started) * 1000)}</span>` : null}</p>
    ${kept ? html`<${Text} label="Arguments" text=${pretty(call.arguments)} length=${call.arguments_length} />` : null}
    ${call.result !== null && call.result !== undefined ? html`<${Text} label="Result" text=${pretty(call.result)} length=${call.result_length} />` : null}
    ${call.copied ? html`<p class="hint">Copied from the run that was forked; it was not run again.</p>` : null}
    ${kept ? null : html`<p class="hint">Its arguments and result are not stored, or belong to another key.</p>`}`;
}

function Text({ label, text, length }) {
  return html`<div class="result"><div class="row"><span class="soft grow">${label}</span><${Copy} text=${text} label=${`Copy ${label.toLowerCase()}`} /></div><pre class="block" tabindex="0">${text}</pre>
    ${length ? html`<p class="hint">The beginning of ${number(length)} characters.</p>` : null}</div>`;
}
