// Footnotes in Markdown: `[^label]` in the text, `[^label]: words` where the note is written. They are
// numbered in the order in which the text refers to them, and stand at its end.

import type { MarkedExtension, Token, Tokens } from "marked";

const START = /^\[\^([^\]\s]+)\]:[ \t]*/;
/** Lines that begin something else, and so do not continue a note's paragraph. */
const OTHER = /^ {0,3}(?:#{1,6}\s|>|[-*+]\s|\d{1,9}[.)]\s|`{3}|~{3}|\||\[\^)/;

/** The notes of one text. */
export class Notes {
  /** The tokens of each note, by label; the first of two wins. */
  readonly texts = new Map<string, Token[]>();
  /** Labels in the order of their numbers. */
  readonly order: string[] = [];

  /** The number of a note, counted from 1. */
  numberOf(label: string): number {
    const at = this.order.indexOf(label);
    return at === -1 ? this.order.push(label) : at + 1;
  }
}

let notes = new Notes();

/** Begins another text, whose notes are returned. */
export function newNotes(): Notes {
  notes = new Notes();
  return notes;
}

/** The source of the note at the beginning of a text, and its words without their indentation. */
export function cutNote(source: string): { raw: string; words: string } | null {
  const start = START.exec(source);
  if (!start) return null;
  const lines = source.split("\n");
  const words = [(lines[0] ?? "").slice(start[0].length)];
  let n = 1;
  for (let at = 1; at < lines.length; at += 1) {
    const line = lines[at] ?? "";
    if (line.trim() === "") continue;
    const isIndented = /^(?: {2}|\t)/.test(line);
    const isLazy = at === n && !OTHER.test(line);
    if (!isIndented && !isLazy) break;
    while (n < at) n = words.push("");
    n = words.push(line.replace(/^(?: {1,4}|\t)/, ""));
  }
  const raw = lines.slice(0, n).join("\n");
  return { raw: raw.length < source.length ? `${raw}\n` : raw, words: words.join("\n") };
}

interface Reference extends Tokens.Generic {
  label: string;
}

export const footnotes: MarkedExtension = {
  extensions: [
    {
      name: "note",
      level: "block",
      // No paragraph goes on behind an empty line, so nothing has to be looked for there.
      start: (source) => source.split("\n\n", 1)[0]?.match(/^\[\^[^\]\s]+\]:/m)?.index,
      tokenizer(source) {
        const label = START.exec(source)?.[1];
        const found = label === undefined ? null : cutNote(source);
        if (!found || label === undefined) return undefined;
        const tokens = this.lexer.blockTokens(found.words, []);
        if (!notes.texts.has(label)) notes.texts.set(label, tokens);
        return { type: "note", raw: found.raw, tokens };
      },
      renderer: () => "",
    },
    {
      name: "noteReference",
      level: "inline",
      start: (source) => {
        const at = source.indexOf("[^");
        return at === -1 ? undefined : at;
      },
      tokenizer(source) {
        const [raw, label] = /^\[\^([^\]\s]+)\]/.exec(source) ?? [];
        if (raw === undefined || label === undefined || !notes.texts.has(label)) return undefined;
        return { type: "noteReference", raw, label };
      },
      renderer: (token) => {
        const number = notes.numberOf((token as Reference).label);
        return `<sup><button type="button" class="note" data-note="${number}" aria-label="Footnote ${number}">${number}</button></sup>`;
      },
    },
  ],
};

/** HTML of the list at the end; `render` makes that of the tokens of a note. */
export function listOf({ texts, order }: Notes, render: (tokens: Token[]) => string): string {
  const items: string[] = [];
  const isListed = new Set<string>();
  const add = (label: string, back: string) => {
    isListed.add(label);
    items.push(`<li tabindex="-1" data-note-text="${items.length + 1}">${render(texts.get(label) ?? [])}${back}</li>`);
  };
  // The notes themselves may refer to others, which then follow.
  for (let at = 0; at < order.length; at += 1) {
    const back = `<button type="button" class="note" data-note-of="${at + 1}" aria-label="Back to the text">↩</button>`;
    add(order[at] ?? "", back);
  }
  for (const label of texts.keys()) if (!isListed.has(label)) add(label, "");
  return `<section class="notes" aria-label="Footnotes"><ol>${items.join("")}</ol></section>`;
}
