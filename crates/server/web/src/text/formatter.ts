// Has texts formatted by a worker, and ends it when it gets stuck. What it got stuck on is shown as plain
// text, and can be tried once more with more patience. Nothing here knows of the screen.

import { type Formatted, unformatted } from "./formatted.ts";

export interface Job {
  id: number;
  text: string;
  /** Of code; null for Markdown. */
  language: string | null;
  depth: number;
  /** Blocks that stay plain. */
  plain: number[];
}

export type Reply =
  | { kind: "ready" }
  /** The worker begins a block. */
  | { kind: "step"; id: number; block: number }
  | { kind: "done"; id: number; formatted: Formatted }
  /** Formulas can be rendered from now on. */
  | { kind: "math" };

export interface Worker {
  post(job: Job): void;
  end(): void;
}

/** Starts a worker; `failed` is called if there cannot be one. */
export type Start = (receive: (reply: Reply) => void, failed: () => void) => Worker;

/** Shows a text. */
export interface Reader {
  text: string;
  language: string | null;
  /** Is given what a text was formatted to, which the reader's own may have outgrown. */
  show(formatted: Formatted, text: string): void;
}

/** How long a step may take, in milliseconds, and how deep texts may be nested. */
const LIMITS = { ms: 2000, depth: 16 };
/** The same if the user asks for another try. */
const PATIENT = { ms: 20_000, depth: 64 };
/** Blocks of one text that may get stuck, before the text is not tried any further. */
const MOST_STUCK = 4;
/** The shortest time between two versions of a text that grows, in milliseconds. */
const PAUSE = 40;
/** Characters of texts whose results are remembered. */
const REMEMBERED = 2_000_000;

/** What is known of a reader's text. */
interface Asked {
  reader: Reader;
  limits: typeof LIMITS;
  /** Blocks that got stuck. */
  stuck: Set<number>;
  /** A text that, like all that begin with it, is not tried. */
  given: string | null;
}

interface Current {
  asked: Asked;
  id: number;
  text: string;
  language: string | null;
  block: number;
  began: number;
}

export class Formatter {
  readonly #start: Start;
  #worker: Worker | null = null;
  #isReady = false;
  #asked = new Map<Reader, Asked>();
  #queue: Asked[] = [];
  #current: Current | null = null;
  #nextId = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #known = new Map<string, Formatted>();
  #knownSize = 0;

  constructor(start: Start) {
    this.#start = start;
  }

  /** What a text was formatted to, if that is known. */
  known(text: string, language: string | null): Formatted | undefined {
    return this.#known.get(`${language} ${text}`);
  }

  /** Formats a reader's text; `isAgain` is for one that was cut. */
  ask(reader: Reader, isAgain = false): void {
    let asked = this.#asked.get(reader);
    if (!asked || isAgain) {
      if (asked) this.#forget(asked);
      asked = { reader, limits: isAgain ? PATIENT : LIMITS, stuck: new Set(), given: null };
      this.#asked.set(reader, asked);
    }
    const known = isAgain ? undefined : this.known(reader.text, reader.language);
    if (known) {
      this.#queue = this.#queue.filter((own) => own !== asked);
      return reader.show(known, reader.text);
    }
    if (asked.given !== null) {
      if (reader.text.startsWith(asked.given)) return reader.show(unformatted(reader.text), reader.text);
      asked.given = null;
      asked.stuck.clear();
    }
    if (this.#current?.asked !== asked && !this.#queue.includes(asked)) this.#queue.push(asked);
    this.#next();
  }

  /** The reader is gone. */
  drop(reader: Reader): void {
    const asked = this.#asked.get(reader);
    this.#asked.delete(reader);
    if (asked) this.#forget(asked);
  }

  /** A job that is under way is ended only if its worker gets stuck. */
  #forget(asked: Asked): void {
    this.#queue = this.#queue.filter((own) => own !== asked);
  }

  #next(): void {
    if (this.#current) return;
    const asked = this.#queue.shift();
    if (!asked) return;
    const { text, language } = asked.reader;
    this.#current = { asked, id: this.#nextId++, text, language, block: -1, began: Date.now() };
    if (!this.#worker) {
      this.#isReady = false;
      this.#worker = this.#start((reply) => this.#receive(reply), () => this.#failed());
    } else if (this.#isReady) {
      this.#post();
    }
  }

  #post(): void {
    const current = this.#current;
    if (!current) return;
    const { id, text, language, asked } = current;
    this.#worker?.post({ id, text, language, depth: asked.limits.depth, plain: [...asked.stuck] });
    this.#watch();
  }

  /** Gives the worker time for a step. */
  #watch(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#stuck(), this.#current?.asked.limits.ms);
  }

  #receive(reply: Reply): void {
    if (reply.kind === "ready") {
      this.#isReady = true;
      return this.#post();
    }
    if (reply.kind === "math") {
      this.#known.clear();
      this.#knownSize = 0;
      for (const reader of [...this.#asked.keys()]) this.ask(reader);
      return;
    }
    if (reply.id !== this.#current?.id) return;
    if (reply.kind === "done") return this.#done(reply.formatted);
    this.#current.block = reply.block;
    this.#watch();
  }

  /** Ends the worker, whose step takes too long, and goes on without that step. */
  #stuck(): void {
    this.#worker?.end();
    this.#worker = null;
    const current = this.#current;
    if (!current) return;
    const { asked, block, text, language } = current;
    if (block === -1 || asked.stuck.size >= MOST_STUCK) {
      asked.given = text;
      return this.#done(unformatted(text));
    }
    asked.stuck.add(block);
    this.#current = null;
    // The same text again, unless the reader has another one by now.
    if (this.#isAsked(asked) && asked.reader.text.startsWith(text) && asked.reader.language === language) {
      this.#queue.unshift(asked);
    }
    this.#next();
  }

  /** There is no worker: nothing is formatted until it is asked for once more. */
  #failed(): void {
    this.#worker?.end();
    this.#worker = null;
    const waiting = [...(this.#current ? [this.#current.asked] : []), ...this.#queue];
    clearTimeout(this.#timer);
    this.#current = null;
    this.#queue = [];
    for (const { reader } of waiting) reader.show(unformatted(reader.text), reader.text);
  }

  #isAsked(asked: Asked): boolean {
    return this.#asked.get(asked.reader) === asked;
  }

  #done(formatted: Formatted): void {
    const current = this.#current;
    if (!current) return;
    clearTimeout(this.#timer);
    const { asked, text, language, began } = current;
    const { reader } = asked;
    this.#current = null;
    if (this.#isAsked(asked)) {
      const isLatest = reader.text === text && reader.language === language;
      // A version that grows is soon outgrown, and one that waits for its formulas is not the last one.
      if (isLatest && !formatted.needsMath) this.#remember(`${language} ${text}`, formatted);
      // What the reader has outgrown is still the beginning of its text; anything else is stale.
      if (reader.text.startsWith(text) && reader.language === language) reader.show(formatted, text);
      // Long texts take longer, and are formatted less often while they grow.
      if (!isLatest) setTimeout(() => this.#isAsked(asked) && this.ask(reader), Math.max(PAUSE, Date.now() - began));
    }
    this.#next();
  }

  #remember(key: string, formatted: Formatted): void {
    if (!this.#known.has(key)) this.#knownSize += key.length;
    this.#known.set(key, formatted);
    for (const old of this.#known.keys()) {
      if (this.#knownSize <= REMEMBERED || old === key) break;
      this.#known.delete(old);
      this.#knownSize -= old.length;
    }
  }
}
