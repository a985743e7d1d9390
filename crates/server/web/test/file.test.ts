import assert from "node:assert/strict";
import { test } from "node:test";
import { fromJson, toJson, toMarkdown } from "../src/chat/file.ts";
import { append, newConversation, path } from "../src/chat/tree.ts";

function talk() {
  const own = newConversation({ temperature: 0.5 });
  append(own, null, "user", "Question", { files: [{ name: "a.txt", text: "x" }] });
  append(own, own.leaf, "assistant", "Answer", { end: "streaming" });
  return own;
}

test("what is exported can be imported", () => {
  const own = talk();
  const [read] = fromJson(toJson([own]));
  assert.notEqual(read!.id, own.id);
  assert.deepEqual(read!.settings, own.settings);
  assert.deepEqual(path(read!).map(({ text }) => text), ["Question", "Answer"]);
  // An answer that was under way is not any more.
  assert.equal(path(read!)[1]!.end, "stopped");
  assert.equal(path(read!)[0]!.files![0]!.name, "a.txt");
});

test("other files are refused with a reason", () => {
  const file = (change: (own: ReturnType<typeof talk>) => void) => {
    const own = talk();
    change(own);
    return toJson([own]);
  };
  const cases: [string, RegExp][] = [
    ["no", /not JSON/],
    ["[]", /no conversations/],
    ['{"format": "realizar.conversations", "version": 9, "conversations": []}', /version 9/],
    [file((own) => (own.turns[0]!.parent = own.turns[1]!.id)), /unknown parent/],
    [file((own) => (own.turns[1]!.id = own.turns[0]!.id)), /one id/],
    [file((own) => (own.turns[1]!.role = "system" as "user")), /role/],
  ];
  for (const [text, reason] of cases) assert.throws(() => fromJson(text), reason);
});

test("what has another form than it should is left out", () => {
  const own = talk();
  Object.assign(own.turns[1]!, {
    calls: [null], tokens: [{ text: 1 }], stats: { promptTokens: "many" }, failure: 5, dropped: -1, end: "odd", reasoning: {}, other: 1,
  });
  Object.assign(own.turns[0]!, { files: [{ name: "a.txt" }] });
  Object.assign(own.settings, { top_k: "5", stop: [1], servers: "all", seed: 7 });
  const [read] = fromJson(toJson([own]));
  assert.deepEqual(read!.settings, { temperature: 0.5, seed: 7 });
  const fields = read!.turns.map((turn) => Object.keys(turn).sort());
  assert.deepEqual(fields, Array(2).fill(["created", "id", "parent", "role", "text"]));
});

test("Markdown has the branch that is shown", () => {
  const own = talk();
  assert.equal(
    toMarkdown("Title", path(own)),
    "# Title\n\n## You\n\n*Attached: a.txt*\n\nQuestion\n\n## Assistant\n\nAnswer\n",
  );
});
