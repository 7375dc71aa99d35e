// A listing with its language and a button that copies it. Strings, comments, numbers and keywords are coloured, by one
// pattern for all languages that needs no look back; a long listing is drawn in pieces, of which only the last one changes.
import { Component } from "preact";
import { Copy, html } from "./ui.js";

/** Characters of a piece. */
const PIECE = 2048;
/** A longer listing is not coloured: its elements would be too many. */
const MOST_COLOURED = 40_000;
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "output", "console", "log", "diff", "markdown", "md"]);
const HASH = new Set(["python", "py", "sh", "bash", "shell", "zsh", "yaml", "yml", "toml", "ruby", "rb", "perl", "r", "dockerfile", "makefile", "ini", "nix", "elixir"]);
const DASH = new Set(["sql", "lua", "haskell", "hs", "ada"]);

const KEYWORDS = new Set(
  (
    "abstract and as assert async await begin bool boolean break byte case catch char class const continue def default defer delete do double elif else " +
    "end enum except export extends false final finally float fn for from func function global go goto if impl implements import in int interface is " +
    "lambda let local long loop match mod module mut namespace new nil none nonlocal not null or package pass private protected pub public raise return " +
    "self short static string struct super switch then this throw trait true try type typedef typeof undefined union unsigned use using val var void " +
    "where while with yield select insert update values into set table create drop alter join on group order by limit"
  ).split(" "),
);

const STRING = "\"(?:[^\"\\\\\\n]|\\\\.)*\"?|'(?:[^'\\\\\\n]|\\\\.)*'?|`(?:[^`\\\\]|\\\\.)*`?";
const tokens = (comment) => new RegExp(`(?<comment>${comment})|(?<string>${STRING})|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_]\\w*)`, "g");
const PATTERNS = { hash: tokens("#[^\\n]*"), dash: tokens("--[^\\n]*"), slash: tokens("\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)") };

/** The text with an element for each part that has a colour. */
function coloured(text, language) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(PATTERNS[HASH.has(language) ? "hash" : DASH.has(language) ? "dash" : "slash"])) {
    const { comment, string, number, word } = match.groups;
    const kind = comment ? "comment" : string ? "string" : number ? "number" : KEYWORDS.has(language === "sql" ? word.toLowerCase() : word) ? "keyword" : null;
    if (!kind) continue;
    found.push(text.slice(from, match.index), html`<span class=${`code-${kind}`}>${match[0]}</span>`);
    from = match.index + match[0].length;
  }
  found.push(text.slice(from));
  return found;
}

class Piece extends Component {
  shouldComponentUpdate({ text, language }) {
    return text !== this.props.text || language !== this.props.language;
  }

  render({ text, language }) {
    return html`<span class="piece">${language === null ? text : coloured(text, language)}</span>`;
  }
}

export function Code({ text, language, label = "Copy code" }) {
  const name = (language ?? "").trim().split(/\s+/, 1)[0].slice(0, 40);
  const known = PLAIN.has(name.toLowerCase()) || text.length > MOST_COLOURED ? null : name.toLowerCase();
  return html`<div class="code"><div class="code-head"><span>${name}</span><${Copy} text=${text} label=${label} /></div>
    <pre tabindex="0"><code dir="ltr">${pieces(text).map((piece, at) => html`<${Piece} key=${at} text=${piece} language=${known} />`)}</code></pre></div>`;
}

/** Cut a text into pieces that end with a line where they can. */
function pieces(text) {
  const found = [];
  for (let start = 0; start < text.length || !found.length; ) {
    const line = text.indexOf("\n", start + PIECE);
    const end = line < 0 || line > start + 2 * PIECE ? Math.min(text.length, start + (line < 0 && text.length < start + 2 * PIECE ? 2 : 1) * PIECE) : line + 1;
    found.push(text.slice(start, end));
    start = end;
    if (!text.length) break;
  }
  return found;
}
