// Turns Markdown into virtual nodes by marked's lexer. No markup of an answer is ever interpreted: HTML stays text.
// A growing answer costs the same per piece however long it is: only its last, open block is read again.
import { html } from "htm/preact";
import { Lexer } from "marked";
import { Copy } from "./ui.js";

const OPTIONS = { gfm: true, breaks: true };
const LONGEST_BLOCK = 16_384;
/** Characters of code in one node; a long listing only changes in its last one. */
const CODE_PIECE = 4096;
const DEEPEST = 24;

/** The blocks of a text that grows by `append`; those that are complete never change again. */
export class MarkdownBlocks {
  #open = "";
  #links = Object.create(null);

  constructor(text = "") {
    this.text = "";
    this.closed = [];
    this.tail = [];
    if (text) this.append(text);
  }

  append(more) {
    this.text += more;
    this.#open += more;
    while (this.#open.length > 2 * LONGEST_BLOCK) this.#advance(this.#takePiece());
    const tokens = this.#lex(this.#open);
    const last = tokens.pop();
    if (tokens.length) this.#close(tokens);
    this.tail = last ? [last] : [];
  }

  /** Take the beginning of a text that is too long to be read at once, up to the end of a line. */
  #takePiece() {
    const line = this.#open.lastIndexOf("\n", LONGEST_BLOCK);
    const size = line > LONGEST_BLOCK / 2 ? line + 1 : LONGEST_BLOCK;
    return this.#open.slice(0, size);
  }

  #advance(piece) {
    const fence = /^ {0,3}(`{3,}|~{3,})[^\n]*\n/.exec(piece);
    const tokens = this.#lex(piece);
    const last = tokens.at(-1);
    if (fence && tokens.length === 1 && last.type === "code") {
      // A listing that goes on: its pieces are blocks of their own, each reopened by the same fence.
      this.closed.push({ ...last, continues: true });
      this.#open = fence[0] + this.#open.slice(piece.length);
      return;
    }
    if (tokens.length > 1) this.#close(tokens.slice(0, -1));
    else {
      this.closed.push(...tokens);
      this.#open = this.#open.slice(piece.length);
    }
  }

  #close(tokens) {
    const size = tokens.reduce((sum, token) => sum + token.raw.length, 0);
    this.closed.push(...tokens);
    this.#open = this.#open.slice(size);
  }

  #lex(text) {
    try {
      const lexer = new Lexer(OPTIONS);
      lexer.tokens.links = this.#links;
      return [...lexer.lex(text)];
    } catch {
      return [{ type: "plain", raw: text, text }];
    }
  }
}

const views = new WeakMap();

/** The nodes of blocks; a closed block is rendered once. */
export function renderBlocks(blocks) {
  return [...blocks.closed.map(renderOnce), ...blocks.tail.map((token) => renderBlock(token, 0))];
}

function renderOnce(token) {
  if (!views.has(token)) views.set(token, renderBlock(token, 0));
  return views.get(token);
}

/** Markdown that does not grow. */
export function Markdown({ text }) {
  return html`<div class="markdown">${renderBlocks(new MarkdownBlocks(text))}</div>`;
}

function renderBlock(token, depth) {
  if (depth > DEEPEST) return html`<p dir="auto">${visible(token.raw)}</p>`;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "hr":
      return html`<hr />`;
    case "heading":
      // Below the page's own heading all are of one level: an answer need not begin with its highest.
      return html`<h2 class=${`h${token.depth}`} dir="auto">${inline(token.tokens, depth)}</h2>`;
    case "code":
      return html`<${Code} text=${token.text} language=${token.lang} />`;
    case "blockquote":
      return html`<blockquote>${token.tokens.map((one) => renderBlock(one, depth + 1))}</blockquote>`;
    case "list":
      return html`<${token.ordered ? "ol" : "ul"} start=${token.ordered && token.start !== 1 ? token.start : null}>
        ${token.items.map((item) => html`<li dir="auto" class=${item.task ? "task" : ""}>${item.tokens.map((one) => renderBlock(one, depth + 1))}</li>`)}
      <//>`;
    case "checkbox":
      return html`<input type="checkbox" checked=${token.checked} disabled aria-label=${token.checked ? "done" : "to do"} /> `;
    case "table":
      return renderTable(token, depth);
    case "paragraph":
      return html`<p dir="auto">${inline(token.tokens, depth)}</p>`;
    case "text":
      return token.tokens ? html`<span>${inline(token.tokens, depth)}</span>` : visible(token.text);
    default:
      return html`<p dir="auto">${visible(token.raw)}</p>`;
  }
}

function renderTable(token, depth) {
  const cell = (one, at, tag) => html`<${tag} class=${token.align[at] ?? ""} dir="auto">${inline(one.tokens, depth)}<//>`;
  return html`<div class="table-scroll" role="region" aria-label="Table" tabindex="0"><table>
    <thead><tr>${token.header.map((one, at) => cell(one, at, "th"))}</tr></thead>
    <tbody>${token.rows.map((row) => html`<tr>${row.map((one, at) => cell(one, at, "td"))}</tr>`)}</tbody>
  </table></div>`;
}

function inline(tokens, depth) {
  if (depth > DEEPEST) return tokens.map((token) => visible(token.raw));
  return tokens.map((token) => {
    switch (token.type) {
      case "strong":
        return html`<strong>${inline(token.tokens, depth + 1)}</strong>`;
      case "em":
        return html`<em>${inline(token.tokens, depth + 1)}</em>`;
      case "del":
        return html`<del>${inline(token.tokens, depth + 1)}</del>`;
      case "codespan":
        return html`<code>${visible(token.text)}</code>`;
      case "br":
        return html`<br />`;
      case "link":
        return link(token.href, inline(token.tokens, depth + 1));
      case "image":
        return image(token);
      case "checkbox":
        return renderBlock(token, depth);
      case "escape":
        return visible(token.text);
      case "html":
        return visible(token.raw);
      default:
        return token.tokens ? inline(token.tokens, depth + 1) : visible(entities(token.text ?? token.raw));
    }
  });
}

const SAFE_LINK = /^(?:https?|mailto):/i;

/** A link that leaves the page; one that would run a script or read a file becomes its text. */
function link(target, children) {
  if (!SAFE_LINK.test(target)) return html`<span>${children}</span>`;
  return html`<a href=${target} target="_blank" rel="noopener noreferrer nofollow">${children}</a>`;
}

/** An image that is in the text itself; others are links, because loading them would tell their server of the reader. */
function image(token) {
  const text = token.text || "image";
  if (isEmbeddedImage(token.href)) return html`<img src=${token.href} alt=${text} loading="lazy" />`;
  return link(token.href, [visible(text)]);
}

export const isEmbeddedImage = (url) => /^data:image\/(?:png|jpeg|gif|webp|avif);base64,[a-z0-9+/=\s]+$/i.test(url);

/** A listing with its language and a button that copies it. */
export function Code({ text, language, label = "Copy code" }) {
  const name = (language ?? "").trim().split(/\s+/)[0].slice(0, 40);
  return html`<div class="code"><div class="code-head"><span>${visible(name)}</span><${Copy} text=${text} label=${label} /></div>
    <pre tabindex="0"><code dir="ltr">${pieces(text)}</code></pre></div>`;
}

function pieces(text) {
  if (text.length <= CODE_PIECE) return visible(text);
  const found = [];
  for (let start = 0; start < text.length; ) {
    const line = text.indexOf("\n", start + CODE_PIECE);
    const end = line < 0 || line > start + 2 * CODE_PIECE ? start + CODE_PIECE : line + 1;
    found.push(html`<span class="piece">${visible(text.slice(start, end))}</span>`);
    start = end;
  }
  return found;
}

// ---- characters

const DIRECTION = /[\u202a-\u202e\u2066-\u2069]/;
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

/** A text in which characters that change the order of others are shown instead of obeyed. */
export function visible(text) {
  if (!DIRECTION.test(text)) return text;
  return text.split(/([\u202a-\u202e\u2066-\u2069])/).map((piece) =>
    piece in NAMES ? html`<span class="control" title=${NAMES[piece]}>U+${piece.charCodeAt(0).toString(16).toUpperCase()}</span>` : piece,
  );
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–", rarr: "→", larr: "←", times: "×" };

/** Decode the entities that models write; unknown ones stay as they are. */
function entities(text) {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,8}));/gi, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name] ?? whole;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : whole;
  });
}
