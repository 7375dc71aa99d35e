// Characters that deceive: those that change the order of others, controls, and tags that nobody sees. Everything that the
// page shows passes here, whoever wrote it: names, errors, arguments, results and answers.
import { h, options } from "preact";

const NAMES = {
  "\u202a": "left-to-right embedding",
  "\u202b": "right-to-left embedding",
  "\u202c": "end of embedding",
  "\u202d": "left-to-right override",
  "\u202e": "right-to-left override",
  "\u2066": "left-to-right isolate",
  "\u2067": "right-to-left isolate",
  "\u2068": "first strong isolate",
  "\u2069": "end of isolate",
};
// oxlint-disable-next-line no-control-regex
const DECEIVING = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]|\udb40[\udc00-\udc7f]/;
const SPLIT = new RegExp(`((?:${DECEIVING.source})+)`);
/** Elements for such characters in one text; one that has more shows their numbers as text. */
const MOST_MARKED = 100;
const ALL = new RegExp(DECEIVING.source, "g");
/** Also those without a width, which a text may need but the arguments of a call should show. */
const UNSEEN = new RegExp(`${DECEIVING.source}|[\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028\\u2029\\u2060-\\u2064\\ufeff]`, "g");

const code = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** A text in which such characters are shown instead of obeyed: an array of texts and elements if it has any. */
export function visible(text) {
  if (!DECEIVING.test(text)) return text;
  const pieces = text.split(SPLIT);
  if (pieces.length > 2 * MOST_MARKED) return plain(text);
  return pieces.map((piece, index) => (index % 2 ? h("span", { class: "control", title: NAMES[piece] ?? "control characters" }, runName(piece)) : piece));
}

/** The numbers of a few such characters, or how many there are. */
function runName(run) {
  const found = [...run];
  return found.length > 4 ? `${code(found[0])} and ${found.length - 1} more` : found.map(code).join(" ");
}

const plain = (text) => text.replace(ALL, code);

/** JSON text with such characters in its strings written as escapes, which mean the same. */
export const escaped = (text) => text.replace(UNSEEN, (found) => [...Array(found.length).keys()].map((at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""));

const ATTRIBUTES = ["title", "aria-label", "alt", "placeholder", "label"];
/** Elements that hold text alone. */
const TEXT_ONLY = new Set(["option", "textarea", "title", "text"]);

function shown(children, asText) {
  if (typeof children === "string") return asText ? plain(children) : visible(children);
  if (!Array.isArray(children)) return children;
  for (let at = 0; at < children.length; at += 1) {
    const child = children[at];
    if (typeof child === "string" ? DECEIVING.test(child) : Array.isArray(child)) {
      const changed = [...children];
      for (; at < changed.length; at += 1) changed[at] = shown(changed[at], asText);
      return changed;
    }
  }
  return children;
}

/** Make every element of the page show such characters, so that no component can forget to. */
export function showDeceivingCharacters() {
  const before = options.vnode;
  options.vnode = (node) => {
    if (typeof node.type === "string" && node.props) {
      const { props } = node;
      if (props.children !== undefined && props.class !== "control") props.children = shown(props.children, TEXT_ONLY.has(node.type));
      for (const name of ATTRIBUTES) if (typeof props[name] === "string" && DECEIVING.test(props[name])) props[name] = plain(props[name]);
    }
    before?.(node);
  };
}
