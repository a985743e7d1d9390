import assert from "node:assert/strict";
import { test } from "node:test";
import { append, branch, exchanges, matches, newConversation, path, remove, show, siblings, titleOf } from "../src/chat/tree.ts";

function texts(conversation: ReturnType<typeof newConversation>): string[] {
  return path(conversation).map((turn) => turn.text);
}

function talk() {
  const own = newConversation({ temperature: 0.5 });
  const q1 = append(own, null, "user", "one");
  const a1 = append(own, q1.id, "assistant", "uno");
  const q2 = append(own, a1.id, "user", "two");
  const a2 = append(own, q2.id, "assistant", "dos");
  return { own, q1, a1, q2, a2 };
}

test("an edited message is a sibling, and the branches stay apart", () => {
  const { own, q2, a1 } = talk();
  const edited = append(own, q2.parent, "user", "three");
  append(own, edited.id, "assistant", "tres");
  assert.deepEqual(texts(own), ["one", "uno", "three", "tres"]);
  assert.deepEqual(siblings(own, q2), [q2, edited]);
  show(own, q2);
  assert.deepEqual(texts(own), ["one", "uno", "two", "dos"]);
  show(own, a1);
  // The newest branch behind it.
  assert.deepEqual(texts(own), ["one", "uno", "three", "tres"]);
});

test("a removed turn takes with it what follows", () => {
  const { own, q2, a1 } = talk();
  const other = append(own, a1.id, "user", "other");
  remove(own, other);
  assert.deepEqual(texts(own), ["one", "uno", "two", "dos"]);
  remove(own, q2);
  assert.deepEqual(texts(own), ["one", "uno"]);
  assert.equal(own.turns.length, 2);
});

test("a branch is a copy of its own", () => {
  const { own, a1 } = talk();
  const copy = branch(own, a1);
  assert.deepEqual(texts(copy), ["one", "uno"]);
  assert.deepEqual(copy.settings, { temperature: 0.5 });
  copy.turns[0]!.text = "changed";
  assert.equal(own.turns[0]!.text, "one");
  assert.notEqual(copy.turns[0]!.id, own.turns[0]!.id);
});

test("titles are the first line, cut at a word", () => {
  const cases: [string, string][] = [
    ["Hello", "Hello"],
    ["  # A   title\nand more", "A title"],
    [`${"word ".repeat(20)}`, `${"word ".repeat(11)}word…`],
    ["", ""],
  ];
  for (const [text, title] of cases) {
    const own = newConversation({});
    append(own, null, "user", text);
    assert.equal(titleOf(own), title);
  }
});

test("a search wants all of its words", () => {
  const { own } = talk();
  for (const [query, found] of [["ONE dos", true], ["one four", false], ["  ", true]] as const) {
    assert.equal(matches(own, query), found, query);
  }
});

test("an exchange begins with the user", () => {
  const { own, a2 } = talk();
  append(own, a2.id, "tool", "result");
  const lengths = exchanges(path(own)).map((turns) => turns.length);
  assert.deepEqual(lengths, [2, 3]);
});
