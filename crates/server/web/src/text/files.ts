// Files that are attached: their text, which is read here and goes to the model with the message.

import type { Attachment } from "../chat/types.ts";

/** The largest file that is read, in bytes. */
export const LARGEST = 20 * 1024 * 1024;

interface Reader {
  text: (bytes: ArrayBuffer) => Promise<{ text: string; pages: number }>;
}

/** Reads the text of a file, or says why it has none. */
export async function readFile(file: File): Promise<Attachment> {
  if (file.size > LARGEST) throw new Error(`${file.name} is larger than ${LARGEST >> 20} MiB.`);
  const bytes = await file.arrayBuffer();
  const start = new TextDecoder("latin1").decode(bytes.slice(0, 1024));
  if (start.includes("%PDF-")) {
    const reader: Reader = await import(/* external */ "./page/pdf.js" as string);
    try {
      const { text, pages } = await reader.text(bytes);
      if (text.trim() === "") throw new Error("it has no text; its pages may be pictures");
      return { name: file.name, text, pages };
    } catch (error) {
      throw new Error(`${file.name} cannot be read: ${(error as Error).message}.`);
    }
  }
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${file.name} is neither text in UTF-8 nor a PDF.`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  if (text.trim() === "") throw new Error(`${file.name} is empty.`);
  return { name: file.name, text: text.replaceAll("\r\n", "\n") };
}

/** Offers a text as a download. */
export function download(name: string, text: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^-+|-+$/g, "") || "chat";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
