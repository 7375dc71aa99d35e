// JSON as people read and edit it. It is indented as text and never as values, so that a number with twenty digits keeps
// them, and what deceives the eye in a string is written as an escape.
import { escaped } from "./characters.js";

const DEEPEST = 60;
const LONGEST = 2_000_000;
const TOKEN = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g;
const OPENING = { "{": "}", "[": "]" };

/** JSON text with indentation; a text that is none, or that is nested too deep to be indented, stays as it is. */
export function pretty(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (text.length > LONGEST || !/^\s*[{["]/.test(text)) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return indented(text) ?? text;
}

function indented(text) {
  const written = [];
  let depth = 0;
  const line = () => written.push("\n", "  ".repeat(depth));
  const tokens = text.match(TOKEN);
  for (let at = 0; at < tokens.length; at += 1) {
    const token = tokens[at];
    if (OPENING[token]) {
      if (tokens[at + 1] === OPENING[token]) {
        written.push(token, tokens[++at]);
        continue;
      }
      if (++depth > DEEPEST) return null;
      written.push(token);
      line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      line();
      written.push(token);
    } else if (token === ",") {
      written.push(token);
      line();
    } else if (token === ":") written.push(": ");
    else written.push(token[0] === '"' ? escaped(token.includes("\\") ? JSON.stringify(JSON.parse(token)) : token) : token);
  }
  return written.join("");
}

/** Whether two JSON texts mean the same; the order of keys does not matter. */
export function sameJson(one, other) {
  const sorted = (_, value) => (value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value);
  try {
    return JSON.stringify(JSON.parse(one), sorted) === JSON.stringify(JSON.parse(other), sorted);
  } catch {
    return one === other;
  }
}
