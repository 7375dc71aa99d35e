// Reads the blocks of Markdown as models write it (CommonMark with tables, task lists and deleted text of GitHub). HTML is
// text. Pure, and linear in the length of the text: each line is looked at once for each block that it is nested in, and
// the nesting is bounded.
import { normalLabel } from "./markdown_inline.js";

/** Blocks within blocks; what is nested deeper is plain text. */
export const DEEPEST = 16;
const MOST_CELLS = 200;

/** The blocks of a text. Each has a type and `end`, where the text after it begins; `links` gets the definitions. */
export function parseBlocks(text, links) {
  const lines = text.split("\n");
  const blocks = new BlockParser(lines, links, 0).parse();
  let at = 0;
  let offset = 0;
  for (const block of blocks) {
    for (; at < block.line; at += 1) offset += lines[at].length + 1;
    block.end = Math.min(offset, text.length);
  }
  return blocks;
}

class BlockParser {
  constructor(lines, links, depth) {
    this.lines = lines;
    this.links = links;
    this.depth = depth;
    this.at = 0;
  }

  /** All blocks; the `line` of each is the one after it and the blank lines that follow. */
  parse() {
    const found = [];
    this.skipBlank();
    while (this.at < this.lines.length) {
      const block = this.block();
      this.skipBlank();
      block.line = this.at;
      found.push(block);
    }
    return found;
  }

  skipBlank() {
    while (this.at < this.lines.length && isBlank(this.lines[this.at])) this.at += 1;
  }

  block() {
    const line = this.lines[this.at];
    const indent = indentOf(line);
    if (indent >= 4) return this.indented();
    const fence = fenceOf(line, indent);
    if (fence) return this.fenced(fence, indent);
    const heading = headingOf(line, indent);
    if (heading) return this.take(1, heading);
    if (isRule(line)) return this.take(1, { type: "rule" });
    if (this.depth < DEEPEST && line[indent] === ">") return this.quote();
    const marker = this.depth < DEEPEST ? markerOf(line, indent) : null;
    if (marker) return this.list(marker);
    const definition = definitionOf(line, indent);
    if (definition) {
      this.links[definition.label] ??= definition.href;
      return this.take(1, { type: "definition" });
    }
    return this.table() ?? this.paragraph();
  }

  take(count, block) {
    this.at += count;
    return block;
  }

  inside(lines) {
    return new BlockParser(lines, this.links, this.depth + 1).parse();
  }

  indented() {
    const code = [];
    for (; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      if (!isBlank(line) && indentOf(line) < 4) break;
      code.push(unindent(line, 4));
    }
    while (isBlank(code.at(-1))) code.pop();
    return { type: "code", text: code.join("\n"), language: "" };
  }

  fenced({ mark, size, language }, indent) {
    const start = ++this.at;
    while (this.at < this.lines.length && !closesFence(this.lines[this.at], mark, size)) this.at += 1;
    const code = this.lines.slice(start, this.at).map((line) => unindent(line, indent));
    const closed = this.at < this.lines.length;
    if (closed) this.at += 1;
    return { type: "code", text: code.join("\n"), language, isOpen: !closed };
  }

  quote() {
    const inner = [];
    for (; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      const indent = indentOf(line);
      if (indent < 4 && line[indent] === ">") inner.push(line.slice(indent + (line[indent + 1] === " " ? 2 : 1)));
      else if (isBlank(line) || isBlank(inner.at(-1)) || this.interrupts(line)) break;
      else inner.push(line);
    }
    return { type: "quote", blocks: this.inside(inner) };
  }

  list(first) {
    const items = [];
    for (let marker = first; marker; ) {
      const inner = [this.lines[this.at].slice(Math.min(marker.content, this.lines[this.at].length))];
      this.at += 1;
      marker = this.item(marker, inner);
      while (inner.length > 1 && isBlank(inner.at(-1))) inner.pop();
      items.push(this.itemOf(inner));
    }
    return { type: "list", ordered: first.ordered, start: first.start, items };
  }

  /** Collect the lines of an item; returns the marker of the next item, if one follows. */
  item(marker, inner) {
    for (; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      if (isBlank(line)) {
        inner.push("");
        continue;
      }
      const indent = indentOf(line);
      if (indent >= marker.content) {
        inner.push(unindent(line, marker.content));
        continue;
      }
      const next = isRule(line) ? null : markerOf(line, indent);
      // A list that is indented less than the text above it, by two spaces at least, still belongs to the item.
      if (next && indent >= marker.indent + 2) inner.push(unindent(line, indent));
      else if (next && next.mark === marker.mark) return next;
      else if (next || isBlank(inner.at(-1)) || this.interrupts(line)) break;
      else inner.push(line.trimStart());
    }
    return null;
  }

  itemOf(inner) {
    const task = /^\[([ xX])\][ \t]/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(4);
    return { checked: task ? task[1] !== " " : null, blocks: this.inside(inner) };
  }

  table() {
    const header = this.lines[this.at];
    const rule = this.lines[this.at + 1];
    if (!header.includes("|") || rule === undefined || !/^[ \t|:-]+$/.test(rule) || !rule.includes("-")) return null;
    const cells = cellsOf(header);
    const marks = cellsOf(rule);
    if (cells.length !== marks.length || cells.length > MOST_CELLS || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
    const align = marks.map((mark) => (mark.startsWith(":") && mark.endsWith(":") ? "center" : mark.endsWith(":") ? "right" : ""));
    const rows = [];
    for (this.at += 2; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      if (isBlank(line) || this.interrupts(line)) break;
      rows.push(cellsOf(line).slice(0, align.length)); // what is missing is not made up: a short row costs little
    }
    return { type: "table", align, header: cells, rows };
  }

  paragraph() {
    const text = [this.lines[this.at].trim()];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      if (isBlank(line)) break;
      const under = indentOf(line) < 4 ? /^(=+|-+)$/.exec(line.trim()) : null;
      if (under) return this.take(1, { type: "heading", level: under[1][0] === "=" ? 1 : 2, text: text.join("\n") });
      if (this.interrupts(line)) break;
      text.push(line.trimStart());
    }
    return { type: "paragraph", text: text.join("\n").trimEnd() };
  }

  /** Whether a line ends the paragraph above it. */
  interrupts(line) {
    const indent = indentOf(line);
    if (indent >= 4) return false;
    if (fenceOf(line, indent) || headingOf(line, indent) || isRule(line) || line[indent] === ">") return this.depth < DEEPEST || line[indent] !== ">";
    const marker = markerOf(line, indent);
    return Boolean(marker) && this.depth < DEEPEST && !marker.isEmpty && (!marker.ordered || marker.start === 1);
  }
}

const isBlank = (line) => line !== undefined && !line.trim();

/** How far a line is indented; a tab goes to the next multiple of four. */
function indentOf(line) {
  let width = 0;
  for (let at = 0; line[at] === " " || line[at] === "\t"; at += 1) {
    if (line[at] === "\t") return Math.max(4, width + 4 - (width % 4));
    width += 1;
  }
  return width;
}

function unindent(line, width) {
  let at = 0;
  for (; at < width && line[at] === " "; ) at += 1;
  return line[at] === "\t" && at < width ? line.slice(at + 1) : line.slice(at);
}

function fenceOf(line, indent) {
  const mark = line[indent];
  if (mark !== "`" && mark !== "~") return null;
  let end = indent;
  while (line[end] === mark) end += 1;
  const language = line.slice(end).trim();
  if (end - indent < 3 || (mark === "`" && language.includes("`"))) return null;
  return { mark, size: end - indent, language };
}

function closesFence(line, mark, size) {
  const indent = indentOf(line);
  const rest = line.slice(indent).trimEnd();
  if (indent >= 4 || rest.length < size) return false;
  for (const one of rest) if (one !== mark) return false;
  return true;
}

function headingOf(line, indent) {
  let end = indent;
  while (line[end] === "#") end += 1;
  const level = end - indent;
  if (!level || level > 6 || (line[end] !== undefined && line[end] !== " " && line[end] !== "\t")) return null;
  let text = line.slice(end).trim();
  let closing = text.length;
  while (text[closing - 1] === "#") closing -= 1;
  if (closing === 0 || text[closing - 1] === " ") text = text.slice(0, closing).trim();
  return { type: "heading", level, text };
}

function isRule(line) {
  const mark = line.trimStart()[0];
  if ((mark !== "-" && mark !== "*" && mark !== "_") || indentOf(line) >= 4) return false;
  let count = 0;
  for (const one of line) {
    if (one === mark) count += 1;
    else if (one !== " " && one !== "\t") return false;
  }
  return count >= 3;
}

/** The marker of a list item: its kind, and where its text begins. */
function markerOf(line, indent) {
  const found = /^(?:[-*+]|(\d{1,9})[.)])/.exec(line.slice(indent, indent + 10));
  if (!found) return null;
  const end = indent + found[0].length;
  const next = line[end];
  if (next !== undefined && next !== " " && next !== "\t") return null;
  let content = end;
  while (line[content] === " " || line[content] === "\t") content += 1;
  const isEmpty = content >= line.length;
  if (isEmpty || content - end > 4) content = end + 1;
  return { mark: found[0].at(-1), ordered: found[1] !== undefined, start: Number(found[1] ?? 1), indent, content, isEmpty };
}

function definitionOf(line, indent) {
  if (line[indent] !== "[") return null;
  const found = /^\[([^[\]]{1,200})\]:[ \t]{0,9}(\S{1,2000})(?:[ \t]{1,9}(?:"[^"]*"|'[^']*'))?[ \t]{0,9}$/.exec(line.slice(indent));
  return found && { label: normalLabel(found[1]), href: found[2].replace(/^<(.*)>$/, "$1") };
}

/** The cells of a row: split at bars that are not escaped. */
function cellsOf(line) {
  const cells = [];
  const row = line.trim();
  let from = row[0] === "|" ? 1 : 0;
  for (let at = from; at < row.length && cells.length <= MOST_CELLS; at += 1) {
    if (row[at] === "\\") at += 1;
    else if (row[at] === "|") {
      cells.push(row.slice(from, at));
      from = at + 1;
    }
  }
  if (from < row.length && cells.length <= MOST_CELLS) cells.push(row.slice(from));
  return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}
