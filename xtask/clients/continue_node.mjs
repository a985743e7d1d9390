// Continue's program for the terminal, which reads the same file of settings as its extensions. The file is
// the one of docs/use-it-from.md.

import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import * as a from "./abilities.mjs";

const program = fileURLToPath(import.meta.resolve("@continuedev/cli/dist/cn.js"));
const folder = await mkdtemp(join(tmpdir(), "continue-"));

async function ask(...more) {
  const args = [program, "--config", a.snippet, "-p", ...more, a.question];
  const env = { ...process.env, CONTINUE_GLOBAL_DIR: folder, CONTINUE_METRICS_ENABLED: "0" };
  const running = promisify(execFile)("node", args, { cwd: folder, env });
  running.child.stdin.end();
  return (await running).stdout;
}

await a.run({
  async document() {
    a.check((await ask()).trim());
  },
});
await rm(folder, { recursive: true });
