import assert from "node:assert/strict";
import { test } from "node:test";
import { body, messages, readTools, userText } from "../src/chat/request.ts";
import { append, newConversation, path } from "../src/chat/tree.ts";

test("what is not set is not sent", () => {
  const own = newConversation({});
  append(own, null, "user", "Hi");
  assert.deepEqual(body(path(own), {}), { messages: [{ role: "user", content: "Hi" }] });
  const settings = { temperature: 0, seed: 1, stop: ["x"], logprobs: true, reasoning_effort: "none", system: " Be brief. " };
  assert.deepEqual(body(path(own), settings, { proceeds: true }), {
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: "Hi" },
    ],
    temperature: 0,
    seed: 1,
    stop: ["x"],
    reasoning_effort: "none",
    logprobs: true,
    top_logprobs: 5,
    continue_final_message: true,
    add_generation_prompt: false,
  });
});

test("exchanges are left out whole, and the system message stays", () => {
  const own = newConversation({});
  for (const n of [1, 2, 3]) {
    append(own, own.leaf, "user", `q${n}`);
    append(own, own.leaf, "assistant", `a${n}`);
  }
  const kept = messages(path(own), { system: "S" }, 2).map(({ content }) => content);
  assert.deepEqual(kept, ["S", "q3", "a3"]);
});

test("failed answers are not said, calls and their results are", () => {
  const own = newConversation({});
  append(own, null, "user", "q");
  append(own, own.leaf, "assistant", "", { end: "failed" });
  const calls = [{ id: "c1", name: "f", arguments: "{}" }];
  append(own, own.leaf, "assistant", "", { calls, reasoning: "why" });
  append(own, own.leaf, "tool", "5", { callId: "c1" });
  assert.deepEqual(messages(path(own), {}, 0), [
    { role: "user", content: "q" },
    {
      role: "assistant",
      content: null,
      reasoning_content: "why",
      tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", content: "5", tool_call_id: "c1" },
  ]);
});

test("a file is fenced by more marks than it has", () => {
  const own = newConversation({});
  const turn = append(own, null, "user", "Read.", { files: [{ name: "a.md", text: "x\n````\ny\n" }] });
  assert.equal(userText(turn), "File: a.md\n`````\nx\n````\ny\n`````\n\nRead.");
});

test("the model is offered the tools of the servers that the chat uses", () => {
  const own = newConversation({});
  append(own, null, "user", "Hi");
  const tool = (name: string) => ({ type: "function" as const, function: { name } });
  const servers = ["one", "two"].map((name) => ({ name, tools: [tool(`of_${name}`)], error: null }));
  const settings = { tools: '[{"name": "own"}]', servers: ["two", "gone"] };
  const { tools } = body(path(own), settings, { servers });
  assert.deepEqual(tools, [tool("own"), tool("of_two")]);
  assert.equal("tools" in body(path(own), { servers: ["gone"] }, { servers }), false);
});

test("tools are read, or refused with a reason", () => {
  const wrapped = [{ type: "function", function: { name: "f" } }];
  assert.deepEqual(readTools('[{"name": "f"}]'), wrapped);
  assert.deepEqual(readTools(JSON.stringify(wrapped)), wrapped);
  assert.deepEqual(readTools(" "), []);
  for (const [text, reason] of [["{", /not JSON/], ["{}", /JSON list/], ["[{}]", /needs a name/], ["[null]", /needs a name/]] as const) {
    assert.throws(() => readTools(text), reason);
  }
});
