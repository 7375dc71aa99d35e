// Keys: who may use this server, for what, and how much of it. The secret of a key is shown once, when it is made.
import { useState } from "preact/hooks";
import { del, get, post } from "../api.js";
import { models } from "../state.js";
import { Badge, Button, Copy, Dialog, Empty, ErrorNote, Field, Icon, PageHead, Spinner, Time, html, money, notify, number, useLoad } from "../ui.js";
import { changeQuery, Filter, SearchField, State } from "./parts.js";

const SCOPES = [
  ["chat", "Models: all client APIs, its own usage, runs and requests"],
  ["tools", "The list of server tools, approvals of its own calls, MCP"],
  ["admin", "Keys, metrics, registering and accepting tools; with chat and tools, those of all keys"],
];
const PERIODS = [
  ["day", "a day"],
  ["month", "a month"],
  ["total", "in total"],
];
const GRACES = [
  [0, "At once"],
  [3600, "In an hour"],
  [86_400, "In a day"],
  [7 * 86_400, "In seven days"],
];
const LIFETIMES = [
  ["", "Never"],
  ["7", "In 7 days"],
  ["30", "In 30 days"],
  ["90", "In 90 days"],
  ["365", "In a year"],
];

export function Keys({ query }) {
  const { data, error, loading, reload } = useLoad((signal) => get("/v1/keys", {}, { signal }));
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const keys = data?.data ?? [];
  const stateOf = (key) => key.state ?? "configured";
  const found = keys.filter((key) => (!query.q || `${key.name} ${key.owner ?? ""}`.toLowerCase().includes(query.q.toLowerCase())) && (query.state ? stateOf(key) === query.state : stateOf(key) !== "revoked"));
  const done = (made) => {
    reload();
    setDialog(made?.key ? { kind: "secret", key: made } : null);
  };
  const hidden = query.state ? 0 : keys.filter((key) => stateOf(key) === "revoked").length;
  return html`<${PageHead} title="Keys" actions=${html`<${Button} kind="primary" icon="plus" onClick=${() => setDialog({ kind: "create" })}>New key<//>`}>
      Who may use this server, for what, and how much of it.
    <//>
    <${ErrorNote} error=${error} onRetry=${reload} />
    ${loading && !data ? html`<${Spinner} label="Loading keys" />` : null}
    ${data && !keys.length
      ? html`<${Empty} icon="keys" title="No keys">
          <p>Programs on this machine use the server without a key. To let others in, make the first key with <code>toolgate keys new admin</code> and put it into the configuration with the scope <code>admin</code>; it can make all others here.</p>
        <//>`
      : null}
    ${keys.length
      ? html`<div class="filters" role="search" aria-label="Filter keys">
          <${SearchField} label="Search name or owner" value=${query.q} onChange=${(q) => changeQuery({ q })} />
          <${Filter} label="State" value=${query.state} choices=${["active", "expired", "revoked", "configured"]} all="In use" onChange=${(state) => changeQuery({ state })} />
          ${hidden ? html`<span class="soft">${hidden} revoked not shown</span>` : null}
        </div>
        <ul class="keys" aria-label="Keys">${found.map((key) => html`<${KeyCard} key=${key.id} one=${key} state=${stateOf(key)} onOpen=${(kind) => setDialog({ kind, key })} />`)}</ul>
        ${found.length ? null : html`<${Empty} icon="search" title="No key matches">Change the search or the state.<//>`}`
      : null}
    ${dialog?.kind === "create" ? html`<${KeyForm} onClose=${close} onDone=${done} />` : null}
    ${dialog?.kind === "change" ? html`<${KeyForm} before=${dialog.key} onClose=${close} onDone=${done} />` : null}
    ${dialog?.kind === "rotate" ? html`<${Rotate} one=${dialog.key} onClose=${close} onDone=${done} />` : null}
    ${dialog?.kind === "revoke" ? html`<${Revoke} one=${dialog.key} onClose=${close} onDone=${done} />` : null}
    ${dialog?.kind === "secret" ? html`<${Secret} one=${dialog.key} onClose=${close} />` : null}`;
}

function KeyCard({ one, state, onOpen }) {
  const editable = one.source === "database" && state !== "revoked";
  return html`<li class="card key" aria-label=${`Key ${one.name}`}>
    <div class="head"><h2 class="mono">${one.name}</h2><${State} state=${state === "configured" ? "active" : state} />
      ${one.source === "configuration" ? html`<${Badge} title="It is changed in the configuration file">configuration<//>` : null}
      <span class="grow"></span>
      ${editable
        ? html`<div class="actions"><${Button} kind="ghost" icon="edit" onClick=${() => onOpen("change")} label=${`Change ${one.name}`}>Change<//>
            <${Button} kind="ghost" icon="refresh" onClick=${() => onOpen("rotate")} label=${`Rotate ${one.name}`}>Rotate<//>
            <${Button} kind="ghost" icon="trash" onClick=${() => onOpen("revoke")} label=${`Revoke ${one.name}`}>Revoke<//></div>`
        : null}
    </div>
    <p class="badges">${one.scopes.map((scope) => html`<${Badge} kind=${scope === "admin" ? "warn" : "accent"}>${scope}<//>`)}
      ${one.models?.length ? one.models.map((model) => html`<${Badge} title="It may use these models only">${model}<//>`) : html`<span class="soft">all models</span>`}</p>
    <p class="soft facts-line">${limitsOf(one).map((text) => html`<span>${text}</span>`)}
      ${one.owner ? html`<span>${one.owner}</span>` : null}
      ${one.shown ? html`<span class="mono">${one.shown}</span>` : null}
      ${one.last_used_at ? html`<span>used <${Time} at=${one.last_used_at} /></span>` : one.source === "database" ? html`<span>never used</span>` : null}
      ${one.expires_at && state !== "revoked" ? html`<span>${state === "expired" ? "expired" : "expires"} <${Time} at=${one.expires_at} /></span>` : null}
      ${one.revoked_at ? html`<span>revoked <${Time} at=${one.revoked_at} /></span>` : null}
      ${one.former_expires_at ? html`<span>former secret valid, ends <${Time} at=${one.former_expires_at} /></span>` : null}
    </p>
    ${one.budget ? html`<${Budget} budget=${one.budget} spent=${one.spent} />` : null}
  </li>`;
}

function limitsOf(one) {
  const said = [];
  if (one.requests_per_minute) said.push(`${number(one.requests_per_minute)} requests/min`);
  if (one.tokens_per_minute) said.push(`${number(one.tokens_per_minute)} tokens/min`);
  if (one.concurrency) said.push(`${number(one.concurrency)} at a time`);
  return said.length ? said : ["no rate limits"];
}

function Budget({ budget, spent }) {
  const used = spent?.[budget.period] ?? 0;
  const period = Object.fromEntries(PERIODS)[budget.period];
  return html`<p class="budget"><meter min="0" max=${budget.amount} high=${budget.amount * 0.8} optimum="0" value=${Math.min(used, budget.amount)} aria-label="Budget used"></meter>
    <span>${money(used)} of ${money(budget.amount)} ${period}</span></p>`;
}

// ---- dialogs

const lines = (text) => text.split(/[\n,]/).map((one) => one.trim()).filter(Boolean);

function KeyForm({ before = null, onClose, onDone }) {
  const [form, setForm] = useState({
    name: "",
    owner: before?.owner ?? "",
    scopes: before?.scopes ?? ["chat"],
    models: (before?.models ?? []).join(", "),
    tools: (before?.tools ?? []).join(", "),
    blocked_tools: (before?.blocked_tools ?? []).join(", "),
    requests_per_minute: before?.requests_per_minute || "",
    tokens_per_minute: before?.tokens_per_minute || "",
    concurrency: before?.concurrency || "",
    amount: before?.budget?.amount ?? "",
    period: before?.budget?.period ?? "month",
    lifetime: before ? "keep" : "",
  });
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const set = (name) => (event) => setForm({ ...form, [name]: event.currentTarget.value });
  const toggle = (scope) => () => setForm({ ...form, scopes: form.scopes.includes(scope) ? form.scopes.filter((one) => one !== scope) : [...form.scopes, scope] });
  const wrong = (name) => (error?.param?.split("[")[0] === name ? error.message : null);
  const shared = error && !["name", "owner", "scopes", "models", "tools", "blocked_tools", "requests_per_minute", "tokens_per_minute", "concurrency", "budget", "expires_at"].includes(error.param?.split(/[.[]/)[0]);

  const submit = async (event) => {
    event.preventDefault();
    const body = {
      owner: form.owner,
      scopes: SCOPES.map(([scope]) => scope).filter((scope) => form.scopes.includes(scope)),
      models: lines(form.models),
      tools: lines(form.tools),
      blocked_tools: lines(form.blocked_tools),
      budget: form.amount === "" ? null : { amount: Number(form.amount), period: form.period },
    };
    for (const name of ["requests_per_minute", "tokens_per_minute", "concurrency"]) body[name] = Number(form[name] || 0);
    if (form.lifetime !== "keep") body.expires_at = form.lifetime ? Math.ceil(Date.now() / 1000) + Number(form.lifetime) * 86_400 : null;
    if (!before) {
      body.name = form.name.trim();
      if (body.expires_at === null) delete body.expires_at;
    }
    setBusy(true);
    setError(null);
    try {
      const made = await post(before ? `/v1/keys/${before.id}` : "/v1/keys", body);
      if (before) notify(`${before.name} is changed.`);
      onDone(made);
    } catch (refusal) {
      setError(refusal);
      setBusy(false);
    }
  };
  const lifetimes = before ? [["keep", before.expires_at ? "As it is" : "Never (as it is)"], ...LIFETIMES.filter(([days]) => days || before.expires_at)] : LIFETIMES;
  const actions = html`<${Button} onClick=${onClose}>Back<//><${Button} kind="primary" type="submit" form="key-form" busy=${busy}>${before ? "Save" : "Create key"}<//>`;
  return html`<${Dialog} title=${before ? `Change ${before.name}` : "New key"} onClose=${onClose} actions=${actions}>
    ${shared ? html`<${ErrorNote} error=${error} />` : null}
    <form id="key-form" class="stack" onSubmit=${submit}>
      ${before ? null : html`<${Field} label="Name" hint="Records, spending and limits belong to this name. It cannot be changed or used again." error=${wrong("name")}><input type="text" value=${form.name} onInput=${set("name")} maxlength="64" autocomplete="off" spellcheck="false" /><//>`}
      <${Field} label="Owner (optional)" hint="A note for people: a team, a person, a program." error=${wrong("owner")}><input type="text" value=${form.owner} onInput=${set("owner")} maxlength="256" autocomplete="off" /><//>
      <fieldset class="scopes"><legend>May do</legend>${SCOPES.map(
        ([scope, says]) => html`<label key=${scope} class="check"><input type="checkbox" checked=${form.scopes.includes(scope)} onChange=${toggle(scope)} aria-label=${scope} /><span><b>${scope}</b> <span class="soft">${says}</span></span></label>`,
      )}${wrong("scopes") ? html`<span class="wrong" role="alert">${wrong("scopes")}</span>` : null}</fieldset>
      <${Field} label="Models" hint="Names or patterns such as gpt-*, separated by commas. Empty means all." error=${wrong("models")}><input type="text" value=${form.models} onInput=${set("models")} list="known-models" autocomplete="off" spellcheck="false" /><//>
      <datalist id="known-models">${models.value.map((one) => html`<option key=${one.id} value=${one.id} />`)}</datalist>
      <div class="columns">
        <${Field} label="Requests a minute" error=${wrong("requests_per_minute")}><input type="number" min="0" placeholder="no limit" value=${form.requests_per_minute} onInput=${set("requests_per_minute")} /><//>
        <${Field} label="Tokens a minute" error=${wrong("tokens_per_minute")}><input type="number" min="0" placeholder="no limit" value=${form.tokens_per_minute} onInput=${set("tokens_per_minute")} /><//>
        <${Field} label="At the same time" error=${wrong("concurrency")}><input type="number" min="0" placeholder="no limit" value=${form.concurrency} onInput=${set("concurrency")} /><//>
      </div>
      <div class="columns two">
        <${Field} label="Budget in $" error=${wrong("budget") ?? wrong("budget.amount")}><input type="number" min="0" step="any" placeholder="no limit" value=${form.amount} onInput=${set("amount")} /><//>
        <${Field} label="Budget for"><select value=${form.period} onChange=${set("period")}>${PERIODS.map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}</select><//>
      </div>
      <${Field} label="Expires" error=${wrong("expires_at")}><select value=${form.lifetime} onChange=${set("lifetime")}>${lifetimes.map(([days, text]) => html`<option key=${days} value=${days}>${text}</option>`)}</select><//>
      <details><summary>Server tools</summary><div class="stack">
        <${Field} label="Allowed tools" hint="Names or patterns. Empty means all." error=${wrong("tools")}><input type="text" value=${form.tools} onInput=${set("tools")} autocomplete="off" spellcheck="false" /><//>
        <${Field} label="Blocked tools" hint="Names or patterns. They win over allowed ones." error=${wrong("blocked_tools")}><input type="text" value=${form.blocked_tools} onInput=${set("blocked_tools")} autocomplete="off" spellcheck="false" /><//>
      </div></details>
    </form>
  <//>`;
}

function Secret({ one, onClose }) {
  return html`<${Dialog} title=${`The key of ${one.name}`} onClose=${onClose} actions=${html`<${Button} kind="primary" onClick=${onClose}>I have saved it<//>`}>
    <div class="note warn" role="note"><${Icon} name="warning" /><p>Copy it now: the server keeps only its digest, and cannot show it again.</p></div>
    <div class="secret"><input type="text" readonly aria-label="Secret" value=${one.key} onFocus=${(event) => event.currentTarget.select()} /><${Copy} text=${one.key} label="Copy secret">Copy<//></div>
    ${one.former_expires_at ? html`<p class="soft">The former secret stays valid, and ends <${Time} at=${one.former_expires_at} />.</p>` : null}
  <//>`;
}

function Rotate({ one, onClose, onDone }) {
  const [grace, setGrace] = useState(3600);
  const { busy, error, run } = useAction(() => post(`/v1/keys/${one.id}/rotate`, grace ? { grace_seconds: grace } : {}), onDone);
  return html`<${Dialog} title=${`Rotate ${one.name}`} onClose=${onClose} actions=${html`<${Button} onClick=${onClose}>Back<//><${Button} kind="primary" busy=${busy} onClick=${run}>Make a new secret<//>`}>
    <${ErrorNote} error=${error} />
    <p>The key keeps its name, rights and records, and gets a new secret.</p>
    <${Field} label="The former secret ends"><select value=${grace} onChange=${(event) => setGrace(Number(event.currentTarget.value))}>${GRACES.map(([seconds, text]) => html`<option key=${seconds} value=${seconds}>${text}</option>`)}</select><//>
  <//>`;
}

function Revoke({ one, onClose, onDone }) {
  const { busy, error, run } = useAction(() => del(`/v1/keys/${one.id}`), () => {
    notify(`${one.name} is revoked.`);
    onDone();
  });
  return html`<${Dialog} title=${`Revoke ${one.name}?`} onClose=${onClose} actions=${html`<${Button} onClick=${onClose}>Keep it<//><${Button} kind="danger" busy=${busy} onClick=${run}>Revoke the key<//>`}>
    <${ErrorNote} error=${error} />
    <p>Clients with this key are refused from now on, and their open answers and runs end. This cannot be undone, and the name cannot be used again.</p>
  <//>`;
}

/** Run something once at a time, and keep its refusal. */
function useAction(work, onDone) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async () => {
    setState({ busy: true, error: null });
    try {
      const made = await work();
      setState({ busy: false, error: null });
      onDone(made);
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return { ...state, run };
}
