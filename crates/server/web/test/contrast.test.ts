// The colours of the style sheet against WCAG 2.2: 4.5 to 1 for text, 3 to 1 for the edges of fields.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const style = readFileSync("src/style.css", "utf8");
const colours = new Map(
  [...style.matchAll(/--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)/g)].map(([, name, light, dark]) => [name, [light, dark]]),
);

function luminance(colour: string): number {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const value = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a: string, b: string): number {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

const BACKS = ["paper", "side", "card", "tint"];
const PAIRS: [string, string[], number][] = [
  ["ink", BACKS, 7],
  ["soft", BACKS, 4.5],
  ["accent", BACKS, 4.5],
  ["warn", [...BACKS, "warn-tint"], 4.5],
  ["second", ["card"], 3],
  ["ink", ["warn-tint"], 7],
  ["on-accent", ["accent"], 4.5],
  ["edge", ["paper", "side", "card"], 3],
  ...["key", "text", "name", "number"].map((kind): [string, string[], number] => [`code-${kind}`, ["card"], 4.5]),
];

test("texts and edges stand out from what is behind them", () => {
  for (const [front, backs, least] of PAIRS) {
    for (const back of backs) {
      for (const [idx, theme] of ["light", "dark"].entries()) {
        const [a, b] = [colours.get(front)?.[idx], colours.get(back)?.[idx]];
        assert.ok(a && b, `${front} or ${back} is not a pair of colours`);
        const found = contrast(a, b);
        assert.ok(found >= least, `${front} on ${back}, ${theme}: ${found.toFixed(2)}, wanted ${least}`);
      }
    }
  }
});
