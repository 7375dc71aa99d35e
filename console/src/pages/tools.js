// Tools: what the server offers to models, where it comes from, what it takes, and a form that runs it through /mcp.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, events, get, post } from "../api.js";
import { answerApproval, pending } from "../approvals.js";
import { Code } from "../code.js";
import { pretty } from "../json.js";
import { isEmbeddedImage } from "../markdown.js";
import { go, href, may } from "../state.js";
import { SchemaFields, SchemaTable, decodeForm, encodeForm } from "../schema.js";
import { Badge, Button, Copy, Empty, ErrorNote, Icon, PageHead, Spinner, duration, html, notify, useInterval, useLoad } from "../ui.js";
import { changeQuery, Facts, Filter, Pane, SearchField } from "./parts.js";

const SHOWN = 300;

export function Tools({ id, query }) {
  const { data, error, loading, reload } = useLoad((signal) => get("/v1/tools", {}, { signal }));
  useInterval(reload, 10_000);
  const tools = data?.data ?? [];
  const found = useMemo(() => tools.filter((tool) => matches(tool, query)), [data, query.q, query.tag, query.source]);
  const tags = [...new Set(tools.flatMap((tool) => tool.tags ?? []))].sort();
  const sources = sourcesOf(data);
  const selected = id && tools.find((tool) => tool.name === id);

  if (!data && loading) return html`<${PageHead} title="Tools" /><${Spinner} label="Loading tools" />`;
  return html`<${PageHead} title="Tools">What this server runs for models, and for MCP clients at <code>/mcp</code>.<//>
    <${ErrorNote} error=${error} onRetry=${reload} />
    ${data?.quarantined?.map((one) => html`<${UnacceptedTool} key=${one.name} changed=${one} onAccept=${reload} />`)}
    ${sources.length ? html`<${Sources} sources=${sources} selected=${query.source} onSelect=${(source) => changeQuery({ source })} />` : null}
    ${!tools.length && data
      ? html`<${Empty} icon="tools" title="No tools">Switch on built-in tools, or name Python files, MCP servers or HTTP services under <code>tools</code> in the configuration.<//>`
      : html`<div class="filters" role="search" aria-label="Filter tools">
          <${SearchField} label="Search tools" value=${query.q} onChange=${(q) => changeQuery({ q })} />
          ${tags.length ? html`<${Filter} label="Tag" value=${query.tag} choices=${tags} onChange=${(tag) => changeQuery({ tag })} />` : null}
          <span class="count" role="status">${found.length === tools.length ? `${tools.length} tools` : `${found.length} of ${tools.length}`}</span>
        </div>
        <div class=${`split ${selected ? "open" : ""}`}>
          <${ToolList} tools=${found} id=${id} query=${query} />
          ${selected ? html`<${ToolDetail} key=${selected.name} tool=${selected} onClose=${() => go("tools", null, query)} />` : null}
          ${id && !selected && data ? html`<${Pane} title=${id} onClose=${() => go("tools", null, query)}><p>There is no such tool, or your key may not use it.</p><//>` : null}
        </div>`}`;
}

function matches(tool, { q = "", tag, source }) {
  if (tag && !tool.tags?.includes(tag)) return false;
  if (source && tool.source !== source) return false;
  const text = `${tool.name} ${tool.displayName ?? ""} ${tool.description ?? ""} ${tool.tags?.join(" ") ?? ""}`.toLowerCase();
  return q.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function sourcesOf(data) {
  if (!data) return [];
  const counts = new Map((data.sources ?? []).map((name) => [name, 0]));
  for (const { source } of data.data) counts.set(source, (counts.get(source) ?? 0) + 1);
  const troubles = data.troubles ?? [];
  for (const { source } of troubles) if (!counts.has(source)) counts.set(source, 0);
  return [...counts]
    .map(([name, count]) => ({ name, count, troubles: troubles.filter((one) => one.source === name) }))
    .filter((one) => one.count || one.troubles.length || one.name !== "api");
}

function Sources({ sources, selected, onSelect }) {
  return html`<section class="sources" aria-label="Sources">
    <ul>${sources.map(({ name, count, troubles }) => {
      const state = troubles.length ? (count ? "partial" : "failed") : count ? "ready" : "empty";
      const says = { partial: "with problems", failed: "not available", ready: "ready", empty: "no tools" }[state];
      return html`<li key=${name}><button type="button" class=${`source ${state}`} aria-pressed=${String(selected === name)} onClick=${() => onSelect(selected === name ? null : name)}>
        <span class="dot" aria-hidden="true"></span><b>${name}</b><span class="soft">${count ? `${count} · ${says}` : says}</span>
      </button></li>`;
    })}</ul>
    ${sources.flatMap(({ troubles }) => troubles).map(
      (one, index) => html`<p key=${index} class="trouble"><${Icon} name="warning" /><span><b>${one.tool ? `${one.source}: ${one.tool}` : one.source}</b> ${one.message}</span></p>`,
    )}
  </section>`;
}

function ToolList({ tools, id, query }) {
  if (!tools.length) return html`<${Empty} icon="search" title="Nothing matches">Try another word, tag or source.<//>`;
  return html`<ul class="cards" aria-label="Tools">${tools.slice(0, SHOWN).map(
    (tool) => html`<li key=${tool.name}><a class="card" href=${href("tools", tool.name, query)} aria-current=${tool.name === id ? "true" : null}>
      <span class="row"><b class="mono">${tool.name}</b><span class="soft source-name">${tool.source}</span></span>
      <span class="summary">${firstSentence(tool.userDescription ?? tool.description)}</span>
      <span class="badges">${hazards(tool).map((one) => html`<${Badge} kind=${one.kind} title=${one.title}>${one.text}<//>`)}${tool.tags?.map((tag) => html`<${Badge}>${tag}<//>`)}</span>
    </a></li>`,
  )}
  ${tools.length > SHOWN ? html`<li class="soft">${tools.length - SHOWN} more: search to see them.</li>` : null}</ul>`;
}

const firstSentence = (text = "") => /^.*?[.!?](?=\s|$)/s.exec(text.trim())?.[0] ?? text.trim().split("\n")[0];

function hazards({ annotations = {} }) {
  const shown = [];
  if (annotations.readOnlyHint) shown.push({ kind: "good", text: "reads only", title: "It changes nothing." });
  else if (annotations.destructiveHint) shown.push({ kind: "warn", text: "may destroy", title: "It may delete or overwrite something." });
  else shown.push({ kind: "", text: "changes", title: "It may change something, but destroys nothing." });
  if (annotations.openWorldHint) shown.push({ kind: "", text: "reaches outside", title: "It talks to the world outside this server." });
  return shown;
}

function ToolDetail({ tool, onClose }) {
  const facts = [
    ["Source", tool.source],
    ["Title", tool.displayName],
    ["Reference", tool.referenceName && `#${tool.referenceName}`],
    ["Offered when", tool.when && html`<code>${tool.when}</code>`],
  ];
  return html`<${Pane} title=${tool.name} label=${`Tool ${tool.name}`} onClose=${onClose} actions=${html`<${Copy} text=${tool.name} label="Copy name" />`}>
    <p class="badges">${hazards(tool).map((one) => html`<${Badge} kind=${one.kind} title=${one.title}>${one.text}<//>`)}${tool.tags?.map((tag) => html`<${Badge}>${tag}<//>`)}</p>
    <p class="description">${tool.description}</p>
    <${Facts} facts=${facts} />
    <h3>Parameters</h3>
    <${SchemaTable} schema=${tool.inputSchema ?? {}} label=${`Parameters of ${tool.name}`} />
    ${tool.outputSchema ? html`<h3>Output</h3><${SchemaTable} schema=${tool.outputSchema} label=${`Output of ${tool.name}`} />` : null}
    <details><summary>JSON Schema</summary><${Code} text=${pretty(tool.inputSchema)} language="json" label="Copy schema" /></details>
    <${TryIt} tool=${tool} />
  <//>`;
}

// ---- trying a tool

function TryIt({ tool }) {
  const schema = tool.inputSchema ?? {};
  const [typed, setTyped] = useState({});
  const [json, setJson] = useState(null);
  const [errors, setErrors] = useState({});
  const [outcome, setOutcome] = useState(null);
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);

  const decode = () => {
    const wrong = {};
    let made;
    if (json === null) made = decodeForm(schema, typed, wrong);
    else {
      try {
        made = JSON.parse(json);
      } catch (error) {
        wrong[""] = `This is not JSON: ${error.message}`;
      }
    }
    setErrors(wrong);
    return Object.keys(wrong).length ? undefined : made;
  };
  const swap = () => {
    setErrors({});
    if (json === null) return setJson(pretty(decodeForm(schema, typed, {}) ?? {}));
    try {
      setTyped(encodeForm(schema, JSON.parse(json)));
      return setJson(null);
    } catch (error) {
      return setErrors({ "": `This is not JSON: ${error.message}` });
    }
  };
  const run = async (event) => {
    event.preventDefault();
    const made = decode();
    if (made === undefined) return;
    const controller = (running.current = new AbortController());
    const started = performance.now();
    setOutcome({ state: "running" });
    try {
      const result = await callTool(tool.name, made, controller.signal, (progress) => setOutcome({ state: "running", progress }));
      setOutcome({ state: result.isError ? "failed" : "done", result, milliseconds: performance.now() - started });
    } catch (error) {
      setOutcome(controller.signal.aborted ? { state: "stopped" } : { state: "refused", error });
    }
    running.current = null;
  };
  const busy = outcome?.state === "running";
  const fields = Object.keys(schema.properties ?? {}).length;
  return html`<section class="try" aria-label="Try it">
    <div class="row"><h3 class="grow">Try it</h3><${Button} kind="ghost" onClick=${swap}>${json === null ? "Edit as JSON" : "Edit as form"}<//></div>
    <p class="soft">It runs as your key, so the same rights and approvals hold.</p>
    <form onSubmit=${run} noValidate>
      ${json === null
        ? fields
          ? html`<${SchemaFields} schema=${schema} typed=${typed} errors=${errors} onType=${(path, text) => setTyped((before) => ({ ...before, [path]: text }))} />`
          : null
        : html`<label class="field"><span class="label">Arguments</span><textarea class="mono" rows="8" spellcheck="false" value=${json} onInput=${(event) => setJson(event.currentTarget.value)}></textarea>
            ${errors[""] ? html`<span class="wrong" role="alert">${errors[""]}</span>` : null}</label>`}
      <div class="row">
        <${Button} kind="primary" type="submit" busy=${busy}>Run tool<//>
        ${busy ? html`<${Button} onClick=${() => running.current?.abort()}>Stop<//>` : null}
      </div>
    </form>
    <div aria-live="polite">${outcome ? html`<${Outcome} tool=${tool.name} outcome=${outcome} />` : null}</div>
  </section>`;
}

/** Call a tool over MCP; raises ApiError for what the protocol refuses. */
async function callTool(name, args, signal, onProgress) {
  const body = { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name, arguments: args, _meta: { progressToken: 1 } } };
  for await (const { data } of events("POST", "/mcp", { body, signal, headers: { accept: "application/json, text/event-stream" } })) {
    if (data.method === "notifications/progress") onProgress(data.params);
    else if (data.error) throw new ApiError(0, data.error.message, { code: data.error.code });
    else if (data.result) return data.result;
  }
  throw new ApiError(0, "The server closed the connection before there was a result.");
}

const STATES = { running: ["info", "Running"], done: ["good", "Done"], failed: ["danger", "Failed"], stopped: ["", "Stopped"] };

function Outcome({ tool, outcome }) {
  const { state, result, error, progress, milliseconds } = outcome;
  if (state === "refused") return html`<${ErrorNote} error=${error} />`;
  const [kind, says] = STATES[state];
  return html`<div class="outcome">
    <p class="row"><${Badge} kind=${kind}>${says}<//>${milliseconds !== undefined ? html`<span class="soft">${duration(milliseconds)}</span>` : null}
      ${progress ? html`<span>${progress.message ?? ""} ${progress.total ? html`<progress value=${progress.progress} max=${progress.total} aria-label="Progress"></progress>` : null}</span>` : null}</p>
    ${state === "running" ? html`<${WaitingApproval} tool=${tool} />` : null}
    ${result?.content?.map((part, index) => html`<${ResultPart} key=${index} part=${part} />`)}
    ${result?.structuredContent ? html`<details><summary>Structured output</summary><${Code} text=${pretty(result.structuredContent)} language="json" label="Copy structured output" /></details>` : null}
  </div>`;
}

/** Text, a picture, a sound or a file of a result. */
export function ResultPart({ part }) {
  if (part.type === "text") return html`<${Code} text=${pretty(part.text)} language=${/^\s*[[{]/.test(part.text) ? "json" : ""} label="Copy result" />`;
  const url = part.type === "image" ? `data:${part.mimeType};base64,${part.data}` : "";
  if (isEmbeddedImage(url)) return html`<img class="result-image" alt="Result of the tool" src=${url} />`;
  return html`<${Code} text=${pretty(part)} language="json" label="Copy result" />`;
}

/** The question that the running call waits for, with buttons that answer it. */
function WaitingApproval({ tool }) {
  const [error, setError] = useState(null);
  const waiting = pending.value?.find((one) => one.tool === tool);
  if (!waiting) return null;
  const answer = (decision) => answerApproval(waiting, { decision }).catch(setError);
  return html`<div class="note" role="group" aria-label="Approval">
    <div class="grow"><p>${waiting.question ?? waiting.title ?? "A person must approve this call."} <a href=${href("approvals")}>All approvals</a></p><${ErrorNote} error=${error} /></div>
    <${Button} kind="primary" onClick=${() => answer("approve")}>Approve<//><${Button} onClick=${() => answer("deny")}>Deny<//>
  </div>`;
}

// ---- changed definitions

function UnacceptedTool({ changed, onAccept }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const { name, source, digest, accepted, offered } = changed;
  const accept = async () => {
    setBusy(true);
    try {
      await post(`/v1/tools/${encodeURIComponent(name)}/accept`, { digest });
      notify(`${name} is offered with its new definition.`, "good");
      onAccept();
    } catch (refusal) {
      setError(refusal);
    }
    setBusy(false);
  };
  return html`<section class="note warn changed" aria-label=${`Changed tool ${name}`}><${Icon} name="warning" />
    <div class="grow">
      <p><b>${name}</b> of ${source} ${accepted ? "has changed its definition" : "is new"} and is not offered until a person accepts it.</p>
      <${Comparison} before=${accepted} after=${offered} />
      <${ErrorNote} error=${error} />
      ${may("admin") ? html`<${Button} kind="primary" busy=${busy} onClick=${accept}>Accept the new definition<//>` : html`<p class="soft">A key with the scope admin can accept it.</p>`}
    </div>
  </section>`;
}

function Comparison({ before, after }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const changed = names.filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  return html`<dl class="comparison">${changed.map(
    (name) => html`<div key=${name}><dt>${name}</dt>
      <dd>${before?.[name] !== undefined ? html`<del class="block">${shown(before[name])}</del>` : null}${after?.[name] !== undefined ? html`<ins class="block">${shown(after[name])}</ins>` : null}</dd></div>`,
  )}</dl>`;
}

const shown = (value) => (typeof value === "string" ? value : pretty(value));
