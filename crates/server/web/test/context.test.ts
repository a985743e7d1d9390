import assert from "node:assert/strict";
import { test } from "node:test";
import { estimate, fit, reserve, roughly, TooLong } from "../src/chat/context.ts";
import { append, newConversation, path } from "../src/chat/tree.ts";

/** A branch of exchanges with so many tokens each, and what counts its requests. */
function talk(sizes: number[]) {
  const own = newConversation({});
  for (const size of sizes) append(own, own.leaf, "user", "x".repeat(size * 3));
  let counted = 0;
  const count = async (dropped: number) => {
    counted += 1;
    return sizes.slice(dropped).reduce((sum, size) => sum + size, 0);
  };
  return { turns: path(own), count, counted: () => counted };
}

test("short conversations are not even counted", async () => {
  const { turns, count, counted } = talk([10, 10]);
  assert.deepEqual(await fit(turns, 1000, undefined, count), { dropped: 0, tokens: null });
  assert.equal(counted(), 0);
});

test("the oldest exchanges go until half of the room is free", async () => {
  // 1000 tokens, of which 250 are kept free for the answer: of 750 half are filled at most.
  const { turns, count } = talk([200, 200, 200, 200, 100]);
  assert.deepEqual(await fit(turns, 1000, undefined, count), { dropped: 3, tokens: 300 });
  // Answers that are bounded need less room.
  const other = talk([200, 200, 200, 200, 100]);
  assert.deepEqual(await fit(other.turns, 1000, 50, other.count), { dropped: 0, tokens: 900 });
});

test("what was left out stays out", async () => {
  const { turns, count } = talk([200, 200, 200, 100]);
  turns.at(-2)!.dropped = 1;
  assert.deepEqual(await fit(turns, 1000, undefined, count), { dropped: 1, tokens: 500 });
});

test("a message that is longer than the context is refused", async () => {
  const { turns, count } = talk([10, 1200]);
  await assert.rejects(fit(turns, 1000, undefined, count), (error) => {
    assert.ok(error instanceof TooLong);
    assert.deepEqual([error.tokens, error.context], [1200, 1000]);
    return true;
  });
});

test("without a context nothing is left out", async () => {
  const { turns, count } = talk([5000]);
  assert.deepEqual(await fit(turns, null, undefined, count), { dropped: 0, tokens: null });
});

test("estimates begin from what the server counted", () => {
  const own = newConversation({});
  append(own, null, "user", "x".repeat(5000));
  const stats = { promptTokens: 40, cachedTokens: 0, answerTokens: 10, firstTokenMs: 1, decodeMs: 1 };
  append(own, own.leaf, "assistant", "y", { stats });
  append(own, own.leaf, "user", "abcde");
  assert.equal(estimate(path(own), 0), 50 + roughly("abcde"));
  assert.ok(estimate(path(own), 1) > 2000);
});

test("a quarter of the context is kept for the answer at most", () => {
  assert.deepEqual([reserve(1000, undefined), reserve(1000, 100), reserve(1000, 900)], [250, 100, 250]);
});
