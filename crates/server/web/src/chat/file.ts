// Conversations as a file: what is exported can be imported again, here or in another browser.

import { newId } from "./tree.ts";
import type { Conversation, Settings, Turn } from "./types.ts";

const FORMAT = "realizar.conversations";
const VERSION = 1;

export function toJson(conversations: Conversation[]): string {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

/** A branch for reading elsewhere. */
export function toMarkdown(title: string, turns: Turn[]): string {
  const names = { user: "You", assistant: "Assistant", tool: "Tool result" };
  const parts = turns.map((turn) => {
    const files = (turn.files ?? []).map((file) => `*Attached: ${file.name}*\n\n`).join("");
    const calls = (turn.calls ?? []).map(
      ({ name, arguments: text }) => `\n\n\`\`\`json\n${JSON.stringify({ name, arguments: text })}\n\`\`\``,
    );
    return `## ${names[turn.role]}\n\n${files}${turn.text.trim()}${calls.join("")}\n`;
  });
  return [`# ${title || "Untitled"}\n`, ...parts].join("\n");
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function readTurn(value: unknown): Turn {
  if (!isObject(value)) throw new Error("a message is not an object");
  const { id, parent, role, text } = value;
  const isRole = role === "user" || role === "assistant" || role === "tool";
  if (typeof id !== "string" || !isRole || typeof text !== "string") {
    throw new Error("a message lacks its id, role or text");
  }
  if (parent !== null && typeof parent !== "string") throw new Error("a message has no parent");
  const turn = { ...value, created: Number(value.created) || Date.now() } as unknown as Turn;
  if (turn.end === "streaming") turn.end = "stopped";
  for (const list of ["files", "calls", "tokens"] as const) {
    if (turn[list] !== undefined && !Array.isArray(turn[list])) delete turn[list];
  }
  return turn;
}

/** Reads what `toJson` wrote, and refuses anything else as a whole. */
export function fromJson(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (!isObject(file) || file.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("The file has no conversations of this page.");
  }
  if (file.version !== VERSION) throw new Error(`The file has version ${file.version}; this page reads ${VERSION}.`);
  return file.conversations.map((value: unknown, idx) => {
    try {
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
        id: newId(),
        title: typeof value.title === "string" ? value.title : "",
        named: value.named === true,
        created: Number(value.created) || Date.now(),
        updated: Number(value.updated) || Date.now(),
        turns,
        leaf: leaf ?? turns.at(-1)?.id ?? null,
        settings: (isObject(value.settings) ? value.settings : {}) as Settings,
      };
    } catch (error) {
      throw new Error(`Conversation ${idx + 1} of the file cannot be read: ${(error as Error).message}.`);
    }
  });
}
