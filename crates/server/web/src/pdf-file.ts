// The reader of PDFs, a file of its own: `page/pdf.js`. It runs in the page and reads text alone,
// so nothing of it draws, fetches fonts or starts a worker.

import * as worker from "pdfjs-dist/build/pdf.worker.mjs";
import { getDocument } from "pdfjs-dist";

(globalThis as { pdfjsWorker?: unknown }).pdfjsWorker = worker;

/** The text of all pages, with an empty line between two of them. */
export async function text(bytes: ArrayBuffer): Promise<{ text: string; pages: number }> {
  const task = getDocument({ data: new Uint8Array(bytes), disableFontFace: true, useWasm: false, verbosity: 0 });
  const document = await task.promise;
  const pages: string[] = [];
  for (let number = 1; number <= document.numPages; number += 1) {
    const page = await document.getPage(number);
    const { items } = await page.getTextContent();
    const pieces = items.map((item) => ("str" in item ? item.str + (item.hasEOL ? "\n" : "") : ""));
    pages.push(pieces.join("").trim());
    page.cleanup();
  }
  await task.destroy();
  return { text: pages.join("\n\n"), pages: pages.length };
}
