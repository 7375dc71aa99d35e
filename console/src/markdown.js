// Shows Markdown as virtual nodes. No markup of an answer is ever interpreted: HTML stays text.
// A growing answer costs the same per piece however long it is: only its last, open block is read and rendered again.
import { Code } from "./code.js";
import { parseBlocks } from "./markdown_blocks.js";
import { parseInline, plainText } from "./markdown_inline.js";
import { html } from "./ui.js";

/** Characters of a block; one of twice that length goes on in another. A list, a table or a listing is cut between its lines. */
const LONGEST_BLOCK = 4096;
const LONGEST_OF_LINES = 1024;
/** Characters of the head of a table that is repeated where the table is cut; with a longer one the rest is plain lines. */
const LONGEST_HEAD = 300;
const OF_LINES = new Set(["list", "table", "code"]);
/** Closed blocks that are rendered as one: an unchanged group costs one comparison. */
const GROUP = 32;
/** Emphasis within emphasis; deeper inside it is plain text. */
const DEEPEST = 16;

/** The blocks of a text that grows by `append`; those that are complete never change again. */
export class MarkdownBlocks {
  #open = "";
  #links = Object.create(null);

  constructor(text = "") {
    this.text = "";
    this.groups = [];
    this.closed = [];
    this.tail = [];
    if (text) this.append(text);
  }

  append(more) {
    for (let start = 0; start < more.length; start += LONGEST_BLOCK) this.#append(more.slice(start, start + LONGEST_BLOCK));
  }

  #append(more) {
    this.text += more;
    this.#open += more.replaceAll("\r", "");
    let blocks = this.#read();
    for (let size; this.#open.length > 2 * (size = longest(blocks)); blocks = this.#read()) this.#closePiece(size);
    // The last block may go on, and so may the one before it while the last line is unfinished: "1" becomes "1. one".
    const unfinished = blocks.length > 1 && !this.#open.slice(blocks.at(-2).end).includes("\n") ? 2 : 1;
    this.tail = blocks.splice(-unfinished);
    if (blocks.length) this.#close(blocks);
  }

  #read() {
    return parseBlocks(this.#open, this.#links);
  }

  /** Close the beginning of a text that is too long to be read at once, up to the end of a line. */
  #closePiece(size) {
    const piece = this.#open.slice(0, pieceSize(this.#open, size));
    const blocks = parseBlocks(piece, this.#links);
    if (blocks.length > 1) this.#close(blocks.slice(0, -1));
    else {
      this.#push(blocks);
      this.#open = reopening(blocks[0], piece) + this.#open.slice(piece.length);
    }
  }

  #close(blocks) {
    this.#push(blocks);
    this.#open = this.#open.slice(blocks.at(-1).end);
  }

  #push(blocks) {
    const links = this.#links;
    for (const block of blocks) {
      if (this.closed.length === GROUP) {
        this.groups.push(html`<div class="blocks" key=${`group-${this.groups.length}`}>${this.closed.map((one) => one.view)}</div>`);
        this.closed = [];
      }
      this.closed.push({ view: renderBlock(block, links) });
    }
  }

  /** The nodes of all blocks; what is closed is rendered once. */
  render() {
    return [...this.groups, ...this.closed.map((one) => one.view), ...this.tail.map((block) => renderBlock(block, this.#links))];
  }
}

/** The end of a line near the longest size of a block, best one after which a line begins that belongs to no other. */
function pieceSize(text, longest) {
  for (let at = longest; at > longest / 2; at -= 1) if (text[at - 1] === "\n" && !" \t\n".includes(text[at])) return at;
  const line = text.lastIndexOf("\n", LONGEST_BLOCK);
  return line > longest / 2 ? line + 1 : LONGEST_BLOCK;
}

const longest = (blocks) => (OF_LINES.has(blocks[0]?.type) ? LONGEST_OF_LINES : LONGEST_BLOCK);

/** What must stand before the rest of a listing or a table, so that it goes on. */
function reopening(block, piece) {
  const lines = (count) => `${piece.trimStart().split("\n", count).join("\n")}\n`;
  if (block?.type === "code" && block.isOpen) return lines(1);
  const head = block?.type === "table" && piece.endsWith("\n") ? lines(2) : "";
  return head.length > LONGEST_HEAD ? "" : head;
}

function renderBlock(block, links) {
  switch (block.type) {
    case "rule":
      return html`<hr />`;
    case "heading":
      // Below the page's own heading all are of one level: an answer need not begin with its highest.
      return html`<h2 class=${`h${block.level}`}>${inline(block.text, links)}</h2>`;
    case "code":
      return html`<${Code} text=${block.text} language=${block.language} />`;
    case "quote":
      return html`<blockquote>${block.blocks.map((one) => renderBlock(one, links))}</blockquote>`;
    case "list":
      return html`<${block.ordered ? "ol" : "ul"} ...${block.ordered ? { start: block.start } : {}}>${block.items.map((item) => renderItem(item, links))}<//>`;
    case "table":
      return renderTable(block, links);
    case "paragraph":
      return html`<p>${inline(block.text, links)}</p>`;
    default:
      return null;
  }
}

function renderItem({ checked, blocks }, links) {
  const content = blocks.map((one) => renderBlock(one, links));
  if (checked === null) return html`<li>${content}</li>`;
  return html`<li class="task"><input type="checkbox" checked=${checked} disabled aria-label=${checked ? "done" : "to do"} /> <div>${content}</div></li>`;
}

function renderTable({ align, header, rows }, links) {
  const cell = (text, at, tag) => html`<${tag} class=${align[at]}>${inline(text, links)}<//>`;
  return html`<div class="table-scroll" role="region" aria-label="Table" tabindex="0"><table>
    <thead><tr>${header.map((text, at) => cell(text, at, "th"))}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((text, at) => cell(text, at, "td"))}</tr>`)}</tbody>
  </table></div>`;
}

const inline = (text, links) => nodes(parseInline(text, links), 0);

function nodes(first, depth) {
  if (depth > DEEPEST) return plainText(first);
  const found = [];
  let text = "";
  for (let node = first; node; node = node.next) {
    // Texts beside each other, such as delimiters that match nothing, are one: thousands of text nodes would be slow.
    if (node.type === "text") text += node.text;
    else found.push(entities(text), element(node, depth + 1)), (text = "");
  }
  found.push(entities(text));
  return found.filter(Boolean);
}

function element(node, depth) {
  switch (node.type) {
    case "strong":
      return html`<strong>${nodes(node.first, depth)}</strong>`;
    case "em":
      return html`<em>${nodes(node.first, depth)}</em>`;
    case "del":
      return html`<del>${nodes(node.first, depth)}</del>`;
    case "code":
      return html`<code>${node.text}</code>`;
    case "break":
      return html`<br />`;
    case "link":
      return link(node.href, nodes(node.first, depth));
    case "image":
      return image(node.href, plainText(node.first) || "image");
    default:
      return null;
  }
}

const SAFE_LINK = /^(?:https?|mailto):/i;

/** A link that leaves the page; one that would run a script or read a file becomes its text. */
function link(target, children) {
  if (!SAFE_LINK.test(target)) return html`<span>${children}</span>`;
  return html`<a href=${target} target="_blank" rel="noopener noreferrer nofollow">${children}</a>`;
}

/** An image that is in the text itself; others are links, because loading them would tell their server of the reader. */
function image(target, text) {
  if (isEmbeddedImage(target)) return html`<img src=${target} alt=${text} loading="lazy" />`;
  return link(target, [text]);
}

const IMAGE_TYPE = /^data:image\/(?:png|jpeg|gif|webp|avif);base64,/i;
export const isEmbeddedImage = (url) => IMAGE_TYPE.test(url) && /^[a-z0-9+/=\s]+$/i.test(url.slice(url.indexOf(",") + 1));

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–", rarr: "→", larr: "←", times: "×" };

/** Decode the entities that models write; unknown ones stay as they are. */
function entities(text) {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,8}));/gi, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name] ?? whole;
    const number = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return number > 0 && number <= 0x10ffff && !(number >= 0xd800 && number < 0xe000) ? String.fromCodePoint(number) : whole;
  });
}
