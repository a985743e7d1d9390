// The conversations that the browser keeps, shared by all tabs of this page.

import { type Base, merge, NOTHING, snapshot } from "./merge.ts";
import { Storage } from "./storage.ts";
import { type Note, Tabs } from "./tabs.ts";
import * as tree from "./tree.ts";
import type { Conversation, Turn } from "./types.ts";

/** What the library tells of. */
export interface Listener {
  /** Something is to be drawn again, a turn in particular. */
  changed(turn?: Turn): void;
  /** Another tab has deleted a conversation. */
  deleted(conversation: Conversation): void;
  /** Another tab asks to stop an answer. */
  stop(turnId: string): void;
  problem(text: string): void;
}

export class Library {
  conversations: Conversation[] = [];
  /** Whether conversations outlast the page. */
  lasts = true;

  readonly #listener: Listener;
  #storage: Storage | null = null;
  #tabs: Tabs | null = null;
  readonly #bases = new Map<string, Base>();
  /** Turns that are being answered in this tab, and the conversations they belong to. */
  readonly #here = new Map<Turn, Conversation>();
  /** The same of other tabs, by ids. */
  readonly #elsewhere = new Map<string, string>();

  constructor(listener: Listener) {
    this.#listener = listener;
  }

  /** Reads what is stored, and listens to other tabs from then on. */
  async open(): Promise<void> {
    const storage = await Storage.open();
    this.lasts = storage.lasts;
    if (this.lasts) this.#tabs = new Tabs((note) => void this.#receive(note));
    const stored = await storage.all();
    this.#storage = storage;
    for (const conversation of stored) {
      this.#bases.set(conversation.id, snapshot(conversation));
      this.conversations.push(conversation);
    }
    this.#sort();
    this.#tabs?.tell({ kind: "who" });
  }

  #sort(): void {
    this.conversations = this.conversations.toSorted((a, b) => b.updated - a.updated);
  }

  has(conversation: Conversation): boolean {
    return this.conversations.includes(conversation);
  }

  /** Takes conversations into the list, by their age. */
  add(...conversations: Conversation[]): void {
    this.conversations.push(...conversations.filter((own) => !this.has(own)));
    this.#sort();
  }

  /** Stores what has changed in a conversation, and takes over what other tabs have changed in it. */
  async save(conversation: Conversation): Promise<void> {
    if (!this.has(conversation) || !this.#storage) return;
    const { id } = conversation;
    let news: Turn[] = [];
    let base: Base | undefined;
    try {
      await this.#storage.update(id, (stored) => {
        const before = this.#bases.get(id);
        // Another tab has deleted it, and will say so.
        if (!stored && before) return undefined;
        if (stored) news = merge(before ?? NOTHING, conversation, stored);
        base = snapshot(conversation);
        return conversation;
      });
    } catch (error) {
      this.#listener.problem(`This chat could not be saved: ${(error as Error).message}`);
    }
    if (!base) return;
    this.#bases.set(id, base);
    this.#tabs?.tell({ kind: "stored", id });
    for (const turn of news) {
      // Another version of it has kept its id.
      if (this.#here.has(turn)) this.#tabs?.tell({ kind: "started", id, turn: turn.id });
    }
    this.#drawAgain(news);
  }

  #drawAgain(turns: Turn[]): void {
    for (const turn of turns) this.#listener.changed(turn);
    this.#listener.changed();
  }

  delete(conversation: Conversation): void {
    const { id } = conversation;
    this.#forget(conversation);
    this.#storage?.delete(id).then(
      () => this.#tabs?.tell({ kind: "deleted", id }),
      (error: Error) => this.#listener.problem(`This chat could not be deleted: ${error.message}`),
    );
  }

  #forget(conversation: Conversation): void {
    this.conversations = this.conversations.filter((own) => own !== conversation);
    // If it is put back it is a new one.
    this.#bases.delete(conversation.id);
  }

  // ---- Answers that arrive.

  started(conversation: Conversation, turn: Turn): void {
    this.#here.set(turn, conversation);
    this.#tabs?.tell({ kind: "started", id: conversation.id, turn: turn.id });
  }

  ended(conversation: Conversation, turn: Turn): void {
    if (this.#here.delete(turn)) this.#tabs?.tell({ kind: "ended", id: conversation.id, turn: turn.id });
  }

  /** Whether the turn is being answered, here or in another tab. */
  isLive(turn: Turn): boolean {
    return this.#here.has(turn) || this.#elsewhere.has(turn.id);
  }

  /** A turn of the branch that is shown which is being answered in another tab. */
  elsewhere(conversation: Conversation): Turn | undefined {
    if (![...this.#elsewhere.values()].includes(conversation.id)) return undefined;
    return tree.path(conversation).find((turn) => this.#elsewhere.has(turn.id));
  }

  /** Stops an answer that arrives in another tab. If that tab is gone, it is stopped by this. */
  stopElsewhere(turn: Turn): void {
    this.#tabs?.tell({ kind: "stop", turn: turn.id });
    this.#elsewhere.delete(turn.id);
    this.#drawAgain([turn]);
  }

  /** Stores what has arrived of answers, as the page may be about to go. */
  saveLive(): void {
    for (const conversation of new Set(this.#here.values())) void this.save(conversation);
  }

  /** The page goes, and with it what arrives here. */
  leave(): void {
    for (const [turn, { id }] of this.#here) this.#tabs?.tell({ kind: "ended", id, turn: turn.id });
  }

  // ---- Other tabs.

  /** Looks through all that is stored, after a time in which nothing was heard. */
  async refresh(): Promise<void> {
    const stored = (await this.#storage?.all()) ?? [];
    for (const conversation of stored) this.#take(conversation);
    this.#elsewhere.clear();
    this.#tabs?.tell({ kind: "who" });
    this.#tellLive();
  }

  #tellLive(): void {
    for (const [turn, { id }] of this.#here) this.#tabs?.tell({ kind: "started", id, turn: turn.id });
  }

  /** Takes over what is stored of a conversation. */
  #take(stored: Conversation): void {
    const own = this.conversations.find(({ id }) => id === stored.id);
    // The merge may take turns of `stored` into `own`.
    const base = snapshot(stored);
    const news = own ? merge(this.#bases.get(own.id) ?? NOTHING, own, stored) : [];
    this.#bases.set(stored.id, base);
    if (!own) this.conversations.push(stored);
    this.#sort();
    this.#drawAgain(news);
  }

  async #receive(note: Note): Promise<void> {
    switch (note.kind) {
      case "stored": {
        const stored = await this.#storage?.get(note.id);
        if (stored) this.#take(stored);
        return;
      }
      case "deleted": {
        const own = this.conversations.find(({ id }) => id === note.id);
        if (!own) return;
        this.#forget(own);
        return this.#listener.deleted(own);
      }
      case "started":
      case "ended": {
        if (note.kind === "started") this.#elsewhere.set(note.turn, note.id);
        else this.#elsewhere.delete(note.turn);
        const own = this.conversations.find(({ id }) => id === note.id);
        return this.#drawAgain(own?.turns.filter(({ id }) => id === note.turn) ?? []);
      }
      case "who":
        return this.#tellLive();
      case "stop":
        return this.#listener.stop(note.turn);
    }
  }
}
