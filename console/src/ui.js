// Components that pages share, and how numbers, times and money are written.
import { html } from "htm/preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";

export { html };

// ---- icons: strokes on a grid of 24, the size of the text around them

const PATHS = {
  chat: "M21 12a8 8 0 0 1-8 8H4l2.2-3A8 8 0 1 1 21 12Z",
  approvals: "M12 3l7 3v5c0 4.6-2.9 8.2-7 10-4.1-1.8-7-5.4-7-10V6l7-3ZM9 12l2.2 2.2L15.4 10",
  tools: "M14.6 6.4a4 4 0 0 0-5.3 5.2L4 17l3 3 5.4-5.3a4 4 0 0 0 5.2-5.3L15 12l-3-3 2.6-2.6Z",
  runs: "M4 6h7M4 12h11M4 18h5M15 6h5M19 12h1M13 18h7",
  requests: "M5 4h14v16l-3.5-2-3.5 2-3.5-2L5 20V4ZM9 9h6M9 13h6",
  usage: "M5 20V11M12 20V4M19 20v-6",
  keys: "M14.5 9.5a4.5 4.5 0 1 0-4 4.4L13 16.5h2.5V19H18l2.5-.5V16l-6-6",
  start: "M12 3v3M5.6 5.6l2.1 2.1M3 12h3M12 12l8 3-3.5 1.5L15 20l-3-8Z",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7Z",
  copy: "M9 9h10v11H9ZM15 9V4H5v11h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  cross: "M6 6l12 12M18 6L6 18",
  edit: "M4 20l1-4L16 5l3 3L8 19l-4 1ZM14 7l3 3",
  image: "M4 5h16v14H4ZM4 16l4.5-4.5 4 4 3-3L20 16M15.5 9.5h.01",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  menu: "M4 7h16M4 12h16M4 17h16",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
  chevron: "M9 6l6 6-6 6",
  refresh: "M20 11a8 8 0 1 0-2.3 6.6M20 5v6h-6",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14ZM16 16l4.5 4.5",
  clock: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16ZM12 8v4l3 2",
  warning: "M12 4l9 16H3L12 4ZM12 10v4M12 17h.01",
  out: "M10 4H5v16h5M15 8l4 4-4 4M19 12H9",
  tune: "M5 7h7M16 7h3M5 12h3M12 12h7M5 17h9M18 17h1M14 5v4M10 10v4M16 15v4",
  down: "M12 5v14M6 13l6 6 6-6",
};

export function Icon({ name, label }) {
  return html`<svg class="icon" viewBox="0 0 24 24" role=${label ? "img" : null} aria-label=${label} aria-hidden=${label ? null : "true"}>
    <path d=${PATHS[name]} />
  </svg>`;
}

export function Logo() {
  return html`<svg class="logo" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M9 23V13a7 7 0 0 1 14 0v10M16 23v-8" /></svg>`;
}

// ---- controls

/** A button; `kind` is primary, danger, ghost or nothing, `icon` alone needs a `label`. */
export function Button({ kind = "", icon, label, busy = false, disabled = false, children, class: extra = "", ...rest }) {
  const bare = icon && !children;
  return html`<button type="button" class=${`button ${kind} ${bare ? "bare" : ""} ${extra}`} aria-label=${label} title=${bare ? label : rest.title}
    aria-busy=${busy ? "true" : null} disabled=${disabled || busy} ...${rest}>
    ${icon ? html`<${Icon} name=${icon} />` : null}${children}
  </button>`;
}

/** A button that puts a text on the clipboard. */
export function Copy({ text, label = "Copy", children }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      setDone(true);
    } catch {
      notify("The browser did not allow copying.", "danger");
    }
  };
  return html`<${Button} kind="ghost" icon=${done ? "check" : "copy"} label=${label} class="copy" onClick=${copy}>${children}<//>`;
}

/** A switch with its name beside it. */
export function Switch({ label, checked, onChange, disabled = false, title }) {
  return html`<label class="switch" title=${title}>
    <input type="checkbox" role="switch" aria-checked=${String(checked)} checked=${checked} disabled=${disabled} onChange=${(event) => onChange(event.currentTarget.checked)} />
    <span class="track" aria-hidden="true"></span><span>${label}</span>
  </label>`;
}

/** A labelled field; `hint` explains it, `error` says what is wrong with it. */
export function Field({ label, hint, error, children }) {
  return html`<div class="field"><label><span class="label">${label}</span>${children}</label>
    ${hint ? html`<span class="hint">${hint}</span>` : null}${error ? html`<span class="wrong" role="alert">${error}</span>` : null}
  </div>`;
}

export function Badge({ kind = "", children, title }) {
  return html`<span class=${`badge ${kind}`} title=${title}>${children}</span>`;
}

// ---- states of a page

export function Empty({ icon, title, children }) {
  return html`<div class="empty">${icon ? html`<${Icon} name=${icon} />` : null}<h2>${title}</h2><div>${children}</div></div>`;
}

/** An error with what to do about it. */
export function ErrorNote({ error, onRetry, children }) {
  if (!error) return null;
  const text = typeof error === "string" ? error : error.message;
  return html`<div class="note danger" role="alert"><${Icon} name="warning" />
    <div class="grow"><p>${text}</p>${children}</div>
    ${onRetry ? html`<${Button} onClick=${onRetry}>Try again<//>` : null}
  </div>`;
}

export function Spinner({ label = "Loading" }) {
  return html`<span class="spinner" role="status" aria-label=${label}></span>`;
}

/** The head of a page: its title, a sentence, and its actions. */
export function PageHead({ title, children, actions }) {
  return html`<header class="page-head"><div class="grow"><h1>${title}</h1>${children ? html`<p>${children}</p>` : null}</div>
    ${actions ? html`<div class="actions">${actions}</div>` : null}</header>`;
}

/** A table; a column has a `title`, and `cell(row)`, and may be `numeric` or `wide`. */
export function Table({ label, columns, rows, keyOf, selected, onSelect }) {
  return html`<div class="table-scroll" role="region" aria-label=${label} tabindex="0"><table>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.numeric ? "numeric" : ""}>${column.title}</th>`)}</tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr key=${keyOf(row)} class=${onSelect ? "selectable" : ""} aria-selected=${selected === undefined ? null : String(keyOf(row) === selected)}
        onClick=${onSelect ? (event) => !event.target.closest("a,button,input,select") && onSelect(row) : null}>
        ${columns.map((column) => html`<td class=${`${column.numeric ? "numeric" : ""} ${column.wide ? "wide" : ""}`}>${column.cell(row)}</td>`)}
      </tr>`,
    )}</tbody>
  </table></div>`;
}

/** A modal dialog, closed by Escape; it is open while it is shown. */
export function Dialog({ title, onClose, children, actions }) {
  const element = useRef(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  return html`<dialog ref=${element} aria-labelledby=${id} onCancel=${(event) => (event.preventDefault(), onClose())}
    onClick=${(event) => event.target === element.current && onClose()}>
    <div class="dialog"><header><h2 id=${id}>${title}</h2><${Button} kind="ghost" icon="cross" label="Close" onClick=${onClose} /></header>
      <div class="body">${children}</div>${actions ? html`<footer>${actions}</footer>` : null}</div>
  </dialog>`;
}

/** Tabs: `tabs` are [name, content] pairs; arrow keys move between them. */
export function Tabs({ label, tabs }) {
  const [chosen, setChosen] = useState(0);
  const id = useId();
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (chosen + step + tabs.length) % tabs.length;
    setChosen(next);
    event.currentTarget.children[next].focus();
  };
  return html`<div><div class="tabs" role="tablist" aria-label=${label} onKeyDown=${onKeyDown}>${tabs.map(
    ([name], at) => html`<button type="button" role="tab" id=${`${id}-${at}`} aria-selected=${String(at === chosen)} aria-controls=${`${id}-panel`} tabindex=${at === chosen ? 0 : -1} onClick=${() => setChosen(at)}>${name}</button>`,
  )}</div><div role="tabpanel" id=${`${id}-panel`} aria-labelledby=${`${id}-${chosen}`} key=${chosen}>${tabs[chosen][1]}</div></div>`;
}

// ---- short messages at the edge of the window

const notices = signal([]);
let lastNotice = 0;

export function notify(text, kind = "") {
  const notice = { id: ++lastNotice, text, kind };
  notices.value = [...notices.value.slice(-3), notice];
  setTimeout(() => (notices.value = notices.value.filter((one) => one !== notice)), 6000);
}

export function Notices() {
  return html`<div class="notices" role="status" aria-live="polite">${notices.value.map((one) => html`<div key=${one.id} class=${`notice ${one.kind}`}>${one.text}</div>`)}</div>`;
}

// ---- loading data

/** Load by a function, again when `inputs` change; returns `{data, error, loading, reload}`. */
export function useLoad(load, inputs = []) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    load(controller.signal).then(
      (data) => controller.signal.aborted || setState({ data, error: null, loading: false }),
      (error) => controller.signal.aborted || setState((before) => ({ ...before, error, loading: false })),
    );
    return () => controller.abort();
  }, [...inputs, turn]);
  return { ...state, reload: () => setTurn((before) => before + 1) };
}

/** Call a function every so many milliseconds while the page is visible. */
export function useInterval(work, milliseconds) {
  const latest = useRef(work);
  latest.current = work;
  useEffect(() => {
    const timer = setInterval(() => document.hidden || latest.current(), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
}

// ---- how values are written

const COUNT = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export const number = (value) => (value === null || value === undefined ? "–" : COUNT.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : COMPACT.format(value));

export function money(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(value < 1 ? 3 : 2)}`;
}

export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (milliseconds < 10) return `${Number(milliseconds.toFixed(1))} ms`;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(1)} s`;
  const minutes = Math.floor(milliseconds / 60_000);
  return minutes < 60 ? `${minutes} min ${Math.round((milliseconds % 60_000) / 1000)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A time as "5 minutes ago"; the whole date is its title. Seconds since 1970. */
export function Time({ at, clock = false }) {
  if (!at) return html`<span>–</span>`;
  const date = new Date(at * 1000);
  return html`<time datetime=${date.toISOString()} title=${DAY.format(date)}>${clock ? CLOCK.format(date) : relative(at)}</time>`;
}

export function relative(at, now = Date.now() / 1000) {
  const seconds = at - now;
  const size = Math.abs(seconds);
  if (size < 45) return seconds > 0 ? "in a moment" : "just now";
  if (size < 3000) return RELATIVE.format(Math.round(seconds / 60), "minute");
  if (size < 80_000) return RELATIVE.format(Math.round(seconds / 3600), "hour");
  return RELATIVE.format(Math.round(seconds / 86_400), "day");
}
