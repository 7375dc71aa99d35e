// Reads the inline part of Markdown: emphasis, code, links, images, breaks. Pure, and linear in the length of the text
// whatever it holds: delimiters and brackets are matched on stacks, no pattern ever looks back, and nodes are linked lists,
// so that wrapping a thousand of them costs as much as wrapping one.
// A node is {type, text, href, first, last}; siblings are linked by `next`.

const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const ESCAPABLE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
const WHITESPACE = /\s/;
const MOST_PARENTHESES = 8;
const LONGEST_LABEL = 200;

/** The nodes of a text, as a linked list; `links` are the definitions of references, by label. */
export function parseInline(text, links = {}) {
  return new InlineParser(text, links).parse();
}

/** The text of nodes without their markup. It needs no stack, however deep they are. */
export function plainText(node) {
  const left = [];
  let found = "";
  for (let one = node; one || left.length; ) {
    if (!one) {
      one = left.pop();
      continue;
    }
    if (one.next) left.push(one.next);
    if (one.first) one = one.first;
    else {
      found += one.type === "break" ? "\n" : one.text ?? "";
      one = null;
    }
  }
  return found;
}

class InlineParser {
  constructor(text, links) {
    this.text = text;
    this.links = links;
    this.at = 0;
    this.list = { first: null, last: null };
    this.delimiters = [];
    this.brackets = [];
    this.ticks = null;
    this.plainFrom = 0;
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      const read = READERS[text[this.at]];
      if (!read || !read(this)) this.at += 1;
    }
    this.flush(this.at);
    this.matchEmphasis(0);
    return this.list.first;
  }

  /** Make a node of the plain text before `end`. */
  flush(end) {
    if (end > this.plainFrom) this.add({ type: "text", text: this.text.slice(this.plainFrom, end) });
  }

  /** Add a node for what ends at `end`; the plain text before it becomes one, too. */
  take(node, end) {
    this.flush(this.at);
    this.add(node);
    this.at = this.plainFrom = end;
    return true;
  }

  add(node) {
    node.next = null;
    node.before = this.list.last;
    if (this.list.last) this.list.last.next = node;
    else this.list.first = node;
    this.list.last = node;
  }

  /** Put the nodes after `opener` into a node in its place; they are the last ones of the list. */
  wrapRest(opener, node) {
    node.first = opener.next;
    if (node.first) node.first.before = null;
    node.before = opener.before;
    node.next = null;
    if (opener.before) opener.before.next = node;
    else this.list.first = node;
    this.list.last = node;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.take({ type: "break" }, this.at + 2);
    if (next === undefined || !ESCAPABLE.includes(next)) return false;
    return this.take({ type: "text", text: next }, this.at + 2);
  }

  lineBreak() {
    let end = this.at;
    while (end > this.plainFrom && this.text[end - 1] === " ") end -= 1;
    this.flush(end);
    this.add({ type: "break" });
    this.at += 1;
    while (this.text[this.at] === " ") this.at += 1;
    this.plainFrom = this.at;
    return true;
  }

  /** Code between runs of as many backticks; where each run of a length begins is found once. */
  code() {
    const size = runLength(this.text, this.at, "`");
    this.ticks ??= tickRuns(this.text);
    const runs = this.ticks.get(size);
    while (runs.length && runs.at(-1) <= this.at) runs.pop();
    const end = runs.at(-1);
    if (end === undefined) {
      this.at += size;
      return true;
    }
    let code = this.text.slice(this.at + size, end).replaceAll("\n", " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
    return this.take({ type: "code", text: code }, end + size);
  }

  /** `<https://example.org>` and `<a@example.org>`; anything else in angle brackets is text. */
  angle() {
    let end = this.at + 1;
    while (end < this.text.length && !" \t\n<>".includes(this.text[end])) end += 1;
    if (this.text[end] !== ">") return false;
    const inside = this.text.slice(this.at + 1, end);
    const href = /^(?:https?:\/\/|mailto:)./i.test(inside) ? inside : /^[\w.+-]{1,64}@[\w.-]{1,255}$/.test(inside) ? `mailto:${inside}` : null;
    return href ? this.take({ type: "link", href, first: { type: "text", text: inside, next: null } }, end + 1) : false;
  }

  /** A web address that stands in the text. */
  address(prefix) {
    const { text, at } = this;
    if (!text.startsWith(prefix, at) || (at && /[\p{L}\p{N}_]/u.test(text[at - 1]))) return false;
    let end = at + prefix.length;
    let open = 0;
    let closed = 0;
    for (; end < text.length && !WHITESPACE.test(text[end]) && text[end] !== "<" && text[end] !== "`"; end += 1) {
      if (text[end] === "(") open += 1;
      else if (text[end] === ")") closed += 1;
    }
    for (; end > at; end -= 1) {
      const last = text[end - 1];
      if (last === ")" && closed > open) closed -= 1;
      else if (!"?!.,:;*_~'\"|]".includes(last)) break;
    }
    if (end <= at + prefix.length) return false;
    const found = text.slice(at, end);
    return this.take({ type: "link", href: prefix === "www." ? `http://${found}` : found, first: { type: "text", text: found, next: null } }, end);
  }

  /** A run of `*`, `_` or `~`, which opens or closes emphasis by what is beside it. */
  delimiter() {
    const { text, at } = this;
    const mark = text[at];
    const size = runLength(text, at, mark);
    const before = text[at - 1] ?? " ";
    const after = text[at + size] ?? " ";
    const opens = !WHITESPACE.test(after) && (!PUNCTUATION.test(after) || WHITESPACE.test(before) || PUNCTUATION.test(before));
    const closes = !WHITESPACE.test(before) && (!PUNCTUATION.test(before) || WHITESPACE.test(after) || PUNCTUATION.test(after));
    const node = { type: "text", text: text.slice(at, at + size) };
    this.take(node, at + size);
    if (mark === "~" && size > 2) return true;
    const inWord = mark === "_";
    this.delimiters.push({
      node,
      mark,
      size,
      whole: size,
      opens: opens && !(inWord && closes && !PUNCTUATION.test(before)),
      closes: closes && !(inWord && opens && !PUNCTUATION.test(after)),
    });
    return true;
  }

  openBracket(isImage) {
    const start = this.at;
    const size = isImage ? 2 : 1;
    const node = { type: "text", text: isImage ? "![" : "[" };
    this.take(node, start + size);
    this.brackets.push({ node, isImage, delimiters: this.delimiters.length, start: start + size });
    return true;
  }

  closeBracket() {
    const opener = this.brackets.pop();
    if (!opener) return false;
    const label = this.at - opener.start <= LONGEST_LABEL ? this.text.slice(opener.start, this.at) : "";
    const target = readTarget(this.text, this.at + 1) ?? this.reference(label);
    if (!target) return false;
    this.flush(this.at);
    this.matchEmphasis(opener.delimiters);
    this.wrapRest(opener.node, { type: opener.isImage ? "image" : "link", href: target.href });
    if (!opener.isImage) this.brackets.length = 0; // a link holds no other link
    this.at = this.plainFrom = target.end;
    return true;
  }

  /** `[text][label]`, `[label][]` and `[label]`, if the label is defined. */
  reference(label) {
    let end = this.at + 1;
    if (this.text[end] === "[") {
      const close = this.text.slice(end + 1, end + 2 + LONGEST_LABEL).indexOf("]");
      if (close > 0) label = this.text.slice(end + 1, end + 1 + close);
      if (close >= 0) end += close + 2;
    }
    const href = this.links[normalLabel(label)];
    return href === undefined ? null : { href, end };
  }

  /** Match closing delimiters with opening ones, from the delimiter of this index on. */
  matchEmphasis(bottom) {
    const { delimiters } = this;
    const lowest = new Map(); // below which no opener of a kind is: each is looked for once
    const open = [];
    for (const closer of delimiters.splice(bottom)) {
      while (closer.closes && closer.size) {
        const kind = `${closer.mark}${closer.opens}${closer.whole % 3}`;
        const floor = lowest.get(kind) ?? 0;
        let index = open.length - 1;
        while (index >= floor && !fits(open[index], closer)) index -= 1;
        if (index < floor) {
          lowest.set(kind, open.length);
          break;
        }
        open.length = index + 1;
        for (const [name, depth] of lowest) if (depth > open.length) lowest.set(name, open.length);
        this.wrapBetween(open[index], closer);
        if (!open[index].size) open.pop();
      }
      if (closer.opens && closer.size) open.push(closer);
    }
  }

  /** Put what is between two delimiters into a node, and take one or two characters off each of them. */
  wrapBetween(opener, closer) {
    const used = opener.mark === "~" ? opener.size : opener.size > 1 && closer.size > 1 ? 2 : 1;
    const node = { type: opener.mark === "~" ? "del" : used === 2 ? "strong" : "em", first: opener.node.next, before: opener.node, next: closer.node };
    if (node.first === closer.node) node.first = null;
    else {
      node.first.before = null;
      closer.node.before.next = null;
    }
    opener.node.next = closer.node.before = node;
    for (const one of [opener, closer]) {
      one.size -= used;
      one.node.text = one.node.text.slice(used);
    }
  }
}

/** Whether a delimiter opens what another closes; of runs that do both, the lengths must not add up to a multiple of three. */
function fits(opener, closer) {
  if (opener.mark !== closer.mark) return false;
  if (opener.mark === "~") return opener.size === closer.size;
  return !((opener.closes || closer.opens) && (opener.whole + closer.whole) % 3 === 0 && (opener.whole % 3 || closer.whole % 3));
}

const READERS = {
  "\\": (parser) => parser.escape(),
  "\n": (parser) => parser.lineBreak(),
  "`": (parser) => parser.code(),
  "<": (parser) => parser.angle(),
  "*": (parser) => parser.delimiter(),
  _: (parser) => parser.delimiter(),
  "~": (parser) => parser.delimiter(),
  "[": (parser) => parser.openBracket(false),
  "!": (parser) => parser.text[parser.at + 1] === "[" && parser.openBracket(true),
  "]": (parser) => parser.closeBracket(),
  h: (parser) => parser.address("https://") || parser.address("http://"),
  w: (parser) => parser.address("www."),
};

function runLength(text, at, mark) {
  let end = at;
  while (text[end] === mark) end += 1;
  return end - at;
}

/** Where runs of backticks begin, by their length, the last first. */
function tickRuns(text) {
  const runs = new Map();
  for (let at = text.indexOf("`"); at >= 0; ) {
    const size = runLength(text, at, "`");
    if (!runs.has(size)) runs.set(size, []);
    runs.get(size).push(at);
    at = text.indexOf("`", at + size);
  }
  for (const found of runs.values()) found.reverse();
  return runs;
}

/** The `(address "title")` of a link that begins here, or null. */
function readTarget(text, at) {
  if (text[at] !== "(") return null;
  let start = skipSpace(text, at + 1);
  let end = start;
  if (text[start] === "<") {
    start += 1;
    for (end = start; end < text.length && !"<>\n".includes(text[end]); ) end += text[end] === "\\" ? 2 : 1;
    if (text[end] !== ">") return null;
  } else {
    let depth = 0;
    for (; end < text.length && !WHITESPACE.test(text[end]); end += text[end] === "\\" ? 2 : 1) {
      if (text[end] === "(" && ++depth > MOST_PARENTHESES) return null;
      if (text[end] === ")" && --depth < 0) break;
    }
  }
  const href = text.slice(start, end).replace(/\\([!-/:-@[-`{-~])/g, "$1");
  let after = skipSpace(text, text[end] === ">" ? end + 1 : end);
  const quote = text[after];
  if (quote === '"' || quote === "'") {
    for (after += 1; after < text.length && text[after] !== quote; ) after += text[after] === "\\" ? 2 : 1;
    after = skipSpace(text, after + 1);
  }
  return text[after] === ")" ? { href, end: after + 1 } : null;
}

function skipSpace(text, at) {
  while (text[at] === " " || text[at] === "\n" || text[at] === "\t") at += 1;
  return at;
}

/** A label of a reference as it is compared. */
export const normalLabel = (label) => label.trim().replace(/\s+/g, " ").toLowerCase();
