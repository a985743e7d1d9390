// What the scripts for Node have in common: the requests, the checks and the lines that abilities.py has
// for those in Python.

// The last one is the file with what docs/use-it-from.md shows for the client.
export const [url, model, embeddingModel, snippet] = process.argv.slice(2);
export const api = `${url}/v1`;
export const key = "none";
export const timeout = 300_000;

export const question = "Why is the sky blue? Answer in one sentence.";
export const messages = [{ role: "user", content: question }];
export const maxTokens = 48;
export const story = "Tell a very long story about the sea, in many chapters.";

const oneOf = (type, ...values) => ({ type, enum: values });

function bounded(properties) {
  const required = Object.keys(properties);
  return { type: "object", properties, required, additionalProperties: false };
}

// Answers that a grammar bounds: even a small model comes to an end.
export const pick = "Pick a color and a number from one to three.";
export const pickSchema = bounded({
  color: oneOf("string", "red", "green", "blue"),
  count: oneOf("integer", 1, 2, 3),
});
export const weather = "How is the weather in Rome tomorrow?";
export const tool = {
  name: "get_weather",
  description: "Tells the weather of a city.",
  parameters: bounded({
    city: oneOf("string", "Paris", "Rome", "Oslo"),
    days: oneOf("integer", 1, 2, 3),
  }),
};

// The ability cannot be tried; the message says why.
export class Skip extends Error {}

export function check(condition, ...found) {
  if (!condition) throw new Error(found.map((x) => JSON.stringify(x)).join(" ") || "not as expected");
}

export function checkPick({ color, count }) {
  check(["red", "green", "blue"].includes(color) && [1, 2, 3].includes(count), color, count);
}

export function checkCall(name, { city, days }) {
  check(name === tool.name, name);
  check(["Paris", "Rome", "Oslo"].includes(city) && [1, 2, 3].includes(days), city, days);
}

export function checkVectors(one, other) {
  check(one.length > 0 && one.length === other.length, one.length, other.length);
  check(one.some((value, idx) => value !== other[idx]), "two texts have the same vector");
}

// How many requests run, as the server's metrics report.
async function running() {
  const page = await (await fetch(`${url}/metrics`)).text();
  const lines = page.split("\n").filter((line) => line.startsWith("vllm:num_requests_running"));
  check(lines.length > 0, "/metrics has no vllm:num_requests_running");
  return lines.reduce((sum, line) => sum + Number(line.trim().split(/\s+/).pop()), 0);
}

// A stream has begun: it runs, and no more after `leave`, long before it would have ended.
export async function checkCancel(leave) {
  check((await running()) >= 1, "the stream does not run");
  leave();
  for (let attempt = 0; attempt < 100; attempt += 1) {
    if ((await running()) === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("the request still runs five seconds after its client left");
}

// Tries each ability and prints what came of it.
export async function run(abilities) {
  for (const [ability, attempt] of Object.entries(abilities)) {
    let [result, note] = ["ok", ""];
    try {
      await attempt();
    } catch (error) {
      [result, note] = [error instanceof Skip ? "skipped" : "failed", String(error.message)];
      if (result === "failed") console.error(error);
    }
    console.log(JSON.stringify({ ability, result, note }));
  }
}
