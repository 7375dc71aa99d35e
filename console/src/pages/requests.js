// Requests: one record of each request, with filters in the address, a detail with an address of its own, and keys j, k, Enter.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { go, href, may, models, status } from "../state.js";
import { Badge, Button, Copy, Empty, ErrorNote, Icon, PageHead, Spinner, Time, duration, html, money, number, useInterval, useLoad } from "../ui.js";
import { changeQuery, clearQuery, Facts, Filter, KeyFilter, Pane, RANGE_CHOICES, SearchField, shortId, sinceOf, usePages } from "./parts.js";

const STATUSES = [
  ["2xx", "Successful"],
  ["4xx", "Refused (4xx)"],
  ["5xx", "Failed (5xx)"],
  ["error", "All with an error"],
];
const DIALECTS = [
  ["openai_chat", "Chat Completions"],
  ["openai_responses", "Responses"],
  ["anthropic", "Messages"],
  ["ollama", "Ollama"],
];
const NAMES = Object.fromEntries(DIALECTS);

export function Requests({ id, query }) {
  const { range, key, model, status: state, dialect, q } = query;
  const list = usePages("/v1/requests", { key, model, status: state, dialect, q, since: sinceOf(range) });
  useInterval(list.refresh, 5000);
  const rows = list.items ?? [];
  const filtered = [range, key, model, state, dialect, q].some(Boolean);
  const cursor = useKeyboard(rows, id, query);

  return html`<${PageHead} title="Requests" actions=${html`<${Button} icon="refresh" onClick=${list.reload}>Refresh<//>`}>
      What clients asked, and how it was answered. Contents are not kept here.
    <//>
    <div class="filters" role="search" aria-label="Filter requests">
      <${SearchField} label="Search id, model or error" value=${q} onChange=${(next) => changeQuery({ q: next })} />
      ${may("admin") ? html`<${KeyFilter} value=${key} onChange=${(next) => changeQuery({ key: next })} />` : null}
      <${Filter} label="Model" value=${model} choices=${models.value.map((one) => one.id)} onChange=${(next) => changeQuery({ model: next })} />
      <${Filter} label="Status" value=${state} choices=${STATUSES} onChange=${(next) => changeQuery({ status: next })} />
      <${Filter} label="API" value=${dialect} choices=${DIALECTS} onChange=${(next) => changeQuery({ dialect: next })} />
      <${Filter} label="Time" value=${range} choices=${RANGE_CHOICES} all="Any time" onChange=${(next) => changeQuery({ range: next })} />
      ${filtered ? html`<${Button} kind="ghost" onClick=${() => clearQuery()}>Clear<//>` : null}
    </div>
    <${ErrorNote} error=${list.error} onRetry=${list.reload} />
    <div class=${`split ${id ? "open" : ""}`}>
      <div class="list">
        ${list.loading && !list.items ? html`<${Spinner} label="Loading requests" />` : null}
        ${list.items && !rows.length ? html`<${Nothing} filtered=${filtered} />` : null}
        ${rows.length ? html`<${RequestTable} rows=${rows} id=${id} cursor=${cursor} query=${query} narrow=${Boolean(id)} />` : null}
        ${list.more ? html`<p class="more"><${Button} onClick=${list.loadMore}>Show older requests<//></p>` : null}
        ${rows.length ? html`<p class="hint keys-hint"><kbd>j</kbd> <kbd>k</kbd> move, <kbd>Enter</kbd> opens, <kbd>Esc</kbd> closes.</p>` : null}
      </div>
      ${id ? html`<${RequestDetail} key=${id} id=${id} known=${rows.find((one) => one.id === id)} onClose=${() => go("requests", null, query)} />` : null}
    </div>`;
}

function Nothing({ filtered }) {
  if (filtered) return html`<${Empty} icon="search" title="No request matches">Change or clear the filters.<//>`;
  if (status.value?.records?.requests_days === 0) {
    return html`<${Empty} icon="requests" title="Requests are not recorded">Set <code>records.requests</code> in the configuration to the number of days for which they are kept.<//>`;
  }
  return html`<${Empty} icon="requests" title="No requests yet">As soon as a client calls this server, its requests are listed here. <a href=${href("start")}>How to connect a client</a><//>`;
}

/** Move a cursor through the rows by j and k; Enter opens a row, Escape closes it. */
function useKeyboard(rows, id, query) {
  const [cursor, setCursor] = useState(null);
  const now = useRef({});
  now.current = { rows, id, query, cursor };
  useEffect(() => {
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
      const { rows, id, query, cursor } = now.current;
      const at = rows.findIndex((one) => one.id === (cursor ?? id));
      if (event.key === "j" || event.key === "k") {
        const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)))];
        if (!next) return;
        setCursor(next.id);
        if (id) go("requests", next.id, query, { replace: true });
        document.getElementById(`request-${next.id}`)?.scrollIntoView({ block: "nearest" });
      } else if (event.key === "Enter" && cursor && !event.target.closest("a, button, summary")) go("requests", cursor, query);
      else if (event.key === "Escape" && id) go("requests", null, query);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return cursor ?? id;
}

export function StatusBadge({ request }) {
  const kind = request.status >= 500 ? "danger" : request.status >= 400 ? "warn" : request.error ? "danger" : "good";
  return html`<${Badge} kind=${kind} title=${request.code ?? request.finish_reason}>${request.status || "–"}<//>`;
}

/** The time of day, with the day where it is not today. */
function When({ at }) {
  const date = new Date(at * 1000);
  const today = date.toDateString() === new Date().toDateString();
  const clock = date.toLocaleTimeString("en-GB");
  return html`<time datetime=${date.toISOString()} title=${date.toLocaleString()}>${today ? clock : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${clock.slice(0, 5)}`}</time>`;
}

function RequestTable({ rows, id, cursor, query, narrow }) {
  const admin = may("admin");
  return html`<div class="table-scroll" role="region" aria-label="Requests" tabindex="0"><table class=${`records ${narrow ? "narrow" : ""}`}>
    <thead><tr><th scope="col">Time</th><th scope="col">Status</th><th scope="col">Model</th><th scope="col" class="extra">API</th>
      ${admin ? html`<th scope="col" class="extra">Key</th>` : null}
      <th scope="col" class="numeric extra">Tokens</th><th scope="col" class="numeric extra">First token</th><th scope="col" class="numeric">Total</th><th scope="col" class="numeric extra">Cost</th><th scope="col" class="extra">Tools</th></tr></thead>
    <tbody>${rows.map(
      (one) => html`<tr key=${one.id} id=${`request-${one.id}`} class=${`selectable ${one.id === cursor ? "cursor" : ""} ${one.id === id ? "chosen" : ""}`}
        onClick=${(event) => !event.target.closest("a") && go("requests", one.id, query)}>
        <td class="when"><a href=${href("requests", one.id, query)} aria-current=${one.id === id ? "true" : null}><${When} at=${one.created} /></a></td>
        <td><${StatusBadge} request=${one} /></td>
        <td class="mono" title=${one.model}><span class="clip">${one.model || html`<span class="soft">${one.path}</span>`}</span></td>
        <td class="extra">${NAMES[one.dialect] ?? one.dialect}</td>
        ${admin ? html`<td class="extra"><span class="clip">${one.key}</span></td>` : null}
        <td class="numeric extra">${one.input_tokens || one.output_tokens ? html`${number(one.input_tokens)} <span class="soft">→</span> ${number(one.output_tokens)}` : "–"}</td>
        <td class="numeric extra">${duration(one.first_token_ms)}</td>
        <td class="numeric">${duration(one.total_ms)}</td>
        <td class="numeric extra">${one.cost ? money(one.cost) : "–"}</td>
        <td class="extra">${one.tools?.length ? html`<span title=${one.tools.join(", ")}>${one.tools.length}</span>` : ""}</td>
      </tr>`,
    )}</tbody>
  </table></div>`;
}

function RequestDetail({ id, known, onClose }) {
  const { data, error, loading } = useLoad((signal) => (known ? Promise.resolve(known) : get(`/v1/requests/${encodeURIComponent(id)}`, {}, { signal })), [id]);
  const one = data ?? known;
  const title = one ? `${one.method} ${one.path}` : shortId(id);
  return html`<${Pane} title=${title} label=${`Request ${id}`} onClose=${onClose} actions=${html`<${Copy} text=${() => location.href} label="Copy link" />`}>
    ${loading && !one ? html`<${Spinner} />` : null}<${ErrorNote} error=${error} />
    ${one ? html`<${RequestFacts} request=${one} />` : null}
  <//>`;
}

function RequestFacts({ request: one }) {
  const facts = [
    ["Status", html`<${StatusBadge} request=${one} /> ${one.finish_reason ?? ""}`],
    ["Time", html`<${Time} at=${one.created} /> <span class="soft">${new Date(one.created * 1000).toLocaleString()}</span>`],
    ["Id", html`<span class="mono">${one.id}</span>`],
    ["Key", one.key],
    ["Model", one.model && html`<span class="mono">${one.model}</span>`],
    ["Upstream", one.upstream && `${one.upstream}${one.upstream_dialect ? ` · ${NAMES[one.upstream_dialect] ?? one.upstream_dialect}` : ""}`],
    ["Client API", NAMES[one.dialect] ?? one.dialect],
    ["Streamed", one.stream ? "yes" : "no"],
    ["Cost", one.cost ? money(one.cost) : null],
    ["Run", one.run && html`<a href=${href("runs", one.run)}>${shortId(one.run)}</a>`],
  ];
  const tokens = [
    ["Input", one.input_tokens],
    ["Cached input", one.cached_tokens],
    ["Output", one.output_tokens],
    ["Reasoning", one.reasoning_tokens],
  ].filter(([, count]) => count);
  return html`${one.error ? html`<div class="note danger" role="note"><${Icon} name="warning" /><div><b>${one.code ?? "Error"}</b><p>${one.error}</p></div></div>` : null}
    <${Facts} facts=${facts} />
    <h3>Time</h3><${Phases} request=${one} />
    ${tokens.length ? html`<h3>Tokens ${one.estimated ? html`<${Badge} title="The upstream reported none">estimated<//>` : null}</h3><${Facts} facts=${tokens.map(([name, count]) => [name, number(count)])} />` : null}
    ${one.tools?.length ? html`<h3>Tools called</h3><p class="badges">${one.tools.map((tool) => html`<a class="badge" href=${href("tools", tool)}>${tool}</a>`)}</p>` : null}
    ${one.warnings?.length ? html`<h3>Warnings</h3><ul class="plain">${one.warnings.map((text) => html`<li>${text}</li>`)}</ul>` : null}`;
}

/** The time until the first token and after it, as one bar. */
function Phases({ request: { first_token_ms: first, total_ms: total } }) {
  if (total === null || total === undefined) return html`<p class="soft">Not measured.</p>`;
  const share = first ? Math.min(100, (first / Math.max(total, 0.001)) * 100) : 0;
  return html`<svg class="phases" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="rest" width="100" height="6" rx="1" /><rect class="first" width=${share} height="6" rx="1" /></svg>
    <${Facts} facts=${[["First token", first ? duration(first) : null], ["Total", duration(total)]]} />`;
}
