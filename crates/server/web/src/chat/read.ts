// Conversations from outside: from a file, or from a storage that another version of the page wrote.
// What cannot be read as a message is refused; what a message can do without is left out if it has
// another form than the page expects.

import type { Attachment, Conversation, Failure, Settings, Stats, Token, ToolCall, Turn } from "./types.ts";

type Fields = Record<string, unknown>;

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether the fields are of these types; those whose type ends with `?` may be absent. */
function has(value: unknown, types: Record<string, string>): value is Fields {
  if (!isObject(value)) return false;
  return Object.entries(types).every(([name, type]) => {
    if (type.endsWith("?") && value[name] === undefined) return true;
    return typeof value[name] === type.replace("?", "");
  });
}

const isFile = (value: unknown): value is Attachment =>
  has(value, { name: "string", text: "string", pages: "number?", encoding: "string?" });
const isCall = (value: unknown): value is ToolCall =>
  has(value, { id: "string", name: "string", arguments: "string", result: "string?" });
const isOther = (value: unknown) => has(value, { text: "string", logprob: "number" });
const isToken = (value: unknown): value is Token => isOther(value) && Array.isArray((value as Fields).top) && ((value as Fields).top as unknown[]).every(isOther);
const isFailure = (value: unknown): value is Failure => has(value, { message: "string", hint: "string", code: "string" });
const isStats = (value: unknown): value is Stats =>
  has(value, { promptTokens: "number", cachedTokens: "number", answerTokens: "number", firstTokenMs: "number", decodeMs: "number" });
const listOf = (isOne: (value: unknown) => boolean) => (value: unknown) => Array.isArray(value) && value.every(isOne);
const is = (type: string) => (value: unknown) => typeof value === type;

const TURN: Record<string, (value: unknown) => boolean> = {
  files: listOf(isFile),
  reasoning: is("string"),
  reasoningMs: is("number"),
  calls: listOf(isCall),
  callId: is("string"),
  model: is("string"),
  end: (value) => ["streaming", "done", "tools", "length", "context", "stopped", "failed"].includes(value as string),
  failure: isFailure,
  stats: isStats,
  tokens: listOf(isToken),
  dropped: (value) => Number.isSafeInteger(value) && (value as number) >= 0,
};
const SETTINGS: Record<string, (value: unknown) => boolean> = {
  ...Object.fromEntries(["model", "system", "reasoning_effort", "tools"].map((name) => [name, is("string")])),
  ...Object.fromEntries(
    ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "seed"]
      .map((name) => [name, is("number")]),
  ),
  stop: listOf(is("string")),
  servers: listOf(is("string")),
  logprobs: is("boolean"),
};

/** The fields that have the form that they should have. */
function pick(value: Fields, forms: Record<string, (value: unknown) => boolean>): Fields {
  return Object.fromEntries(Object.entries(value).filter(([name, own]) => forms[name]?.(own)));
}

function readTurn(value: unknown): Turn {
  if (!isObject(value)) throw new Error("a message is not an object");
  const { id, parent, role, text, created } = value;
  const isRole = role === "user" || role === "assistant" || role === "tool";
  if (typeof id !== "string" || !isRole || typeof text !== "string") {
    throw new Error("a message lacks its id, role or text");
  }
  if (parent !== null && typeof parent !== "string") throw new Error("a message has no parent");
  return { id, parent, role, text, created: Number(created) || Date.now(), ...pick(value, TURN) };
}

/** Reads a conversation, or says why it is none. */
export function readConversation(value: unknown): Conversation {
  if (!isObject(value) || !Array.isArray(value.turns)) throw new Error("it has no messages");
  const turns = value.turns.map(readTurn);
  const known = new Set<string>();
  for (const turn of turns) {
    // Parents before children: no branch can be a circle.
    if (turn.parent !== null && !known.has(turn.parent)) throw new Error("a message has an unknown parent");
    if (known.has(turn.id)) throw new Error("two messages have one id");
    known.add(turn.id);
  }
  const leaf = typeof value.leaf === "string" && known.has(value.leaf) ? value.leaf : null;
  return {
    id: String(value.id),
    title: typeof value.title === "string" ? value.title : "",
    named: value.named === true,
    created: Number(value.created) || Date.now(),
    updated: Number(value.updated) || Date.now(),
    turns,
    leaf: leaf ?? turns.at(-1)?.id ?? null,
    settings: (isObject(value.settings) ? pick(value.settings, SETTINGS) : {}) as Settings,
  };
}
