// Math in Markdown: where it begins and ends, and its rendering, which is a file of its own beside the
// worker's, fetched when the first formula is seen.

import type { MarkedExtension, Tokens } from "marked";
import { escape } from "./highlight.ts";

export type Render = (tex: string, display: boolean) => string;

let render: Render | null = null;
let fetching: Promise<void> | null = null;

/** Sets what renders formulas; until then they show their source. */
export function useRenderer(renderer: Render | null): void {
  render = renderer;
}

/** Fetches the renderer; `then` is called once it is there. */
export function needMath(then: () => void): void {
  if (render) return;
  fetching ??= import(/* external */ "./math.js" as string).then((module: { render: Render }) => {
    useRenderer(module.render);
  });
  fetching.then(then, () => {
    // The source of the formulas stays in sight, and the next one tries again.
    fetching = null;
  });
}

export function hasRenderer(): boolean {
  return render !== null;
}

interface Formula extends Tokens.Generic {
  tex: string;
  display: boolean;
}

function html({ tex, display }: Formula): string {
  if (!render) return `<code class="tex">${escape(tex)}</code>`;
  try {
    return render(tex, display);
  } catch {
    return `<code class="tex">${escape(tex)}</code>`;
  }
}

// A dollar is a price unless the formula touches both of its dollars and no digit follows.
const INLINE = [
  { rule: /^\$\$([^$]+?)\$\$/, display: true },
  { rule: /^\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/, display: false },
  { rule: /^\\\((.+?)\\\)/s, display: false },
  { rule: /^\\\[(.+?)\\\]/s, display: true },
];
const BLOCK = [/^ {0,3}\$\$\s*\n?([\s\S]+?)\n?\s*\$\$[ \t]*(?:\n|$)/, /^ {0,3}\\\[\s*\n?([\s\S]+?)\n?\s*\\\][ \t]*(?:\n|$)/];

function formula(type: string, raw: string, tex: string, display: boolean): Formula {
  return { type, raw, tex: tex.trim(), display };
}

/** Formulas between `$`, `$$`, `\(` and `\[`. */
export const math: MarkedExtension = {
  extensions: [
    {
      name: "mathBlock",
      level: "block",
      // No paragraph goes on behind an empty line, so nothing has to be looked for there.
      start: (source) => source.split("\n\n", 1)[0]?.match(/^ {0,3}(\$\$|\\\[)/m)?.index,
      tokenizer(source) {
        for (const rule of BLOCK) {
          const match = rule.exec(source);
          if (match?.[1]?.trim()) return formula("mathBlock", match[0], match[1], true);
        }
        return undefined;
      },
      renderer: (token) => `<div class="formula">${html(token as Formula)}</div>`,
    },
    {
      name: "mathInline",
      level: "inline",
      start: (source) => source.match(/\$|\\\(|\\\[/)?.index,
      tokenizer(source) {
        for (const { rule, display } of INLINE) {
          const match = rule.exec(source);
          if (match?.[1]?.trim()) return formula("mathInline", match[0], match[1], display);
        }
        return undefined;
      },
      renderer: (token) => html(token as Formula),
    },
  ],
};
