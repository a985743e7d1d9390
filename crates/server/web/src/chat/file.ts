// Conversations as a file: what is exported can be imported again, here or in another browser.

import { readConversation } from "./read.ts";
import { newId } from "./tree.ts";
import type { Conversation, Turn } from "./types.ts";

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

/** Reads what `toJson` wrote, and refuses anything else as a whole. */
export function fromJson(text: string): Conversation[] {
  let file: { format?: unknown; version?: unknown; conversations?: unknown } | null;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("The file has no conversations of this page.");
  }
  if (file.version !== VERSION) throw new Error(`The file has version ${file.version}; this page reads ${VERSION}.`);
  return file.conversations.map((value: unknown, idx) => {
    try {
      const own = readConversation(value);
      for (const turn of own.turns) if (turn.end === "streaming") turn.end = "stopped";
      return { ...own, id: newId() };
    } catch (error) {
      throw new Error(`Conversation ${idx + 1} of the file cannot be read: ${(error as Error).message}.`);
    }
  });
}
