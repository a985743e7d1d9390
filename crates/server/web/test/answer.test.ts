import assert from "node:assert/strict";
import { test } from "node:test";
import { Answer, ServerError, speed } from "../src/chat/answer.ts";
import { failure } from "../src/chat/failure.ts";
import { events } from "../src/chat/sse.ts";
import type { Turn } from "../src/chat/types.ts";

function newTurn(): Turn {
  return { id: "t", parent: null, role: "assistant", text: "", created: 0, end: "streaming" };
}

function chunk(delta: object, more: object = {}) {
  return { choices: [{ delta, ...more }] };
}

test("chunks add up to an answer with its times", () => {
  const turn = newTurn();
  const answer = new Answer(turn, 1000, 100);
  answer.add({ model: "own", ...chunk({ role: "assistant" }) }, 1100);
  answer.add(chunk({ reasoning_content: "hm" }), 1200);
  answer.add(chunk({ reasoning_content: "m" }), 1400);
  const logprobs = { content: [{ token: "Hi", logprob: -0.1, top_logprobs: [{ token: "Yo", logprob: -3 }] }] };
  answer.add(chunk({ content: "Hi" }, { logprobs }), 1700);
  assert.equal(turn.end, "streaming");
  answer.add(chunk({}, { finish_reason: "stop" }), 1800);
  answer.add({ choices: [], usage: { prompt_tokens: 7, completion_tokens: 4 } }, 1800);
  assert.deepEqual([turn.reasoning, turn.text, turn.end, turn.reasoningMs], ["hmm", "Hi", "done", 200]);
  assert.deepEqual(turn.stats, { promptTokens: 7, cachedTokens: 0, answerTokens: 4, firstTokenMs: 200, decodeMs: 500 });
  assert.deepEqual(turn.tokens, [{ text: "Hi", logprob: -0.1, top: [{ text: "Yo", logprob: -3 }] }]);
  assert.equal(speed(turn), 6);
  assert.equal(turn.model, "own");
});

test("calls arrive in pieces", () => {
  const turn = newTurn();
  const answer = new Answer(turn, 0, null);
  answer.add(chunk({ tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: "" } }] }), 1);
  answer.add(chunk({ tool_calls: [{ index: 0, function: { arguments: '{"a":' } }] }), 2);
  answer.add(chunk({ tool_calls: [{ index: 0, function: { arguments: "1}" } }] }, { finish_reason: "tool_calls" }), 3);
  assert.deepEqual(turn.calls, [{ id: "c", name: "f", arguments: '{"a":1}' }]);
  assert.equal(turn.end, "tools");
});

test("an answer is cut by its limit or by the context", () => {
  for (const [prompt, end] of [[10, "length"], [95, "context"]] as const) {
    const turn = newTurn();
    const answer = new Answer(turn, 0, 100);
    answer.add(chunk({ content: "x" }, { finish_reason: "length" }), 1);
    answer.add({ choices: [], usage: { prompt_tokens: prompt, completion_tokens: 5 } }, 2);
    assert.equal(turn.end, end);
  }
});

test("an error within a stream is one of the server", () => {
  const answer = new Answer(newTurn(), 0, null);
  assert.throws(() => answer.add({ error: { message: "gone", code: "x" } }, 1), ServerError);
});

test("errors say what to do", () => {
  const cases: [unknown, RegExp, RegExp][] = [
    [new ServerError("the queue is full", 503, ""), /^The queue is full\.$/, /busy/],
    [new ServerError("unknown API key", 401, ""), /key/, /Enter the API key/],
    [new ServerError("too long", 400, "context_length_exceeded"), /^Too long\.$/, /Shorten/],
    [new TypeError("fetch failed"), /connection/, /still running/],
    [new Error("The tools are not JSON: x"), /tools/, /^$/],
  ];
  for (const [error, message, hint] of cases) {
    const told = failure(error);
    assert.match(told.message, message);
    assert.match(told.hint, hint);
  }
});

function stream(pieces: Uint8Array[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(piece);
      controller.close();
    },
  });
}

async function read(pieces: string[]): Promise<unknown[]> {
  const bytes = pieces.map((piece) => new TextEncoder().encode(piece));
  const found: unknown[] = [];
  for await (const event of events(stream(bytes))) found.push(event);
  return found;
}

test("events are read wherever their bytes are cut", async () => {
  const text = ': hi\n\ndata: {"a":"é\\n"}\r\n\r\ndata: [1]\n\ndata: [DONE]\n\ndata: 2\n\n';
  const bytes = new TextEncoder().encode(text);
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const halves = [bytes.slice(0, cut), bytes.slice(cut)];
    const found: unknown[] = [];
    for await (const event of events(stream(halves))) found.push(event);
    assert.deepEqual(found, [{ a: "é\n" }, [1]], `cut at ${cut}`);
  }
});

test("a stream without its last event is an error", async () => {
  await assert.rejects(read(['data: {"a":1}\n\n']), TypeError);
});
