// Two tabs may change one conversation at the same time. Each applies its own changes to what is
// stored, turn by turn: two messages behind the same answer become two branches, as an edited
// message does, and nothing is overwritten.

import { newId } from "./tree.ts";
import type { Conversation, Settings, Turn } from "./types.ts";

/** A conversation as it was stored when this tab last saw it, to tell what has changed since. */
export interface Base {
  /** A print of each turn, by its id. */
  turns: Map<string, string>;
  title: string;
  named: boolean;
  settings: Settings;
}

/** Nothing was stored yet. */
export const NOTHING: Base = { turns: new Map(), title: "", named: false, settings: {} };

/** Differs where turns differ. Files never change, and tokens only together with the text. */
function print(turn: Turn): string {
  const fields = { ...turn, files: turn.files?.length, tokens: turn.tokens?.length };
  return JSON.stringify(Object.entries(fields).sort(([a], [b]) => (a < b ? -1 : 1)));
}

export function snapshot(conversation: Conversation): Base {
  const { title, named, settings } = conversation;
  const turns = new Map(conversation.turns.map((turn) => [turn.id, print(turn)]));
  return { turns, title, named, settings: structuredClone(settings) };
}

/** The ids of the turns to keep, with those that lead to them. Parents stand before their children. */
function withParents(turns: Turn[], isKept: (turn: Turn) => boolean): Set<string> {
  const kept = new Set<string>();
  for (const turn of turns.toReversed()) {
    if (!kept.has(turn.id) && !isKept(turn)) continue;
    kept.add(turn.id);
    if (turn.parent !== null) kept.add(turn.parent);
  }
  return kept;
}

/** Whether a reader would lose something if one of two versions replaced the other. */
function differ(a: Turn, b: Turn): boolean {
  const said = ({ text, reasoning, calls }: Turn) => JSON.stringify([text, reasoning ?? "", calls ?? []]);
  return said(a) !== said(b);
}

/** Gives a turn the fields of another version of it. */
function replace(turn: Turn, version: Turn): void {
  for (const name of Object.keys(turn)) if (!(name in version)) delete turn[name as keyof Turn];
  Object.assign(turn, version);
}

/** Whether `leaf` is followed by `other`. */
function precedes(turns: Turn[], leaf: string | null, other: string | null): boolean {
  const parents = new Map(turns.map((turn) => [turn.id, turn.parent]));
  const seen = new Set<string>();
  for (let id = other; id !== null && !seen.has(id); id = parents.get(id) ?? null) {
    if (id === leaf) return true;
    seen.add(id);
  }
  return leaf === null;
}

/**
 * Brings what other tabs have stored into `own`, and keeps what changed here since `base`. Turns of
 * `own` stay the same objects. Returns those that are new here or have changed.
 *
 * A turn that was changed on both sides is kept twice, as siblings. A turn that was removed on one side
 * stays if the other one has changed it or continues behind it.
 */
export function merge(base: Base, own: Conversation, stored: Conversation): Turn[] {
  const mine = new Map(own.turns.map((turn) => [turn.id, turn]));
  const theirs = new Map(stored.turns.map((turn) => [turn.id, turn]));
  const isChanged = (turn: Turn) => base.turns.get(turn.id) !== print(turn);
  const news: Turn[] = [];
  const turns: Turn[] = [];
  /** New ids of own versions, by the ids that the stored ones keep. */
  const renamed = new Map<string, string>();

  const keptOfStored = withParents(stored.turns, (turn) => mine.has(turn.id) || isChanged(turn));
  for (const other of stored.turns) {
    if (!keptOfStored.has(other.id)) continue;
    const turn = mine.get(other.id);
    if (!turn || (isChanged(other) && isChanged(turn) && differ(turn, other))) {
      if (turn) renamed.set(turn.id, newId());
      turns.push(other);
      news.push(other);
      continue;
    }
    if (isChanged(other) && !isChanged(turn)) {
      replace(turn, other);
      news.push(turn);
    }
    turns.push(turn);
  }

  const ofOwnAlone = own.turns.filter((turn) => !theirs.has(turn.id));
  const keptOfOwn = withParents(ofOwnAlone, isChanged);
  for (const turn of own.turns) {
    const isNew = !base.turns.has(turn.id);
    const id = renamed.get(turn.id);
    if (id !== undefined) turn.id = id;
    else if (theirs.has(turn.id) || !keptOfOwn.has(turn.id)) continue;
    if (isNew && turn.parent !== null) turn.parent = renamed.get(turn.parent) ?? turn.parent;
    if (id !== undefined) news.push(turn);
    turns.push(turn);
  }
  own.turns = turns;

  let leaf = own.leaf === null ? null : (renamed.get(own.leaf) ?? own.leaf);
  if (leaf !== null && !turns.some((turn) => turn.id === leaf)) leaf = null;
  // What was said behind the end of the branch that is shown is shown too; another branch is not.
  const isThere = turns.some((turn) => turn.id === stored.leaf);
  own.leaf = isThere && precedes(turns, leaf, stored.leaf) ? stored.leaf : (leaf ?? turns.at(-1)?.id ?? null);

  if (own.title === base.title) own.title = stored.title;
  if (own.named === base.named) own.named = stored.named;
  own.settings = mergeSettings(base.settings, own.settings, stored.settings);
  own.created = stored.created;
  own.updated = Math.max(own.updated, stored.updated);
  return news;
}

function mergeSettings(base: Settings, own: Settings, stored: Settings): Settings {
  const isSame = (name: string, a: object, b: object) =>
    JSON.stringify(Reflect.get(a, name)) === JSON.stringify(Reflect.get(b, name));
  const names = new Set([...Object.keys(own), ...Object.keys(stored)]);
  const fields = [...names].map((name) => [name, Reflect.get(isSame(name, base, own) ? stored : own, name)] as const);
  return Object.fromEntries(fields.filter(([, value]) => value !== undefined)) as Settings;
}
