// The worker that formats texts, a file of its own: `page/markdown.js`. One text at a time; the page
// ends the worker if a step of it takes too long.

import type { Job, Reply } from "./text/formatter.ts";
import { escape, highlight } from "./text/highlight.ts";
import { forget, format } from "./text/markdown.ts";
import { needMath } from "./text/math.ts";

const reply = (message: Reply) => postMessage(message);

onmessage = ({ data }: MessageEvent<Job>) => {
  const { id, text, language, depth, plain } = data;
  const step = (block: number) => reply({ kind: "step", id, block });
  if (language !== null) {
    step(0);
    const html = plain.length ? escape(text) : highlight(text, language);
    reply({ kind: "done", id, formatted: { blocks: [{ html }], isCut: false, needsMath: false } });
    return;
  }
  const formatted = format(text, { depth, plain, step });
  reply({ kind: "done", id, formatted });
  if (!formatted.needsMath) return;
  needMath(() => {
    forget();
    reply({ kind: "math" });
  });
};

reply({ kind: "ready" });
