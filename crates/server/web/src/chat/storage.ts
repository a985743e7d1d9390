// What the browser keeps: conversations in IndexedDB, small settings in localStorage. A window
// that keeps nothing, as private ones may, works from memory.

import { readConversation } from "./read.ts";
import type { Conversation } from "./types.ts";

const NAME = "realizar";
const CONVERSATIONS = "conversations";

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function open(): Promise<IDBDatabase> {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
  return done(request);
}

export class Storage {
  readonly #database: IDBDatabase | null;

  private constructor(database: IDBDatabase | null) {
    this.#database = database;
  }

  static async open(): Promise<Storage> {
    try {
      return new Storage(await open());
    } catch {
      return new Storage(null);
    }
  }

  /** Whether conversations are there after a reload. */
  get lasts(): boolean {
    return this.#database !== null;
  }

  #store(mode: IDBTransactionMode): IDBObjectStore | undefined {
    return this.#database?.transaction(CONVERSATIONS, mode).objectStore(CONVERSATIONS);
  }

  /** All that is stored; what cannot be read stays where it is and is not shown. */
  async all(): Promise<Conversation[]> {
    const store = this.#store("readonly");
    return store ? (await done<unknown[]>(store.getAll())).flatMap((value) => read(value) ?? []) : [];
  }

  async get(id: string): Promise<Conversation | undefined> {
    const store = this.#store("readonly");
    return store && read(await done<unknown>(store.get(id)));
  }

  /**
   * Changes what is stored of a conversation in one transaction, so that no tab overwrites what another
   * one has stored in between. `change` gets what is stored and returns what takes its place, if anything.
   */
  async update(id: string, change: (stored: Conversation | undefined) => Conversation | undefined): Promise<void> {
    const store = this.#store("readwrite");
    if (!store) return;
    const { transaction } = store;
    await new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("the browser did not store it"));
      const request = store.get(id);
      request.onsuccess = () => {
        try {
          const next = change(read(request.result));
          if (next) store.put(next);
        } catch (error) {
          reject(error);
          transaction.abort();
        }
      };
    });
  }

  async delete(id: string): Promise<void> {
    const store = this.#store("readwrite");
    if (store) await done(store.delete(id));
  }
}

function read(value: unknown): Conversation | undefined {
  try {
    return value === undefined ? undefined : readConversation(value);
  } catch {
    return undefined;
  }
}

/** A named system prompt. */
export interface Prompt {
  name: string;
  text: string;
}

const PREFIX = "realizar.";

/** Reads a small setting; what cannot be read is absent. */
export function recall<T>(name: string, otherwise: T, area: () => globalThis.Storage = () => localStorage): T {
  try {
    const text = area().getItem(PREFIX + name);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise;
  }
}

/** Keeps a small setting, or forgets it if it is undefined. */
export function keep(name: string, value: unknown, area: () => globalThis.Storage = () => localStorage): void {
  try {
    if (value === undefined) area().removeItem(PREFIX + name);
    else area().setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // This window keeps nothing.
  }
}
