import assert from "node:assert/strict";
import { test } from "node:test";
import { charts } from "../src/ui/dashboard.tsx";
import { pathOf, short, ticks } from "../src/ui/chart.tsx";
import { age } from "../src/ui/sidebar.tsx";
import { percent, shade, visible } from "../src/ui/tokens.tsx";
import { bytes } from "../src/ui/use.ts";

test("axes have round marks", () => {
  const cases: [number, number[]][] = [
    [0, [0, 1]],
    [1, [0, 0.25, 0.5, 0.75, 1]],
    [7, [0, 2, 4, 6, 8]],
    [100, [0, 25, 50, 75, 100]],
    [123, [0, 50, 100, 150]],
    [0.0031, [0, 0.001, 0.002, 0.003, 0.004]],
  ];
  for (const [most, marks] of cases) assert.deepEqual(ticks(most), marks, String(most));
});

test("lines are broken where nothing was measured", () => {
  assert.equal(pathOf([[0, 1], [1, 2], null, [3, 4]]), "M0.0 1.0L1.0 2.0M3.0 4.0");
});

test("values are told in their units", () => {
  assert.deepEqual([999, 1000, 12345, 0.12345].map(short), ["999", "1k", "12.3k", "0.123"]);
  assert.deepEqual([0, 1536, 2.5 * 2 ** 30].map(bytes), ["0 B", "1.5 KiB", "2.5 GiB"]);
  const sample = {
    time: 5, prompt_tokens: 100, generated_tokens: 50, running: 2, waiting: 1, kv_used: 0.5, ttft: 0.25, inter_token: null,
  };
  const values = charts([sample], 5).map(({ title, unit, lines }) => [title, unit, ...lines.map((line) => line.values[0])]);
  assert.deepEqual(values, [
    ["Generated", "tokens/s", 10],
    ["Prompts read", "tokens/s", 20],
    ["Requests", "requests", 2, 1],
    ["Key-value cache in use", "%", 50],
    ["Time to the first token", "ms, mean", 250],
    ["Time between tokens", "ms, mean", null],
  ]);
});

test("chats are listed by their age", () => {
  const now = new Date(2026, 5, 15, 12).getTime();
  const at = (day: number, hour: number) => age(new Date(2026, 5, day, hour).getTime(), now);
  assert.deepEqual([at(15, 0), at(14, 23), at(9, 12), at(2, 12)], ["Today", "Yesterday", "Last seven days", "June 2026"]);
});

test("probabilities are shares", () => {
  assert.deepEqual([0, Math.log(0.5), Math.log(0.005), -20].map(percent), ["100 %", "50.0 %", "0.50 %", "< 0.01 %"]);
  assert.deepEqual([0.95, 0.7, 0.4, 0.2, 0.01].map((p) => shade(Math.log(p))), [0, 1, 2, 3, 4]);
  assert.deepEqual(["a", " a", "\n", ""].map(visible), ["a", "␣a", "⏎", "∅"]);
});
