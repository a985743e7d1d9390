// Two tabs with the same conversation: what each has stored, and what the other one had in mind.

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Base, merge, NOTHING, snapshot } from "../src/chat/merge.ts";
import { append, newConversation, path, remove, siblings } from "../src/chat/tree.ts";
import type { Conversation, Turn } from "../src/chat/types.ts";

/** A tab with its copy of a conversation, as it was stored. */
function open(stored: Conversation) {
  const own = structuredClone(stored);
  return { own, base: snapshot(own) };
}

/** Two tabs with the same two exchanges. */
function tabs() {
  const first = newConversation({ temperature: 0.5 });
  append(first, null, "user", "one");
  append(first, first.leaf, "assistant", "uno");
  return { stored: structuredClone(first), a: open(first), b: open(first) };
}

/** Stores what a tab has, as the library does. */
function store(tab: { own: Conversation; base: Base }, stored: Conversation): Conversation {
  merge(tab.base, tab.own, stored);
  tab.base = snapshot(tab.own);
  return structuredClone(tab.own);
}

const texts = (own: Conversation, leaf = own.leaf) => path(own, leaf).map(({ text }) => text);

test("messages of two tabs become branches behind the same turn", () => {
  const { stored, a, b } = tabs();
  const ofA = append(a.own, a.own.leaf, "user", "from a");
  append(a.own, ofA.id, "assistant", "to a");
  const ofB = append(b.own, b.own.leaf, "user", "from b");
  append(b.own, ofB.id, "assistant", "to b");
  let now = store(a, stored);
  now = store(b, now);
  // Each shows its own branch, and has the other one beside it.
  assert.deepEqual(texts(b.own), ["one", "uno", "from b", "to b"]);
  assert.deepEqual(siblings(b.own, ofB).map(({ text }) => text), ["from a", "from b"]);
  const news = merge(a.base, a.own, now);
  assert.deepEqual(news.map(({ text }) => text), ["from b", "to b"]);
  assert.deepEqual(texts(a.own), ["one", "uno", "from a", "to a"]);
  assert.deepEqual(a.own.turns.map(({ id }) => id), b.own.turns.map(({ id }) => id));
  // The objects that the page has are still those of the conversation.
  assert.ok(a.own.turns.includes(ofA) && b.own.turns.includes(ofB));
});

test("what another tab says behind the end is shown, and grows", () => {
  const { stored, a, b } = tabs();
  const question = append(a.own, a.own.leaf, "user", "more");
  const answer = append(a.own, question.id, "assistant", "m", { end: "streaming" });
  let now = store(a, stored);
  merge(b.base, b.own, now);
  b.base = snapshot(now);
  assert.deepEqual(texts(b.own), ["one", "uno", "more", "m"]);
  const shown = b.own.turns.at(-1)!;
  Object.assign(answer, { text: "mas", end: "done" });
  now = store(a, now);
  assert.deepEqual(merge(b.base, b.own, now), [shown]);
  assert.deepEqual([shown.text, shown.end], ["mas", "done"]);
});

test("an answer that streams is not doubled by what was stored of it before", () => {
  const { stored, a } = tabs();
  const answer = append(a.own, a.own.leaf, "assistant", "m", { end: "streaming" });
  let now = store(a, stored);
  answer.text = "more";
  now = store(a, now);
  answer.end = "done";
  now = store(a, now);
  assert.deepEqual(now.turns.map(({ text, end }) => [text, end]), [["one", undefined], ["uno", undefined], ["more", "done"]]);
});

test("a turn that two tabs change is kept twice, with what follows", () => {
  const { stored, a, b } = tabs();
  const last = (own: Conversation) => own.turns[1] as Turn;
  last(a.own).text = "uno, dos";
  last(b.own).text = "uno, tres";
  append(b.own, last(b.own).id, "user", "behind b");
  const now = store(b, store(a, stored));
  assert.deepEqual(siblings(now, now.turns[1]!).map(({ text }) => text), ["uno, dos", "uno, tres"]);
  assert.deepEqual(texts(now), ["one", "uno, tres", "behind b"]);
  // The same change on both sides is no other version.
  const other = tabs();
  last(other.a.own).text = last(other.b.own).text = "same";
  assert.equal(store(other.b, store(other.a, other.stored)).turns.length, 2);
});

test("what one tab removes is gone, unless the other one needs it", () => {
  const failed = (own: Conversation) => append(own, own.turns[0]!.id, "assistant", "", { end: "failed" });
  const setUp = () => {
    const first = newConversation({});
    append(first, null, "user", "one");
    failed(first);
    return { stored: structuredClone(first), a: open(first), b: open(first) };
  };
  const { stored, a, b } = setUp();
  remove(a.own, a.own.turns[1]!);
  const now = store(a, stored);
  merge(b.base, b.own, now);
  assert.deepEqual([now.turns.length, b.own.turns.length], [1, 1]);
  assert.equal(b.own.leaf, b.own.turns[0]!.id);

  const other = setUp();
  remove(other.a.own, other.a.own.turns[1]!);
  append(other.b.own, other.b.own.leaf, "user", "behind");
  assert.deepEqual(texts(store(other.b, store(other.a, other.stored))), ["one", "", "behind"]);
  // In the other order too.
  const last = setUp();
  append(last.b.own, last.b.own.leaf, "user", "behind");
  remove(last.a.own, last.a.own.turns[1]!);
  assert.equal(store(last.a, store(last.b, last.stored)).turns.length, 3);
});

test("titles and settings keep what each tab has changed", () => {
  const { stored, a, b } = tabs();
  Object.assign(a.own, { title: "Named", named: true });
  a.own.settings = { temperature: 1, top_k: 5 };
  b.own.settings = { temperature: 0.5, system: "Be kind." };
  const now = store(b, store(a, stored));
  assert.deepEqual([now.title, now.named], ["Named", true]);
  assert.deepEqual(now.settings, { temperature: 1, top_k: 5, system: "Be kind." });
  delete a.own.settings.temperature;
  assert.deepEqual(store(a, now).settings, { top_k: 5, system: "Be kind." });
});

test("the first of all is stored as it is", () => {
  const { a } = tabs();
  const own = structuredClone(a.own);
  merge(NOTHING, own, structuredClone(own));
  assert.deepEqual(own, a.own);
});
