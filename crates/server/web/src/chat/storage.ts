// What the browser keeps: conversations in IndexedDB, small settings in localStorage. A window
// that keeps nothing, as private ones may, works from memory.

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

  async all(): Promise<Conversation[]> {
    const store = this.#store("readonly");
    return store ? done(store.getAll()) : [];
  }

  async put(conversation: Conversation): Promise<void> {
    const store = this.#store("readwrite");
    if (store) await done(store.put(conversation));
  }

  async delete(id: string): Promise<void> {
    const store = this.#store("readwrite");
    if (store) await done(store.delete(id));
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
