// Conversations as trees: an edited message or another answer is a sibling of the first one, and
// the leaf says which branch is shown. Nothing here knows of a server or of the screen.

import type { Conversation, Role, Settings, Turn } from "./types.ts";

/** A name that no other turn or conversation has. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_");
}

export function newConversation(settings: Settings, now = Date.now()): Conversation {
  return {
    id: newId(),
    title: "",
    named: false,
    created: now,
    updated: now,
    turns: [],
    leaf: null,
    settings: { ...settings },
  };
}

function byId(conversation: Conversation): Map<string, Turn> {
  return new Map(conversation.turns.map((turn) => [turn.id, turn]));
}

/** The turns from the first one to the leaf, or to another turn. */
export function path(conversation: Conversation, leaf = conversation.leaf): Turn[] {
  const turns = byId(conversation);
  const found: Turn[] = [];
  for (let id = leaf; id !== null; ) {
    const turn = turns.get(id);
    if (!turn) break;
    found.push(turn);
    // Each turn once, even if something has made a circle of them.
    turns.delete(turn.id);
    id = turn.parent;
  }
  return found.reverse();
}

/** All turns that continue from the same parent, in the order in which they were made. */
export function siblings(conversation: Conversation, turn: Turn): Turn[] {
  return conversation.turns.filter((other) => other.parent === turn.parent);
}

/** Adds a turn behind `parent` and shows its branch. */
export function append(
  conversation: Conversation,
  parent: string | null,
  role: Role,
  text: string,
  fields: Partial<Turn> = {},
): Turn {
  const turn: Turn = { id: newId(), parent, role, text, created: Date.now(), ...fields };
  conversation.turns.push(turn);
  conversation.leaf = turn.id;
  conversation.updated = turn.created;
  if (!conversation.named) conversation.title = titleOf(conversation);
  return turn;
}

/** Shows the branch of a turn, up to the newest turn behind it. */
export function show(conversation: Conversation, turn: Turn): void {
  let leaf = turn;
  for (;;) {
    const next = conversation.turns.filter((other) => other.parent === leaf.id).at(-1);
    if (!next) break;
    leaf = next;
  }
  conversation.leaf = leaf.id;
}

/** Removes a turn and all that follow it. The branch of a sibling is shown, or its parent. */
export function remove(conversation: Conversation, turn: Turn): void {
  const gone = new Set([turn.id]);
  // Parents stand before their children.
  for (const other of conversation.turns) {
    if (other.parent !== null && gone.has(other.parent)) gone.add(other.id);
  }
  const wasShown = conversation.leaf !== null && gone.has(conversation.leaf);
  conversation.turns = conversation.turns.filter((other) => !gone.has(other.id));
  if (!wasShown) return;
  const sibling = siblings(conversation, turn).at(-1);
  if (sibling) show(conversation, sibling);
  else conversation.leaf = turn.parent;
}

/** A conversation of its own with the turns up to `turn`. */
export function branch(conversation: Conversation, turn: Turn): Conversation {
  const copy = newConversation(conversation.settings);
  const names = new Map<string, string>();
  for (const old of path(conversation, turn.id)) {
    const id = newId();
    names.set(old.id, id);
    const parent = old.parent === null ? null : (names.get(old.parent) ?? null);
    copy.turns.push({ ...structuredClone(old), id, parent });
    copy.leaf = id;
  }
  copy.title = conversation.title;
  copy.named = conversation.named;
  return copy;
}

/** The first line of the first message, cut at a word. */
export function titleOf(conversation: Conversation, limit = 60): string {
  const first = conversation.turns.find((turn) => turn.role === "user");
  if (!first) return "";
  const line = first.text.trim().split("\n", 1)[0] ?? "";
  const text = line.replace(/^[#>*\-\s]+/, "").replace(/\s+/g, " ") || first.files?.[0]?.name || "";
  if (text.length <= limit) return text;
  const cut = text.slice(0, limit);
  const space = cut.lastIndexOf(" ");
  return `${space > limit / 2 ? cut.slice(0, space) : cut}…`;
}

/** Whether each word of a query is in the title or in a message. */
export function matches(conversation: Conversation, query: string): boolean {
  const words = query.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return true;
  const texts = conversation.turns.map((turn) => turn.text);
  const all = [conversation.title, ...texts].join("\n").toLocaleLowerCase();
  return words.every((word) => all.includes(word));
}

/**
 * The exchanges of a branch: a message of the user with the answers and results of tools behind
 * it. The oldest ones are left out whole when the context is full.
 */
export function exchanges(turns: Turn[]): Turn[][] {
  const found: Turn[][] = [];
  for (const turn of turns) {
    const last = found.at(-1);
    if (turn.role === "user" || !last) found.push([turn]);
    else last.push(turn);
  }
  return found;
}
