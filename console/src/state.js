// What all pages share: the key, what the server says about itself, the route and the theme.
// The key is kept in memory; in the tab's session storage only if its owner asks for that.
import { computed, effect, signal } from "@preact/signals";

const KEY = "toolgate.key";
const THEME = "toolgate.theme";

/** Read a value of a storage that the browser may deny. */
function stored(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

function store(storage, name, value) {
  try {
    if (value === null) window[storage].removeItem(name);
    else window[storage].setItem(name, value);
  } catch {
    // A browser that stores nothing still shows the page.
  }
}

export const key = signal(stored("sessionStorage", KEY) ?? "");
/** Why a key is asked for; null while none is needed. */
export const keyProblem = signal(null);
/** The answer of GET /v1/status. */
export const status = signal(null);
export const models = signal([]);
/** How many approvals wait; null if the caller may not see them. */
export const pendingApprovals = signal(null);

export const caller = computed(() => status.value?.caller ?? { name: "", scopes: [] });
export const may = (scope) => caller.value.scopes.includes(scope);

export function signIn(value, keep) {
  key.value = value.trim();
  store("sessionStorage", KEY, keep ? key.value : null);
  keyProblem.value = null;
}

export function signOut() {
  key.value = "";
  store("sessionStorage", KEY, null);
  status.value = null;
  keyProblem.value = "";
}

/** The server refused the key, or asks for one. */
export function signedOut(message) {
  keyProblem.value = key.value ? message : "";
}

// ---- theme: "light", "dark", or "auto", which follows the system

export const theme = signal(stored("localStorage", THEME) ?? "auto");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = signal(systemIsDark.matches ? "dark" : "light");
systemIsDark.addEventListener("change", (event) => (systemTheme.value = event.matches ? "dark" : "light"));
export const shownTheme = computed(() => (theme.value === "auto" ? systemTheme.value : theme.value));
effect(() => {
  document.documentElement.dataset.theme = shownTheme.value;
  store("localStorage", THEME, theme.value === "auto" ? null : theme.value);
});

// ---- route: #/page/id?name=value

function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map(decodeURIComponent);
  return { page: page || "chat", id: rest.join("/") || null, query: Object.fromEntries(new URLSearchParams(search)) };
}

export const route = signal(parse(location.hash));
addEventListener("hashchange", () => (route.value = parse(location.hash)));

/** The address of a page, for links. */
export function href(page, id = null, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${page}${id ? `/${encodeURIComponent(id)}` : ""}${search}`;
}

export function go(page, id, query, { replace = false } = {}) {
  const address = href(page, id, query);
  if (replace) {
    history.replaceState(null, "", address);
    route.value = parse(address);
  } else location.hash = address;
}

export { store, stored };
