// Markdown to HTML that is safe to show. HTML within the Markdown is shown as text: a model that
// writes a tag means the reader to see it.

import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import { escape, highlight } from "./highlight.ts";
import { hasRenderer, math } from "./math.ts";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const COPY = '<button type="button" class="copy" data-copy>Copy</button>';

const marked = new Marked(math, {
  gfm: true,
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
        `<figure class="code"><figcaption>${name}${COPY}</figcaption>` +
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

/** Links open beside the page, and say nothing of where they were followed. */
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A") return;
  const href = node.getAttribute("href") ?? "";
  if (!/^(https?:|mailto:)/i.test(href)) node.removeAttribute("href");
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

// The page's policy lets no markup style itself. What formulas need is set by `applyStyles`.
DOMPurify.addHook("uponSanitizeAttribute", (node, data) => {
  if (data.attrName !== "style") return;
  if (node.namespaceURI === MATHML) node.setAttribute("data-style", data.attrValue);
});

/** Sets the styles that formulas need, once their elements are in the page. */
export function applyStyles(within: Element): void {
  for (const node of within.querySelectorAll<MathMLElement>("math[data-style], math [data-style]")) {
    node.style.cssText = node.dataset.style ?? "";
  }
}

/** HTML without anything that runs, loads or submits. */
export function sanitize(html: string): string {
  return DOMPurify.sanitize(html, {
    USE_PROFILES: { html: true, mathMl: true },
    FORBID_TAGS: ["style", "form", "input", "textarea", "select", "img", "video", "audio", "source", "picture"],
    FORBID_ATTR: ["style", "id", "name", "srcset", "src", "background"],
    ADD_ATTR: ["target"],
  });
}

const cache = new Map<string, string>();
const CACHED = 600;

/** Safe HTML of one block. */
function block(token: Token): string {
  const known = cache.get(token.raw);
  if (known !== undefined) return known;
  const html = sanitize(marked.parser([token]));
  if (cache.size >= CACHED) cache.clear();
  cache.set(token.raw, html);
  return html;
}

/** Forgets what was rendered, as formulas are rendered differently from now on. */
export function forget(): void {
  cache.clear();
}

export interface Rendered {
  /** Safe HTML, one text per block, so that a growing text changes only its last ones. */
  blocks: string[];
  /** Formulas wait for their renderer. */
  needsMath: boolean;
}

/** Renders a text block by block. */
export function markdown(text: string): Rendered {
  const tokens = marked.lexer(text);
  let needsMath = false;
  if (!hasRenderer() && /\$|\\\(|\\\[/.test(text)) {
    marked.walkTokens(tokens, (token) => {
      if (token.type === "mathBlock" || token.type === "mathInline") needsMath = true;
    });
  }
  const shown = tokens.filter((token) => token.type !== "space" && token.type !== "def");
  return { blocks: shown.map(block), needsMath };
}
