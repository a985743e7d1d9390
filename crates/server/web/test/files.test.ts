import assert from "node:assert/strict";
import { test } from "node:test";
import { decode } from "../src/text/files.ts";
import { pretty } from "../src/text/json.ts";

test("texts are decoded, and other files are not", () => {
  const utf16 = (text: string, isBig: boolean) => {
    const bytes = Buffer.from(`\ufeff${text}`, "utf16le");
    return isBig ? bytes.swap16() : bytes;
  };
  const cases: [string, Buffer, ReturnType<typeof decode>][] = [
    ["UTF-8", Buffer.from("naïve €"), { text: "naïve €" }],
    ["UTF-8 with a mark", Buffer.from("\ufeffa"), { text: "a" }],
    ["UTF-16LE", utf16("naïve €\r\n😀", false), { text: "naïve €\r\n😀", encoding: "UTF-16" }],
    ["UTF-16BE", utf16("naïve", true), { text: "naïve", encoding: "UTF-16" }],
    ["Latin-1", Buffer.from("naïve\tÀ\n", "latin1"), { text: "naïve\tÀ\n", encoding: "Latin-1" }],
    ["half a character of UTF-16", Buffer.from([0xff, 0xfe, 0x41]), null],
    ["zeros", Buffer.from([0x41, 0, 0x42]), null],
    ["a PNG", Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0, 0]), null],
    ["an MP3", Buffer.from([0xff, 0xfb, 0x90, 0x64, 0x0f, 0xf0]), null],
  ];
  for (const [name, bytes, expected] of cases) {
    const own = new Uint8Array(bytes).buffer;
    assert.deepEqual(decode(own), expected, name);
  }
});

test("JSON is indented unless it grows by too much", () => {
  const deep = "[".repeat(3000) + "]".repeat(3000);
  const cases: [string, string][] = [
    ['{"a":[1]}', '{\n  "a": [\n    1\n  ]\n}'],
    ["{", "{"],
    [deep, deep],
  ];
  for (const [text, expected] of cases) assert.equal(pretty(text), expected);
});
