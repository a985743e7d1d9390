// The server under test: the engine with models whose answers are known, behind a proxy that lets streams
// through at the pace of a larger model, so that none is over before a test has stopped it.

import { spawn } from "node:child_process";
import { createServer, request } from "node:http";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { env, execPath } from "node:process";
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";

/** Milliseconds between two events of a stream. */
const PACE = 3;

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
  const proxy = await paced(url);
  const stop = () => {
    child.kill("SIGTERM");
    proxy.close();
    proxy.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${proxy.address().port}/`, stop };
}

/** A server with tools of an MCP server, and with one that does not start. */
export async function serveWithTools() {
  const script = fileURLToPath(new URL("mcp.mjs", import.meta.url));
  const file = join(await mkdtemp(join(tmpdir(), "realizar-mcp-")), "mcp.json");
  const mcpServers = {
    broken: { command: execPath, args: ["--no-such-option"] },
    weather: { command: execPath, args: [script] },
  };
  await writeFile(file, JSON.stringify({ mcpServers }));
  return serve("--mcp", file);
}

/** Passes requests on to `url` as they are, and answers back. */
async function paced(url) {
  const { hostname, port } = new URL(url);
  const proxy = createServer((asked, answer) => {
    const { method, url: path, headers } = asked;
    const onward = request({ hostname, port, method, path, headers, agent: false }, async (answered) => {
      answer.writeHead(answered.statusCode, answered.headers);
      if (!answered.headers["content-type"]?.startsWith("text/event-stream")) return answered.pipe(answer);
      try {
        for await (const events of answered.setEncoding("utf8")) {
          for (const event of events.split(/(?<=\n\n)/)) {
            answer.write(event);
            await setTimeout(PACE);
          }
        }
        answer.end();
      } catch {
        answer.destroy();
      }
    });
    onward.on("error", () => answer.destroy());
    answer.on("close", () => onward.destroy());
    asked.pipe(onward);
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  return proxy;
}
