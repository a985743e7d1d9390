// Markdown to HTML, within limits: what is nested too deeply or grows too large stays plain text.
// It runs in a worker, where it can be ended when it takes too long. HTML within the Markdown is shown
// as text: a model that writes a tag means the reader to see it. The page sanitizes the result.

import { Lexer, Marked, type Token, type Tokens, type TokensList } from "marked";
import { footnotes, listOf, newNotes } from "./footnotes.ts";
import { type Block, type Formatted, unformatted } from "./formatted.ts";
import { escape, highlight } from "./highlight.ts";
import { hasRenderer, math } from "./math.ts";

const COPY = '<button type="button" class="copy" data-copy>Copy</button>';

/** The type of what is nested too deeply to be read. */
const DEEP = "deep";

const marked = new Marked(math, footnotes, {
  gfm: true,
  silent: true,
  extensions: [
    {
      name: DEEP,
      renderer: () => {
        throw new Error("the block is nested too deeply");
      },
    },
  ],
  renderer: {
    html: ({ raw }) => escape(raw),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // Nothing is fetched from elsewhere, images least of all: they would tell who reads.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    code({ text, lang }: Tokens.Code) {
      const language = (lang ?? "").trim().split(/[\s{,]/, 1)[0] ?? "";
      const name = `<span>${escape(language || "text")}</span>`;
      const code = highlight(text, language.toLowerCase());
      return (
        `<figure class="code" dir="ltr"><figcaption>${name}${COPY}</figcaption>` +
        `<pre tabindex="0"><code>${code}</code></pre></figure>`
      );
    },
    table(token: Tokens.Table) {
      const cell = (own: Tokens.TableCell, tag: string) => {
        const align = own.align ? ` class="${own.align}"` : "";
        return `<${tag}${align}>${this.parser.parseInline(own.tokens)}</${tag}>`;
      };
      const row = (cells: Tokens.TableCell[], tag: string) =>
        `<tr>${cells.map((own) => cell(own, tag)).join("")}</tr>`;
      const head = row(token.header, "th");
      const rows = token.rows.map((cells) => row(cells, "td")).join("");
      return (
        `<div class="table" tabindex="0"><table><thead>${head}</thead>` +
        `<tbody>${rows}</tbody></table></div>`
      );
    },
  },
});

/** The longest text that is read as Markdown, in characters. */
export const LONGEST = 500_000;
/** The longest HTML of a block. */
const LONGEST_HTML = 300_000;
/** Most blocks of a text; what follows them stays plain. */
const MOST_BLOCKS = 3000;

export interface Options {
  /** How deeply quotes, lists and emphasis may be nested. */
  depth: number;
  /** Blocks that stay plain, by their place. */
  plain?: Iterable<number>;
  /** Is told of each block before it is read, and of -1 before the text is divided into blocks. */
  step?: (block: number) => void;
}

/** Reads blocks first and their words later, block by block, and neither deeper than its limit. */
class BoundedLexer extends Lexer {
  readonly #limit: number;
  #depth = 0;

  constructor(limit: number) {
    super(marked.defaults);
    this.#limit = limit;
  }

  #within<T extends Token[]>(src: string, tokens: T, read: () => T): T {
    if (this.#depth >= this.#limit) {
      tokens.push({ type: DEEP, raw: src });
      return tokens;
    }
    this.#depth += 1;
    try {
      return read();
    } finally {
      this.#depth -= 1;
    }
  }

  override blockTokens(src: string, tokens?: Token[], isClipped?: boolean): Token[];
  override blockTokens(src: string, tokens?: TokensList, isClipped?: boolean): TokensList;
  override blockTokens(src: string, tokens: Token[] = [], isClipped = false): Token[] {
    return this.#within(src, tokens, () => super.blockTokens(src, tokens, isClipped));
  }

  override inlineTokens(src: string, tokens: Token[] = []): Token[] {
    return this.#within(src, tokens, () => super.inlineTokens(src, tokens));
  }

  /** The blocks, whose words are not read yet. */
  divide(text: string): Token[] {
    return this.blockTokens(text.replace(/\r\n|\r/g, "\n"), this.tokens);
  }

  /** Reads the words within tokens. */
  readWords(tokens: Token[]): void {
    const waiting = new Map(this.inlineQueue.map((own) => [own.tokens, own.src]));
    const visit = (value: unknown): void => {
      if (!Array.isArray(value)) return;
      const src = waiting.get(value);
      if (src !== undefined) {
        this.state.inRawBlock = false;
        this.inlineTokens(src, value);
        waiting.delete(value);
        return;
      }
      for (const token of value) {
        if (typeof token === "object" && token !== null) Object.values(token).forEach(visit);
        visit(token);
      }
    };
    visit(tokens);
    this.inlineQueue = this.inlineQueue.filter((own) => waiting.has(own.tokens));
  }
}

const cache = new Map<string, Block>();
const CACHED = 600;

/** Forgets what was formatted, as formulas are rendered differently from now on. */
export function forget(): void {
  cache.clear();
}

/** The block that `render` makes, or its source if it is nested too deeply or too long. */
function within(raw: string, render: () => string): Block {
  try {
    const html = render();
    return html.length <= LONGEST_HTML ? { html } : { plain: raw };
  } catch {
    return { plain: raw };
  }
}

/** Formats a text. */
export function format(text: string, { depth, plain = [], step = () => {} }: Options): Formatted {
  if (text.length > LONGEST) return unformatted(text);
  const isPlain = new Set(plain);
  const notes = newNotes();
  const lexer = new BoundedLexer(depth);
  let all: Token[];
  step(-1);
  try {
    all = lexer.divide(text);
  } catch {
    return unformatted(text);
  }
  const shown = all.filter(({ type }) => !["space", "def", "note"].includes(type));
  // Brackets mean something else once the text has what they may refer to.
  const hasTargets = notes.texts.size > 0 || Object.keys(lexer.tokens.links).length > 0;
  const blocks: Block[] = [];
  let isCut = false;

  const html = (tokens: Token[]) => {
    lexer.readWords(tokens);
    return marked.parser(tokens);
  };
  const add = (source: string, isCached: boolean, render: () => string) => {
    const raw = source.replace(/\n+$/, "");
    const idx = blocks.length;
    const key = `${depth}\n${raw}`;
    let block = isCached && !isPlain.has(idx) ? cache.get(key) : undefined;
    if (!block) {
      step(idx);
      block = isPlain.has(idx) ? { plain: raw } : within(raw, render);
      if (cache.size >= CACHED) cache.clear();
      if (isCached && !isPlain.has(idx)) cache.set(key, block);
    }
    isCut ||= "plain" in block;
    blocks.push(block);
  };

  for (const token of shown.slice(0, MOST_BLOCKS)) {
    add(token.raw, !(hasTargets && token.raw.includes("[")), () => html([token]));
  }
  const rest = shown.slice(MOST_BLOCKS).map(({ raw }) => raw).join("\n");
  if (rest) {
    blocks.push({ plain: rest });
    isCut = true;
  }
  if (notes.texts.size > 0) {
    const raw = all.filter(({ type }) => type === "note").map((token) => token.raw).join("");
    add(raw, false, () => listOf(notes, html));
  }
  const needsMath = !hasRenderer() && blocks.some((block) => "html" in block && block.html.includes('<code class="tex">'));
  return { blocks, isCut, needsMath };
}
