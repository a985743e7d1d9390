// The server under test: the engine with models whose answers are known.

import { spawn } from "node:child_process";
import { join } from "node:path";
import { env } from "node:process";
import { createInterface } from "node:readline";

/** Starts a server of both models; `args` are more arguments. */
export async function serve(...args) {
  const models = ["stub", "small"].map((name) => join(env.MODELS, `${name}.gguf`));
  const child = spawn(env.ENGINE, ["serve", ...models, "--device", "cpu", "--port", "0", "--threads", "1", "--parallel", "2", ...args], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  const told = [];
  const url = await new Promise((resolve, reject) => {
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        told.push(line);
        const found = /listening on (http:\S+)/.exec(line);
        if (found) resolve(found[1].replace(/\/?$/, "/"));
      });
    }
    child.on("exit", (code) => reject(new Error(`the server ended with ${code}:\n${told.join("\n")}`)));
  });
  return { url, stop: () => child.kill("SIGTERM") };
}
