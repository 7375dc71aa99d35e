// The shell: who is calling, the navigation, and the page of the route.
import "./style.css";
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { watchApprovals } from "./approvals.js";
import { showDeceivingCharacters } from "./characters.js";
import { Approvals } from "./pages/approvals.js";
import { Chat, Conversations } from "./pages/chat.js";
import { closeConversations } from "./conversation.js";
import { Keys } from "./pages/keys.js";
import { Requests } from "./pages/requests.js";
import { Runs } from "./pages/runs.js";
import { Start } from "./pages/start.js";
import { Tools } from "./pages/tools.js";
import { Usage } from "./pages/usage.js";
import { caller, go, href, key, keyProblem, may, models, pendingApprovals, route, shownTheme, signIn, signOut, status, theme } from "./state.js";
import { Button, Empty, ErrorNote, Field, html, Icon, Logo, Notices, PageHead, Spinner } from "./ui.js";

/** The pages in the order of the navigation; `scope` is what a key needs for them. */
const PAGES = {
  chat: { title: "Chat", view: Chat, scope: "chat", fills: true },
  approvals: { title: "Approvals", view: Approvals, scope: "tools", needsTools: true },
  tools: { title: "Tools", view: Tools, scope: "tools", needsTools: true },
  runs: { title: "Runs", view: Runs, scope: "chat" },
  requests: { title: "Requests", view: Requests, scope: "chat" },
  usage: { title: "Usage", view: Usage, scope: "chat" },
  keys: { title: "Keys", view: Keys, scope: "admin" },
  start: { title: "Start", view: Start, scope: "chat" },
};

function App() {
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    setError(null);
    closeConversations();
    let stale = false;
    connect().catch((problem) => stale || problem.status === 401 || setError(problem));
    return () => (stale = true);
  }, [key.value, turn]);
  if (keyProblem.value !== null) return html`<${SignIn} />`;
  if (error) return html`<main class="gate"><${ErrorNote} error=${error} onRetry=${() => setTurn(turn + 1)} /></main>`;
  if (!status.value) return html`<main class="gate"><${Spinner} label="Connecting" /></main>`;
  return html`<${Shell} />`;
}

/** Load what every page needs, unless another key is entered meanwhile. */
async function connect() {
  const used = key.value;
  const about = await get("/v1/status").catch(withoutChat);
  const found = about.caller.scopes.includes("chat") ? (await get("/v1/models")).data : [];
  if (key.value !== used) return;
  models.value = found;
  status.value = about;
}

/** A key without the scope chat may not read the status: find out what else it may do. */
async function withoutChat(error) {
  if (error.status !== 403) throw error;
  const allows = (path) => get(path).then(() => true, () => false);
  const [tools, admin] = await Promise.all([allows("/v1/tools"), allows("/v1/keys")]);
  return { version: "", tools, caller: { name: "this key", scopes: [...(tools ? ["tools"] : []), ...(admin ? ["admin"] : [])] } };
}

function Shell() {
  const { page } = route.value;
  const found = PAGES[page];
  const shown = useRef(false);
  const waiting = pendingApprovals.value;
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}${found?.title ?? "Not found"} · Toolgate`;
  }, [page, waiting]);
  useEffect(() => {
    // A screen reader goes on at the new page; the chat puts the focus into its composer.
    if (shown.current && page !== "chat") document.getElementById("main").focus({ preventScroll: true });
    shown.current = true;
  }, [page]);
  useEffect(() => (status.value.tools && may("tools") ? watchApprovals() : undefined), [key.value]);
  return html`<div class="shell" data-page=${page}>
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to content</a>
    <header class="brand"><a href=${href("start")} title="How to connect"><${Logo} /><span>Toolgate</span></a></header>
    <${Navigation} page=${page} />
    <div class="beside">${page === "chat" && may("chat") ? html`<${Conversations} />` : null}</div>
    <${Account} />
    <main id="main" tabindex="-1" class=${found?.fills ? "fills" : ""}>${found ? html`<${Guarded} page=${found} />` : html`<${NotFound} />`}</main>
    <${Notices} />
  </div>`;
}

function Guarded({ page }) {
  if (page.needsTools && !status.value.tools) return html`<${Empty} icon="tools" title="Server tools are turned off"><p>The configuration of this server has <code>tools: {enabled: false}</code>.</p><//>`;
  if (may(page.scope)) return html`<${page.view} id=${route.value.id} query=${route.value.query} />`;
  return html`<${PageHead} title=${page.title} /><${Empty} icon="keys" title=${`This key may not open ${page.title}`}>
    <p>The key “${caller.value.name}” has the scope${caller.value.scopes.length === 1 ? "" : "s"} ${caller.value.scopes.join(", ") || "none"}; this page needs “${page.scope}”. An administrator can make a key with it.</p>
  <//>`;
}

function NotFound() {
  return html`<${PageHead} title="Not found" /><${Empty} icon="search" title="There is no such page"><p><a href=${href("chat")}>Go to the chat</a></p><//>`;
}

function Navigation({ page }) {
  return html`<nav class="nav" aria-label="Pages"><ul>${Object.entries(PAGES)
    .filter(([, one]) => may(one.scope) && (status.value.tools || !one.needsTools))
    .map(
      ([name, one]) => html`<li key=${name} data-page=${name}><a href=${href(name)} aria-current=${name === page ? "page" : null}>
        <${Icon} name=${name} /><span>${one.title}</span>${name === "approvals" ? html`<${Pending} />` : null}</a></li>`,
    )}</ul></nav>`;
}

/** How many approvals wait; the count is no part of the link's name, which stays the same. */
function Pending() {
  const count = pendingApprovals.value;
  return count ? html`<span class="count" aria-hidden="true">${count > 99 ? "99+" : count}</span>` : null;
}

function Account() {
  const dark = shownTheme.value === "dark";
  return html`<aside class="account" aria-label="Session">
    <${Button} kind="ghost" icon=${dark ? "sun" : "moon"} label=${dark ? "Use the light theme" : "Use the dark theme"} onClick=${() => (theme.value = dark ? "light" : "dark")} />
    ${key.value ? html`<span class="who" title="The key in use">${caller.value.name}</span><${Button} kind="ghost" icon="out" label="Forget the key" onClick=${() => (go("chat"), signOut())} />` : null}
    <span class="version">${status.value.version}</span>
  </aside>`;
}

function SignIn() {
  const [value, setValue] = useState("");
  const [keep, setKeep] = useState(false);
  const submit = (event) => {
    event.preventDefault();
    if (value.trim()) signIn(value, keep);
  };
  return html`<main class="gate"><form class="card sign-in" onSubmit=${submit}>
    <${Logo} /><h1>Toolgate</h1>
    <p>This server asks for a key. Ask the person who runs the server for one; they make it with <code>toolgate keys create NAME</code>.</p>
    <${Field} label="Key" error=${keyProblem.value || null}>
      <input type="password" autocomplete="off" spellcheck="false" value=${value} onInput=${(event) => setValue(event.currentTarget.value)} autofocus />
    <//>
    <label class="check"><input type="checkbox" checked=${keep} onChange=${(event) => setKeep(event.currentTarget.checked)} /> Keep it until this tab is closed</label>
    <button class="button primary" disabled=${!value.trim()}>Continue</button>
    <p class="hint">The key stays in this page and is sent to this server only.</p>
  </form></main>`;
}

showDeceivingCharacters();
if (!location.hash) go("chat", null, {}, { replace: true });
render(html`<${App} />`, document.getElementById("app"));
