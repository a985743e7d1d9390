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
  const decoded = decode(bytes);
  if (decoded === null) throw new Error(`${file.name} is neither a text file nor a PDF.`);
  const { text, encoding } = decoded;
  if (text.trim() === "") throw new Error(`${file.name} is empty.`);
  return { name: file.name, text: text.replaceAll("\r\n", "\n"), ...(encoding && { encoding }) };
}

/** Byte order marks, and the encodings that they begin. */
const MARKS: [number[], string][] = [
  [[0xff, 0xfe], "utf-16le"],
  [[0xfe, 0xff], "utf-16be"],
];
/** Characters that show that a file is no text. In Latin-1, which can read all bytes, more of them do. */
const CONTROLS = /\0/;
const CONTROLS_OF_LATIN = /[\0-\x08\x0e-\x1a\x1c-\x1f]/;

/**
 * The text of a file, and its encoding unless that is UTF-8: UTF-16 with a byte order mark, or Latin-1 (as
 * browsers read it, Windows-1252). Null if it is no text.
 */
export function decode(bytes: ArrayBuffer): { text: string; encoding?: string } | null {
  const start = [...new Uint8Array(bytes.slice(0, 2))];
  const utf16 = MARKS.find(([mark]) => mark.every((byte, idx) => byte === start[idx]))?.[1];
  const read = (encoding: string, controls: RegExp) => {
    try {
      const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
      return controls.test(text) ? null : text;
    } catch {
      return null;
    }
  };
  if (utf16) {
    const text = read(utf16, CONTROLS);
    return text === null ? null : { text, encoding: "UTF-16" };
  }
  const text = read("utf-8", CONTROLS);
  if (text !== null) return { text };
  const latin = read("windows-1252", CONTROLS_OF_LATIN);
  return latin === null ? null : { text: latin, encoding: "Latin-1" };
}

/** Offers a text as a download. */
export function download(name: string, text: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^-+|-+$/g, "") || "chat";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
