// Runs: what models did with the server's tools, step by step; a drawing of the time, forking and cancelling.
import { useEffect, useState } from "preact/hooks";
import { events, get, post } from "../api.js";
import { caller, go, href, may, models } from "../state.js";
import { Badge, Button, Copy, Dialog, Empty, ErrorNote, Field, Icon, PageHead, Spinner, Time, compact, duration, html, money, notify, number, useInterval, useLoad } from "../ui.js";
import { changeQuery, clearQuery, Facts, Filter, KeyFilter, RANGE_CHOICES, shortId, sinceOf, State, usePages } from "./parts.js";
import { Timeline, numbered } from "./timeline.js";

const STATES = ["queued", "running", "waiting", "completed", "incomplete", "failed", "cancelled", "parked"];
const ENDED = ["completed", "incomplete", "failed", "cancelled"];

export function Runs({ id, query }) {
  useEffect(() => document.getElementById("main").focus({ preventScroll: true }), [id]);
  return id ? html`<${Run} key=${id} id=${id} />` : html`<${RunList} query=${query} />`;
}

// ---- the list

function RunList({ query }) {
  const { range, key, model, state } = query;
  const list = usePages("/v1/runs", { key, model, state, since: sinceOf(range) });
  useInterval(list.refresh, 3000);
  const rows = list.items ?? [];
  const filtered = [range, key, model, state].some(Boolean);
  return html`<${PageHead} title="Runs">Answers for which this server ran tools, and responses in the background.<//>
    <div class="filters" role="search" aria-label="Filter runs">
      <${Filter} label="State" value=${state} choices=${STATES} onChange=${(next) => changeQuery({ state: next })} />
      <${Filter} label="Model" value=${model} choices=${models.value.map((one) => one.id)} onChange=${(next) => changeQuery({ model: next })} />
      ${may("admin") ? html`<${KeyFilter} value=${key} onChange=${(next) => changeQuery({ key: next })} />` : null}
      <${Filter} label="Time" value=${range} choices=${RANGE_CHOICES} all="Any time" onChange=${(next) => changeQuery({ range: next })} />
      ${filtered ? html`<${Button} kind="ghost" onClick=${() => clearQuery()}>Clear<//>` : null}
    </div>
    <${ErrorNote} error=${list.error} onRetry=${list.reload} />
    ${list.loading && !list.items ? html`<${Spinner} label="Loading runs" />` : null}
    ${list.items && !rows.length
      ? filtered
        ? html`<${Empty} icon="search" title="No run matches">Change or clear the filters.<//>`
        : html`<${Empty} icon="runs" title="No runs yet">Ask a model in the <a href=${href("chat")}>chat</a> with server tools switched on, and watch here what it does.<//>`
      : null}
    ${rows.length ? html`<ul class="runs" aria-label="Runs">${rows.map((run) => html`<${RunCard} key=${run.id} run=${run} />`)}</ul>` : null}
    ${list.more ? html`<p class="more"><${Button} onClick=${list.loadMore}>Show older runs<//></p>` : null}`;
}

function RunCard({ run }) {
  return html`<li><a class="run" href=${href("runs", run.id)}>
    <${State} state=${run.state} />
    <span class="main"><b class="mono">${run.model}</b><span class="soft">${summary(run)}</span>
      ${run.tools?.length ? html`<span class="badges">${run.tools.slice(0, 6).map((tool) => html`<${Badge}>${tool}<//>`)}${run.tools.length > 6 ? html`<${Badge}>+${run.tools.length - 6}<//>` : null}</span>` : null}
      ${run.error ? html`<span class="wrong clip">${run.error}</span>` : null}
      ${run.forked_from ? html`<span class="soft">fork of ${shortId(run.forked_from.run)}</span>` : null}
    </span>
    <span class="side soft">${may("admin") ? html`<span class="clip">${run.key}</span>` : null}<${Time} at=${run.created} /></span>
  </a></li>`;
}

const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

function summary(run) {
  const took = run.started ? ((run.ended ?? Date.now() / 1000) - run.started) * 1000 : null;
  const said = [plural(run.steps ?? 0, "step"), plural(run.calls ?? 0, "call")];
  if (took !== null) said.push(duration(Math.max(0, took)));
  if (run.input_tokens || run.output_tokens) said.push(`${compact((run.input_tokens ?? 0) + (run.output_tokens ?? 0))} tokens`);
  if (run.cost) said.push(money(run.cost));
  return said.join(" · ");
}

/** Why a run cannot be forked. */
function noFork(run) {
  if (run.state === "queued") return "It can be forked as soon as it has started.";
  if (run.key !== caller.value.name) return `Only its own key, ${run.key}, can fork it.`;
  return "It cannot be forked: what it was asked and what it wrote is not stored. Chat Completions, Messages and Ollama store no contents, and neither does a response with store: false. To fork runs of a program, let it use the Responses API.";
}

// ---- one run

/** Follow a run: each event has the whole of it, until it has ended. */
function useRun(id) {
  const [state, setState] = useState({ run: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    const follow = async () => {
      for (let pause = 500; !controller.signal.aborted; pause = Math.min(pause * 2, 10_000)) {
        try {
          for await (const { event, data } of events("GET", `/v1/runs/${encodeURIComponent(id)}?stream=true`, { signal: controller.signal })) {
            if (event === "run") setState({ run: data, error: null });
            else if (event === "end") return;
            pause = 500;
          }
        } catch (error) {
          if (controller.signal.aborted) return;
          setState((before) => ({ ...before, error }));
          if (error.status >= 400 && error.status < 500) return;
        }
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    };
    follow();
    return () => controller.abort();
  }, [id, turn]);
  return { ...state, reload: () => setTurn((before) => before + 1) };
}

function Run({ id }) {
  const { run, error, reload } = useRun(id);
  const [forking, setForking] = useState(false);
  const [busy, setBusy] = useState(false);
  const [, redraw] = useState(0);
  const live = run && !ENDED.includes(run.state);
  useInterval(() => live && redraw((before) => before + 1), 500);
  const back = html`<a class="back" href=${href("runs")}><${Icon} name="chevron" />All runs</a>`;
  if (!run) return html`${back}${error ? html`<${ErrorNote} error=${error} onRetry=${reload} />` : html`<${Spinner} label="Loading the run" />`}`;
  const cancel = async () => {
    setBusy(true);
    await post(`/v1/runs/${encodeURIComponent(id)}/cancel`).catch((refusal) => notify(refusal.message, "danger"));
    setBusy(false);
  };
  const actions = html`
    ${run.can_cancel ? html`<${Button} kind="danger" icon="stop" busy=${busy} onClick=${cancel}>Cancel<//>` : null}
    <${Button} icon="runs" disabled=${!run.can_fork} aria-describedby=${run.can_fork ? null : "no-fork"} onClick=${() => setForking(true)}>Fork<//>
    <${Copy} text=${() => location.href} label="Copy link">Link<//>`;
  return html`${back}
    <${PageHead} title=${run.model} actions=${actions}><${State} state=${run.state} /> ${summary(run)}<//>
    ${run.can_fork ? null : html`<p class="hint no-fork" id="no-fork">${noFork(run)}</p>`}
    <${ErrorNote} error=${error} onRetry=${reload} />
    ${run.error ? html`<div class="note danger" role="note"><${Icon} name="warning" /><p>${run.error}</p></div>` : null}
    ${run.state === "waiting" ? html`<div class="note warn" role="note"><${Icon} name="clock" /><p>It waits for a person. <a href=${href("approvals")}>Answer in Approvals</a></p></div>` : null}
    <${Timeline} run=${run} />
    <h2>About this run</h2>
    <${Facts} facts=${[
      ["Id", html`<span class="mono">${run.id}</span>`],
      ["Key", run.key],
      ["Kind", run.kind],
      ["Started", run.started && html`<${Time} at=${run.started} /> <span class="soft">${new Date(run.started * 1000).toLocaleString()}</span>`],
      ["Tokens", run.input_tokens || run.output_tokens ? `${number(run.input_tokens)} in, ${number(run.output_tokens)} out` : null],
      ["Cost", run.cost ? money(run.cost) : null],
      ["Response", run.response && html`<span class="mono">${run.response}</span>`],
      ["Forked from", run.forked_from && html`<a href=${href("runs", run.forked_from.run)}>${shortId(run.forked_from.run)}</a>${run.forked_from.step ? ` after step ${run.forked_from.step}` : " from the start"}`],
    ]} />
    ${forking ? html`<${Fork} run=${run} onClose=${() => setForking(false)} />` : null}`;
}

// ---- forking

/** The last message of the user in a stored response, which a fork may change. */
async function userMessage(run, signal) {
  if (!run.response) return "";
  const { data } = await get(`/v1/responses/${run.response}/input_items`, { order: "desc", limit: 20 }, { signal });
  const message = data.find((one) => one.type === "message" && one.role === "user");
  return message?.content.filter((part) => part.type === "input_text").map((part) => part.text).join("\n") ?? "";
}

function resultHint({ result, result_length: length }) {
  if (result === null || result === undefined) return "It has no result; the fork needs one.";
  return length ? `The beginning of ${number(length)} characters: what you write here replaces all of them.` : null;
}

function Fork({ run, onClose }) {
  const { calls, steps } = numbered(run.timeline ?? []);
  const copied = steps.filter((step) => step.outcome === "tool_calls" && step.ended);
  const [step, setStep] = useState(copied.at(-1)?.step ?? 0);
  const [model, setModel] = useState(run.model);
  const [results, setResults] = useState({});
  const [message, setMessage] = useState(null);
  const [instructions, setInstructions] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const asked = useLoad((signal) => userMessage(run, signal).catch(() => ""));
  const editable = calls.filter((call) => call.step <= step && call.last);

  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    const body = { step: Number(step) };
    if (model !== run.model) body.model = model;
    const edited = Object.fromEntries(editable.filter((call) => (results[call.call] ?? call.result ?? "") !== (call.result ?? "")).map((call) => [call.call, results[call.call]]));
    if (Object.keys(edited).length) body.results = edited;
    if (message !== null && message !== asked.data) body.message = message;
    if (instructions.trim()) body.instructions = instructions;
    try {
      const made = await post(`/v1/runs/${encodeURIComponent(run.id)}/fork`, body);
      onClose();
      go("runs", made.id);
    } catch (refusal) {
      setError(refusal);
      setBusy(false);
    }
  };
  const actions = html`<${Button} onClick=${onClose}>Back<//><${Button} kind="primary" type="submit" form="fork-form" busy=${busy}>Start the fork<//>`;
  return html`<${Dialog} title="Fork this run" onClose=${onClose} actions=${actions}>
    <p class="soft">A new run that begins where this one was. Steps before that point are copied and not run again; this run stays as it is.</p>
    <${ErrorNote} error=${error} />
    <form id="fork-form" class="stack" onSubmit=${submit}>
      <${Field} label="Continue after"><select value=${step} onChange=${(event) => setStep(Number(event.currentTarget.value))}>
        <option value=${0}>The message (ask again from the start)</option>
        ${copied.map((one) => html`<option key=${one.step} value=${one.step}>Step ${one.step}: ${calls.filter((call) => call.step === one.step && call.last).map((call) => call.tool).join(", ") || "no calls"}</option>`)}
      </select><//>
      <${Field} label="Model"><select value=${model} onChange=${(event) => setModel(event.currentTarget.value)}>
        ${[...new Set([run.model, ...models.value.map((one) => one.id)])].map((name) => html`<option key=${name}>${name}</option>`)}
      </select><//>
      ${editable.map((call) => html`<${Field} key=${call.call} label=${`Result of ${call.number} ${call.tool}`} hint=${resultHint(call)}>
        <textarea class="mono" rows="3" spellcheck="false" value=${results[call.call] ?? call.result ?? ""} onInput=${(event) => setResults({ ...results, [call.call]: event.currentTarget.value })}></textarea><//>`)}
      <${Field} label="Message" hint=${asked.data ? null : "Leave it empty to keep the message as it is."}>
        <textarea rows="3" value=${message ?? asked.data ?? ""} onInput=${(event) => setMessage(event.currentTarget.value)}></textarea><//>
      <details><summary>Other instructions</summary><${Field} label="Instructions" hint="They replace the instructions of the run."><textarea rows="3" value=${instructions} onInput=${(event) => setInstructions(event.currentTarget.value)}></textarea><//></details>
    </form>
  <//>`;
}
