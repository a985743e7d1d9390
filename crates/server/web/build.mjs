// Builds the page: `node build.mjs OUT` writes what the server serves, `node build.mjs --tests`
// the unit tests. Everything that is built is a function of the sources and the lock file.

import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { argv } from "node:process";
import { build } from "esbuild";

const common = {
  bundle: true,
  write: false,
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
  target: ["es2022", "chrome123", "firefox120", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
};

/** The packages of which something is in the files that were built. */
const bundled = new Set();

async function text(options) {
  const { outputFiles, metafile } = await build({ ...common, metafile: true, ...options });
  for (const path of Object.keys(metafile.inputs)) {
    const name = /node_modules\/((?:@[^/]+\/)?[^/]+)\/(?!.*node_modules\/)/.exec(path)?.[1];
    if (name !== undefined) bundled.add(name);
  }
  return outputFiles[0].text;
}

/** A module, minified; others of the server's are fetched while it runs. */
function script(entry, options = {}) {
  return text({ entryPoints: [entry], format: "esm", minify: true, external: ["./page/*", "./math.js"], ...options });
}

async function page() {
  const [template, style, main] = await Promise.all([
    readFile("src/index.html", "utf8"),
    text({ entryPoints: ["src/style.css"], minify: true }),
    script("src/main.tsx"),
  ]);
  // Neither may end the element that it stands in.
  const inline = { style, script: main.replaceAll("</script", "<\\/script") };
  return template.replace(/\{\{(\w+)\}\}/g, (_, name) => inline[name].trim());
}

/** What is in the files of others' work, and under which licences; to be made when the files are built. */
async function licenses() {
  const parts = [...bundled].sort().map(async (name) => {
    const folder = join("node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((own) => /^licen[cs]e(\.md|\.txt)?$/i.test(own));
    const text = (await readFile(join(folder, file), "utf8")).replace(/[ \t\r]+$/gm, "").trim();
    return `${name} ${version} (${license})\n\n${text}\n`;
  });
  return (await Promise.all(parts)).join(`\n${"-".repeat(80)}\n\n`);
}

async function tests() {
  const folder = "build/tests";
  await rm(folder, { recursive: true, force: true });
  const entryPoints = (await readdir("test")).filter((name) => name.endsWith(".test.ts")).map((name) => join("test", name));
  await build({ ...common, write: true, entryPoints, outdir: folder, format: "esm", platform: "node", target: "node20", external: ["./page/*", "./math.js"] });
}

if (argv[2] === "--tests") {
  await tests();
} else {
  const out = argv[2] ?? "build/page";
  const built = {
    "index.html": page(),
    "markdown.js": script("src/markdown-file.ts"),
    "math.js": script("src/math-file.ts"),
    "pdf.js": script("src/pdf-file.ts", { external: ["canvas", "@napi-rs/canvas", "node:*", "fs", "http", "https", "url", "module"] }),
  };
  await mkdir(out, { recursive: true });
  for (const [name, content] of Object.entries(built)) await writeFile(join(out, name), await content);
  await writeFile(join(out, "licenses.txt"), await licenses());
}
