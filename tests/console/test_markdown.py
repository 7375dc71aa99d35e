"""How the console reads Markdown: what models write, in time that grows with the length of the text alone."""

import json
from pathlib import Path

from tests.node import npm_ci, run_node

SOURCES = Path(__file__).parents[2] / "console" / "src"

_SHOW = """
import { parseBlocks } from "./markdown_blocks.js";
import { parseInline } from "./markdown_inline.js";
const escape = (text) => text.replaceAll("<", "&lt;");
const nodes = (first) => { let all = ""; for (let one = first; one; one = one.next) all += node(one); return all; };
const node = ({ type, text, href, first }) =>
  type === "text" ? escape(text) : type === "break" ? "<br>"
  : `<${type}${href === undefined ? "" : ` ${href}`}>${text === undefined ? nodes(first) : escape(text)}</${type}>`;
const show = (links) => (block) => {
  const inline = (text) => nodes(parseInline(text, links));
  const row = (cells) => cells.map(inline).join("|");
  switch (block.type) {
    case "paragraph": return `<p>${inline(block.text)}</p>`;
    case "heading": return `<h${block.level}>${inline(block.text)}</h${block.level}>`;
    case "code": return `<pre ${block.language}>${escape(block.text)}</pre>`;
    case "quote": return `<quote>${block.blocks.map(show(links)).join("")}</quote>`;
    case "list": return `<${block.ordered ? `ol ${block.start}` : "ul"}>${block.items.map(({ checked, blocks }) =>
      `<li${checked === null ? "" : ` ${checked}`}>${blocks.map(show(links)).join("")}</li>`).join("")}</list>`;
    case "table": return `<table ${block.align.join(",")}>${[block.header, ...block.rows].map(row).join("/")}</table>`;
    default: return `<${block.type}>`;
  }
};
const shown = (text) => { const links = {}; return parseBlocks(text, links).map(show(links)).join(""); };
"""

CASES = {
    "**bold** *em* ~~gone~~ `a*b*`": "<p><strong>bold</strong> <em>em</em> <del>gone</del> <code>a*b*</code></p>",
    "***both*** snake_case_name 2*3*4": "<p><em><strong>both</strong></em> snake_case_name 2<em>3</em>4</p>",
    "**a *b* c** and * alone": "<p><strong>a <em>b</em> c</strong> and * alone</p>",
    "one  \ntwo\\\nthree": "<p>one<br>two<br>three</p>",
    "# One #\nTwo\n===\n### \nx": "<h1>One</h1><h1>Two</h1><h3></h3><p>x</p>",
    "1. a\n2. two\n\n   more\n10. ten": "<ol 1><li><p>a</p></li><li><p>two</p><p>more</p></li><li><p>ten</p></li></list>",
    "3) three": "<ol 3><li><p>three</p></li></list>",
    "- a\n  - b\n    - c\n- d": (
        "<ul><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></list></li></list></li><li><p>d</p></li></list>"
    ),
    "1. a\n  - b\n2. c": "<ol 1><li><p>a</p><ul><li><p>b</p></li></list></li><li><p>c</p></li></list>",
    "- [x] done\n- [ ] open": "<ul><li true><p>done</p></li><li false><p>open</p></li></list>",
    "text\n- a": "<p>text</p><ul><li><p>a</p></li></list>",
    "In 1999\n2000. was": "<p>In 1999<br>2000. was</p>",
    "- a\n\n```py\n# b\n```": "<ul><li><p>a</p></li></list><pre py># b</pre>",
    "- a\n  ```\n  b\n  ```": "<ul><li><p>a</p><pre >b</pre></li></list>",
    "> a\nb\n> > c": "<quote><p>a<br>b</p><quote><p>c</p></quote></quote>",
    "~~~js\n```\n~~~": "<pre js>```</pre>",
    "````\n```\n````": "<pre >```</pre>",
    "```open\nx": "<pre open>x</pre>",
    "    code\n\n    more\nx": "<pre >code\n\nmore</pre><p>x</p>",
    "---\n***\n- - -": "<rule><rule><rule>",
    "|a|b|\n|:-:|--:|\n|`x\\|y`|2|3|\n|1|": "<table center,right>a|b/<code>x|y</code>|2/1</table>",
    "a | b\n--- | ---\nc | d": "<table ,>a|b/c|d</table>",
    "a|b\n|-|": "<p>a|b<br>|-|</p>",
    "[a *b*](http://c 'd') ![e](f)": "<p><link http://c>a <em>b</em></link> <image f>e</image></p>",
    "[a](<b c>) [x]() [no](a b)": "<p><link b c>a</link> <link >x</link> [no](a b)</p>",
    "[a](b(c)d) [[q](r)]": "<p><link b(c)d>a</link> [<link r>q</link>]</p>",
    "see https://a.b/c_(d)). www.e.f, <mailto:g@h.i>": (
        "<p>see <link https://a.b/c_(d)>https://a.b/c_(d)</link>). "
        "<link http://www.e.f>www.e.f</link>, <link mailto:g@h.i>mailto:g@h.i</link></p>"
    ),
    "[1]: http://x\n\n[one][1], [1] and [two]": (
        "<definition><p><link http://x>one</link>, <link http://x>1</link> and [two]</p>"
    ),
    "<b>x</b> <script>": "<p>&lt;b>x&lt;/b> &lt;script></p>",
    "\\*a\\* \\# `` ` ``": "<p>*a* # <code>`</code></p>",
    "": "",
}


def test_what_models_write_is_read() -> None:
    script = f"{_SHOW}\nconsole.log(JSON.stringify({json.dumps(list(CASES))}.map(shown)));"
    shown = json.loads(run_node("--input-type=module", "-e", script, cwd=SOURCES))
    assert dict(zip(CASES, shown, strict=True)) == CASES


HOSTILE = [
    *(
        "*a ",
        "**a ",
        "_a_",
        "*a **b ",
        "a*b_c**d__",
        "~~a",
        "~a ",
        "*_~`",
        "[",
        "![",
        "[a](",
        "[a](<b",
        '[a](b "',
        "[a][",
    ),
    *(
        "]",
        "`a``b```c",
        "<a ",
        "<!--",
        "http://a.",
        "www.",
        "\\",
        "&amp;",
        "> ",
        ">",
        "- ",
        "- a\n",
        "- a\n\n",
        "1. a\n",
    ),
    *(
        "|a|b|\n|-|-|\n",
        "|",
        "|a\n|-\n",
        "[a]: b\n",
        "[a]:\n",
        "a\n=\n",
        "```\n",
        "~~~",
        "    a\n",
        "#",
        "a  \n",
        "* * ",
    ),
    *("\t", " ", "\n", "  - a\n", "> - ", "1", "x", "\u202e", "*[`<_~!"),
]

HOSTILE_PAIRS = [("*a ", "b_ "), ("a**b", "c* "), ("[", "]"), ("[a](b", ")"), ("![[]()", ""), ("`a", "``")]
"""Those whose ends come after all of their beginnings."""

_GROWTH = """
const time = (text) => { const start = process.cpuUsage(); shown(text);
  const { user, system } = process.cpuUsage(start); return user + system; };
const best = (text) => Math.min(time(text), time(text), time(text));
const slow = [];
for (const [unit, end] of UNITS) {
  const make = (size) => unit.repeat(Math.ceil(size / unit.length)) + end.repeat(Math.ceil(size / unit.length));
  shown(make(4000));
  const small = best(make(8000)), large = best(make(64_000));
  if (large > 24 * small + 20_000) slow.push(`${unit}: ${small} and ${large} µs`);
}
console.log(JSON.stringify(slow));
"""


def test_no_text_takes_more_time_than_its_length_explains() -> None:
    """Eight times the text may take 24 times the processor time; what grows with the square takes 64 times."""
    units = [*((one, "") for one in HOSTILE), *HOSTILE_PAIRS]
    script = f"{_SHOW}\nconst UNITS = {json.dumps(units)};\n{_GROWTH}"
    assert json.loads(run_node("--input-type=module", "-e", script, cwd=SOURCES)) == []


_APPENDING = """
import { MarkdownBlocks } from "./markdown.js";
const time = (text) => { const start = process.cpuUsage(); const blocks = new MarkdownBlocks();
  for (let at = 0; at < text.length; at += 200) { blocks.append(text.slice(at, at + 200)); blocks.render(); }
  const { user, system } = process.cpuUsage(start); return user + system; };
const slow = [];
for (const unit of UNITS) {
  const make = (size) => unit.repeat(Math.ceil(size / unit.length));
  time(make(4000));
  const small = Math.min(time(make(4000)), time(make(4000))), large = time(make(32_000));
  if (large > 24 * small + 50_000) slow.push(`${unit}: ${small} and ${large} µs`);
}
console.log(JSON.stringify(slow));
"""


def test_a_piece_of_an_answer_costs_the_same_however_long_the_answer_has_become() -> None:
    npm_ci(SOURCES.parent)
    units = ["a\n\n", "- a\n", "word ", "|a|b|\n|-|-|\n", "```\ncode\n```\n", "> a\n", "*a* "]
    script = f"const UNITS = {json.dumps(units)};\n{_APPENDING}"
    assert json.loads(run_node("--input-type=module", "-e", script, cwd=SOURCES)) == []


def test_deep_nesting_becomes_plain_text() -> None:
    quotes, lists, emphasis = "> " * 5000 + "a", "- " * 5000 + "a", "*a " * 5000 + "b*" * 5000
    script = f"""{_SHOW}
    import {{ plainText }} from "./markdown_inline.js";
    const [quotes, lists, emphasis] = {json.dumps([quotes, lists, emphasis])};
    console.log(JSON.stringify([shown(quotes).length, shown(lists).length, plainText(parseInline(emphasis))]));"""
    in_quotes, in_lists, plain = json.loads(run_node("--input-type=module", "-e", script, cwd=SOURCES))
    assert 10_000 < in_quotes < 11_000
    assert 10_000 < in_lists < 11_000
    assert plain == "a " * 5000 + "b" * 5000
