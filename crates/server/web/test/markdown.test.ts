import assert from "node:assert/strict";
import { test } from "node:test";
import type { Formatted } from "../src/text/formatted.ts";
import { format, LONGEST } from "../src/text/markdown.ts";

const DEPTH = 16;

function html({ blocks }: Formatted): string[] {
  return blocks.map((block) => ("html" in block ? block.html.trim() : `PLAIN ${block.plain}`));
}

test("blocks are formatted one by one", () => {
  const found = format("# One\n\nTwo *three*\nfour\n\n> - five\n\n<b>six</b>\n", { depth: DEPTH });
  assert.deepEqual(html(found), [
    "<h1>One</h1>",
    "<p>Two <em>three</em>\nfour</p>",
    "<blockquote>\n<ul>\n<li>five</li>\n</ul>\n</blockquote>",
    "<p>&lt;b&gt;six&lt;/b&gt;</p>",
  ]);
  assert.equal(found.isCut, false);
});

test("links by reference are found wherever their target stands", () => {
  const texts = ["See [one] and [two][1].", "See [one] and [two][1].\n\n[one]: https://a.example\n[1]: https://b.example"];
  assert.deepEqual(texts.map((text) => html(format(text, { depth: DEPTH }))), [
    ["<p>See [one] and [two][1].</p>"],
    ['<p>See <a href="https://a.example">one</a> and <a href="https://b.example">two</a>.</p>'],
  ]);
});

test("what is nested too deeply stays plain, and the rest does not", () => {
  const quotes = format(`*a*\n\n${">".repeat(2000)} deep\n\n*b*`, { depth: DEPTH });
  assert.equal(quotes.isCut, true);
  assert.deepEqual(html(quotes), ["<p><em>a</em></p>", `PLAIN ${">".repeat(2000)} deep`, "<p><em>b</em></p>"]);

  const lists = `${"- ".repeat(2000)}a`;
  assert.deepEqual(html(format(lists, { depth: DEPTH })), [`PLAIN ${lists}`]);
  let words = "x";
  for (let n = 0; n < 100; n += 1) words = n % 2 ? `*a ${words} b*` : `**a ${words} b**`;
  assert.deepEqual(html(format(words, { depth: DEPTH })), [`PLAIN ${words}`]);
  assert.equal(format(words, { depth: 200 }).isCut, false);
  assert.equal(format(`${">".repeat(DEPTH - 1)} fine`, { depth: DEPTH }).isCut, false);
});

test("long texts stay plain", () => {
  const long = "a".repeat(LONGEST + 1);
  assert.deepEqual(format(long, { depth: DEPTH }), { blocks: [{ plain: long }], isCut: true, needsMath: false });
  const many = format("a\n\n".repeat(4000), { depth: DEPTH });
  assert.deepEqual([many.blocks.length, many.isCut], [3001, true]);
  assert.deepEqual(many.blocks.at(-1), { plain: Array(1000).fill("a").join("\n") });
});

test("a block that got stuck stays plain, and each is told of before it is read", () => {
  const steps: number[] = [];
  const found = format("*x1*\n\n*x2*\n\n*x3*", { depth: DEPTH, plain: [1], step: (block) => steps.push(block) });
  assert.deepEqual(html(found), ["<p><em>x1</em></p>", "PLAIN *x2*", "<p><em>x3</em></p>"]);
  assert.deepEqual([found.isCut, steps], [true, [-1, 0, 1, 2]]);
  // What was formatted before is not read again.
  steps.length = 0;
  format("*x1*\n\n*x3*\n\n*x4*", { depth: DEPTH, step: (block) => steps.push(block) });
  assert.deepEqual(steps, [-1, 2]);
});

const note = (n: number) =>
  `<sup><button type="button" class="note" data-note="${n}" aria-label="Footnote ${n}">${n}</button></sup>`;
const back = (n: number) =>
  `<button type="button" class="note" data-note-of="${n}" aria-label="Back to the text">↩</button>`;

test("footnotes are numbered as they are referred to, and listed at the end", () => {
  const text = "B[^b] and a[^a], b again[^b], `[^a]` and [^none].\n\n[^a]: Of *a*.\n[^b]: Of b,\n    in two lines.\n\n    And more[^c].\n\nMore.\n\n[^c]: c\n[^d]: d";
  const found = html(format(text, { depth: DEPTH }));
  assert.equal(found[0], `<p>B${note(1)} and a${note(2)}, b again${note(1)}, <code>[^a]</code> and [^none].</p>`);
  assert.equal(found[1], "<p>More.</p>");
  const item = (n: number, inner: string, end = back(n)) => `<li tabindex="-1" data-note-text="${n}">${inner}\n${end}</li>`;
  assert.equal(
    found[2],
    `<section class="notes" aria-label="Footnotes"><ol>${item(1, `<p>Of b,\nin two lines.</p>\n<p>And more${note(3)}.</p>`)}` +
      `${item(2, "<p>Of <em>a</em>.</p>")}${item(3, "<p>c</p>")}${item(4, "<p>d</p>", "")}</ol></section>`,
  );
  assert.equal(found.length, 3);
});

test("footnotes that refer to one another are listed once", () => {
  const found = html(format("x[^1]\n\n[^1]: see [^2]\n\n[^2]: see [^1]", { depth: DEPTH }));
  assert.equal(found[1]!.split("<li").length - 1, 2);
});
