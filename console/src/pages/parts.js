// Parts that the pages with lists share: filters that live in the address, pages of a list, a pane for what is selected.
import "./lists.css";
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { go, route } from "../state.js";
import { Badge, Button, html, useLoad } from "../ui.js";

/** Change filters in the address; null removes one. The others are those of now, however late this is called. */
export function changeQuery(changes) {
  const { page, id, query } = route.value;
  go(page, id, { ...query, ...changes }, { replace: true });
}

export function clearQuery() {
  const { page, id } = route.value;
  go(page, id, {}, { replace: true });
}

/** A labelled choice; the empty one means all. */
export function Filter({ label, value, choices, all = "All", onChange }) {
  const known = choices.map((one) => (typeof one === "string" ? [one, one] : one));
  const missing = value && !known.some(([own]) => own === value);
  return html`<label class="filter"><span aria-hidden="true">${label}</span><select aria-label=${label} value=${value ?? ""} onChange=${(event) => onChange(event.currentTarget.value || null)}>
    ${all === null ? null : html`<option value="">${all}</option>`}${missing ? html`<option value=${value}>${value}</option>` : null}
    ${known.map(([own, text]) => html`<option key=${own} value=${own}>${text}</option>`)}
  </select></label>`;
}

/** A choice among the keys, for callers that may see them. */
export function KeyFilter({ value, onChange }) {
  const { data } = useLoad((signal) => get("/v1/keys", {}, { signal }));
  const names = [...new Set((data?.data ?? []).map((one) => one.name))].sort();
  return html`<${Filter} label="Key" value=${value} choices=${names} onChange=${onChange} />`;
}

/** A search field that reports what was typed after a short pause. */
export function SearchField({ label, value, onChange }) {
  const [text, setText] = useState(value ?? "");
  const timer = useRef(0);
  useEffect(() => setText(value ?? ""), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next || null), 200);
  };
  return html`<input class="search" type="search" aria-label=${label} placeholder=${label} value=${text} onInput=${type} />`;
}

let panes = 0;

/** What is selected in a list: beside it on wide screens, instead of it on narrow ones. Escape closes it. */
export function Pane({ title, label, onClose, actions, children }) {
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    const { dataset } = document.getElementById("main");
    panes += 1;
    dataset.pane = "open"; // on narrow screens it hides the rest; asking for it by :has() slows every page down
    element.current.focus({ preventScroll: true });
    return () => {
      panes -= 1;
      if (!panes) delete dataset.pane;
      if (before?.isConnected) before.focus({ preventScroll: true });
    };
  }, []);
  return html`<section class="pane" ref=${element} tabindex="-1" aria-label=${label ?? title} onKeyDown=${(event) => event.key === "Escape" && !event.defaultPrevented && onClose()}>
    <header><h2 class="grow mono">${title}</h2>${actions}<${Button} kind="ghost" icon="cross" label="Close" onClick=${onClose} /></header>
    <div class="body">${children}</div>
  </section>`;
}

/** Names and values; those without a value are left out. */
export function Facts({ facts }) {
  const given = facts.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return given.length ? html`<dl class="facts">${given.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>` : null;
}

const KINDS = {
  ...{ completed: "good", answer: "good", active: "good", configured: "good" },
  ...{ running: "info", queued: "info" },
  ...{ waiting: "warn", parked: "warn", incomplete: "warn", unknown: "warn", expired: "warn", shadowed: "warn" },
  ...{ failed: "danger", timeout: "danger", denied: "danger", revoked: "danger" },
};

/** A state in its colour. */
export function State({ state }) {
  return html`<${Badge} kind=${KINDS[state] ?? ""}>${state === "running" ? html`<span class="pulse" aria-hidden="true"></span>` : null}${String(state).replaceAll("_", " ")}<//>`;
}

const MOST_EMPTY = 20;

/** Load a page of a list; the server may answer with none of a rare kind yet, and where to look on. */
async function loadPage(path, params) {
  for (let turn = 1; ; turn++) {
    const page = await get(path, params);
    if (page.data.length || !page.has_more || turn === MOST_EMPTY) return page;
    params = { ...params, after: page.last_id };
  }
}

/** A list of the API, newest first: its first page at once, older ones on demand, newer ones by `refresh`. */
export function usePages(path, params) {
  const [state, setState] = useState({ items: null, last: null, error: null, loading: true });
  const latest = useRef(0);
  const inputs = JSON.stringify(params);
  const load = async (after) => {
    const turn = after ? latest.current : ++latest.current;
    setState((before) => ({ ...before, loading: true }));
    try {
      const page = await loadPage(path, { limit: 50, ...params, after });
      if (turn !== latest.current) return;
      setState((before) => {
        const known = after ? before.items : [];
        const ids = new Set(known.map((one) => one.id));
        return { items: [...known, ...page.data.filter((one) => !ids.has(one.id))], last: page.has_more ? page.last_id : null, error: null, loading: false };
      });
    } catch (error) {
      if (turn === latest.current) setState((before) => ({ ...before, error, loading: false }));
    }
  };
  const refresh = async () => {
    const turn = latest.current;
    const page = await get(path, { limit: 50, ...params }).catch(() => null);
    if (!page || turn !== latest.current) return;
    setState((before) => {
      const fresh = new Set(page.data.map((one) => one.id));
      const known = before.items ?? [];
      const older = known.filter((one) => !fresh.has(one.id));
      if (page.has_more && known.length && older.length < known.length) return { ...before, items: [...page.data, ...older], error: null };
      return { items: page.data, last: page.has_more ? page.last_id : null, error: null, loading: false };
    });
  };
  useEffect(() => {
    load();
  }, [path, inputs]);
  return { ...state, more: state.last !== null, refresh, reload: () => load(), loadMore: () => load(state.last) };
}

const RANGES = { hour: 3600, day: 86_400, week: 7 * 86_400, month: 30 * 86_400 };
export const RANGE_CHOICES = [
  ["hour", "Last hour"],
  ["day", "Last 24 hours"],
  ["week", "Last 7 days"],
  ["month", "Last 30 days"],
];

/** The beginning of a range in seconds since 1970, on the minute so that it stays the same between two drawings. */
export const sinceOf = (range) => (RANGES[range] ? Math.floor((Date.now() / 1000 - RANGES[range]) / 60) * 60 : undefined);

export const shortId = (id) => (id.length > 20 ? `${id.slice(0, 12)}…${id.slice(-4)}` : id);
