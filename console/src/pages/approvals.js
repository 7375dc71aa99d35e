// The inbox of calls that wait for a person, what was decided before, and the grants that are in force.
import { useState } from "preact/hooks";
import { pending, refreshPending, watchError } from "../approvals.js";
import { get, post } from "../api.js";
import { ApprovalCard } from "../chat/cards.js";
import { Code } from "../code.js";
import { pretty } from "../json.js";
import { may } from "../state.js";
import { Facts } from "./parts.js";
import { Badge, Button, Dialog, Empty, ErrorNote, html, notify, PageHead, Spinner, Table, Time, useLoad } from "../ui.js";

export function Approvals({ id }) {
  const [turn, setTurn] = useState(0);
  const [asking, setAsking] = useState(null);
  const act = async (path, text) => {
    setAsking(null);
    try {
      const done = await post(path);
      notify(text(done));
    } catch (error) {
      notify(error.message, "danger");
    }
    refreshPending();
    setTurn((before) => before + 1);
  };
  const waiting = pending.value;
  return html`<${PageHead} title="Approvals" actions=${waiting?.length > 1 ? html`<${Button} kind="danger" onClick=${() => setAsking("deny")}>Reject all<//>` : null}>
      Calls of tools that wait for a person. ${may("admin") ? "You see those of all keys." : "You see those of your own key."}<//>
    <div class="stack">
      <${ErrorNote} error=${watchError.value} onRetry=${refreshPending} />
      <section class="stack">
        ${waiting === null ? html`<${Spinner} />` : null}
        ${waiting?.length === 0 ? html`<${Empty} icon="approvals" title="Nothing waits for you"><p>When a tool needs your consent, it appears here and in its conversation.</p><//>` : null}
        ${waiting?.map((one) => html`<${ApprovalCard} key=${one.id} approval=${one} withRequester onAnswer=${() => setTurn((before) => before + 1)} />`)}
      </section>
      ${id && waiting ? html`<${Found} key=${id} id=${id} turn=${turn} />` : null}
      <${Grants} turn=${turn} onReset=${() => setAsking("reset")} />
      <${History} turn=${turn} />
    </div>
    ${asking === "deny" ? html`<${Confirm} title="Reject all that waits?" action="Reject all" onClose=${() => setAsking(null)} onConfirm=${() => act("/v1/approvals/deny_all", ({ denied }) => `${denied} denied.`)}>Every call in this list gets the answer no.<//>` : null}
    ${asking === "reset" ? html`<${Confirm} title="Reset all grants?" action="Reset" onClose=${() => setAsking(null)} onConfirm=${() => act("/v1/approvals/reset", ({ forgotten }) => `${forgotten} forgotten.`)}>Tools that were approved for more than one call ask again from now on.<//>` : null}`;
}

/** The approval of the address, if it does not wait any more: a link of a timeline leads here. */
function Found({ id, turn }) {
  const { data, error } = useLoad((signal) => get(`/v1/approvals/${encodeURIComponent(id)}`, {}, { signal }), [id, turn, pending.value]);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data || data.state === "pending") return null;
  const text = data.edited_arguments ?? data.arguments;
  return html`<section class="card" aria-label=${`Approval ${id}`}><div class="section-head"><h2 class="mono">${data.tool}</h2><${Badge} kind=${KINDS[data.state]}>${WORDS[data.state] ?? data.state}<//></div>
    <${Facts} facts=${[
      ["Asked", html`<${Time} at=${data.created_at} /> for ${data.caller}`],
      ["Answered", data.answered_at && html`<${Time} at=${data.answered_at} />${data.answered_by ? ` by ${data.answered_by}` : ""}`],
      ["Reason", data.reason],
      ["Because", data.why],
    ]} />
    <h3 class="section-title">Arguments${data.edited_arguments ? " (edited)" : ""}</h3><${Code} text=${pretty(text)} language="json" label="Copy arguments" /></section>`;
}

function Confirm({ title, action, onClose, onConfirm, children }) {
  return html`<${Dialog} title=${title} onClose=${onClose} actions=${html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind="danger" onClick=${onConfirm}>${action}<//>`}><p>${children}</p><//>`;
}

function Grants({ turn, onReset }) {
  const { data, error, reload } = useLoad((signal) => get("/v1/approvals/grants", { limit: 100 }, { signal }), [turn]);
  if (error) return html`<${ErrorNote} error=${error} onRetry=${reload} />`;
  if (!data?.data.length) return null;
  const columns = [
    { title: "Tool", cell: (one) => html`<span class="mono">${one.tool}</span>` },
    { title: "Holds for", cell: (one) => html`<${Badge} kind="accent">${one.level}<//> ${one.place ?? ""}` },
    { title: "Key", cell: (one) => one.caller },
    { title: "Granted", cell: (one) => html`<${Time} at=${one.created_at} /> by ${one.granted_by}` },
  ];
  return html`<section><div class="section-head"><h2 class="grow">Approved for longer</h2><${Button} icon="refresh" onClick=${onReset}>Reset<//></div>
    <${Table} label="Grants" columns=${columns} rows=${data.data} keyOf=${(one) => one.id} /></section>`;
}

/** The beginning of a text: a table shows no more, and a million characters would slow it down. */
const clipped = (text) => (text.length > 400 ? `${text.slice(0, 400)}…` : text);

const KINDS = { approved: "good", consumed: "good", denied: "danger", expired: "", out_of_scope: "" };
const WORDS = { consumed: "approved", out_of_scope: "out of scope" };

function History({ turn }) {
  const [more, setMore] = useState(20);
  const { data, error, reload } = useLoad((signal) => get("/v1/approvals", { limit: more }, { signal }), [turn, more, pending.value?.length]);
  if (error) return html`<${ErrorNote} error=${error} onRetry=${reload} />`;
  const rows = data?.data.filter((one) => one.state !== "pending") ?? [];
  if (!rows.length) return null;
  const columns = [
    { title: "Decision", cell: (one) => html`<${Badge} kind=${KINDS[one.state]}>${WORDS[one.state] ?? one.state}<//>` },
    { title: "Tool", cell: (one) => html`<span class="mono">${one.tool}</span>` },
    { title: "Arguments", wide: true, cell: (one) => html`<span class="mono clip" title=${clipped(one.edited_arguments ?? one.arguments)}>${clipped(one.edited_arguments ?? one.arguments)}</span>${one.edited_arguments ? html` <${Badge} kind="info">edited<//>` : null}` },
    { title: "Key", cell: (one) => one.caller },
    { title: "Answered", cell: (one) => html`<${Time} at=${one.answered_at ?? one.created_at} />${one.answered_by ? ` by ${one.answered_by}` : ""}${one.level && one.level !== "once" ? html` <${Badge}>${one.level}<//>` : null}` },
  ];
  return html`<section><div class="section-head"><h2>History</h2></div>
    <${Table} label="History" columns=${columns} rows=${rows} keyOf=${(one) => one.id} />
    ${data.has_more && more < 100 ? html`<p class="more"><${Button} onClick=${() => setMore(100)}>Show more<//></p>` : null}</section>`;
}
