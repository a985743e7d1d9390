import assert from "node:assert/strict";
import { test } from "node:test";
import { Marked } from "marked";
import { math, useRenderer } from "../src/text/math.ts";

const marked = new Marked(math);

test("formulas are found, prices are not", () => {
  useRenderer((tex, display) => `<${display ? "D" : "I"}:${tex}>`);
  const cases: [string, string][] = [
    ["$x$", "<p><I:x></p>"],
    ["a $x_1$ and $y_2$.", "<p>a <I:x_1> and <I:y_2>.</p>"],
    ["It costs $5 or $6.", "<p>It costs $5 or $6.</p>"],
    ["$ x $", "<p>$ x $</p>"],
    ["\\(a*b*c\\)", "<p><I:a*b*c></p>"],
    ["$$\na_1 * b_2 *\n$$", '<div class="formula"><D:a_1 * b_2 *></div>'],
    ["\\[\nx\n\\]", '<div class="formula"><D:x></div>'],
    ["so $$x$$ it is", "<p>so <D:x> it is</p>"],
    ["`$x$`", "<p><code>$x$</code></p>"],
    ["a \\$5 b $x$", "<p>a $5 b <I:x></p>"],
  ];
  for (const [text, html] of cases) assert.equal((marked.parse(text) as string).trim(), html, text);
});

test("a formula shows its source until it can be rendered", () => {
  useRenderer(null);
  assert.equal((marked.parse("$a<b$") as string).trim(), '<p><code class="tex">a&lt;b</code></p>');
  useRenderer(() => {
    throw new Error("no");
  });
  assert.equal((marked.parse("$x$") as string).trim(), '<p><code class="tex">x</code></p>');
});
