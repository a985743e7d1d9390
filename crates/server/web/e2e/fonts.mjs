// The fonts of the tests, which are the same on every machine: fontconfig is told of the packages' fonts
// and of no others.

import { mkdir, mkdtemp, readdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { inflateSync } from "node:zlib";

/** Packages, and the generic families that their fonts stand for. */
const FAMILIES = {
  "dejavu-sans": ["DejaVu Sans", ["sans-serif", "sans", "system-ui", "ui-sans-serif"]],
  "dejavu-serif": ["DejaVu Serif", ["serif"]],
  "dejavu-mono": ["DejaVu Sans Mono", ["monospace", "ui-monospace"]],
  "dejavu-math": ["DejaVu Math TeX Gyre", ["math"]],
};

const alias = (generic, family) => `<alias binding="same"><family>${generic}</family><prefer><family>${family}</family></prefer></alias>`;
const set = (name, type, value) => `<edit name="${name}" mode="assign"><${type}>${value}</${type}></edit>`;

/**
 * The TrueType font that a WOFF file holds (W3C, WOFF File Format 1.0): browsers take no wrapped ones from the
 * system.
 */
function unwrap(woff) {
  const n = woff.readUInt16BE(12);
  const font = Buffer.alloc(woff.readUInt32BE(16));
  woff.copy(font, 0, 4, 8); // the kind of font
  font.writeUInt16BE(n, 4);
  const power = Math.floor(Math.log2(n));
  font.writeUInt16BE(16 << power, 6);
  font.writeUInt16BE(power, 8);
  font.writeUInt16BE(16 * n - (16 << power), 10);
  let end = 12 + 16 * n;
  for (let idx = 0; idx < n; idx += 1) {
    const entry = woff.subarray(44 + 20 * idx);
    const [at, packedLen, len] = [4, 8, 12].map((offset) => entry.readUInt32BE(offset));
    const packed = woff.subarray(at, at + packedLen);
    (packedLen < len ? inflateSync(packed) : packed).copy(font, end);
    entry.copy(font, 12 + 16 * idx, 0, 4); // its tag
    entry.copy(font, 16 + 16 * idx, 16, 20); // its checksum
    font.writeUInt32BE(end, 20 + 16 * idx);
    font.writeUInt32BE(len, 24 + 16 * idx);
    end += (len + 3) & ~3;
  }
  return font;
}

/** Writes a configuration into a folder of its own; the file is what `FONTCONFIG_FILE` names. */
export async function fontconfig() {
  const folder = await mkdtemp(join(tmpdir(), "realizar-fonts-"));
  const fonts = join(folder, "fonts");
  await mkdir(fonts);
  for (const name of Object.keys(FAMILIES)) {
    const files = fileURLToPath(new URL(`../node_modules/@fontsource/${name}/files`, import.meta.url));
    for (const file of (await readdir(files)).filter((file) => file.endsWith(".woff"))) {
      await writeFile(join(fonts, file.replace(/woff$/, "ttf")), unwrap(await readFile(join(files, file))));
    }
  }
  const aliases = Object.values(FAMILIES).flatMap(([family, generics]) => generics.map((generic) => alias(generic, family)));
  // Greyscale edges and no hinting, whatever the machine's screen has.
  const drawn = [
    set("antialias", "bool", "true"), set("hinting", "bool", "false"), set("autohint", "bool", "false"),
    set("hintstyle", "const", "hintnone"), set("rgba", "const", "none"), set("lcdfilter", "const", "lcdnone"),
  ];
  const file = join(folder, "fonts.conf");
  await writeFile(
    file,
    `<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">\n<fontconfig>\n<dir>${fonts}</dir>\n` +
      `<cachedir>${join(folder, "cache")}</cachedir>\n${aliases.join("\n")}\n` +
      ["pattern", "font"].map((target) => `<match target="${target}">${drawn.join("")}</match>`).join("\n") +
      "\n</fontconfig>\n",
  );
  return file;
}
