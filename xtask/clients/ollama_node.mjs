// Ollama's package for Node, against Ollama's API. It prints the same lines as the scripts in Python.

import { Ollama } from "ollama";

const [host, model, embeddingModel] = process.argv.slice(2);
const client = new Ollama({ host });
const messages = [{ role: "user", content: "Why is the sky blue? Answer in one sentence." }];
const options = { temperature: 0, num_predict: 48 };

function check(condition, ...found) {
  if (!condition) throw new Error(found.map((x) => JSON.stringify(x)).join(" ") || "not as expected");
}

function bounded(properties) {
  const required = Object.keys(properties);
  return { type: "object", properties, required, additionalProperties: false };
}

const oneOf = (type, ...values) => ({ type, enum: values });

async function running() {
  const page = await (await fetch(`${host}/metrics`)).text();
  const lines = page.split("\n").filter((line) => line.startsWith("vllm:num_requests_running"));
  check(lines.length > 0, "/metrics has no vllm:num_requests_running");
  return lines.reduce((sum, line) => sum + Number(line.trim().split(/\s+/).pop()), 0);
}

const ask = () => client.chat({ model, messages, options });

const abilities = {
  async chat() {
    const answer = await ask();
    check(answer.message.content.trim(), answer);
    check(["stop", "length"].includes(answer.done_reason) && answer.eval_count > 0, answer);
    const { models } = await client.list();
    check(models.some((listed) => listed.model === `${model}:latest`), models);
    const shown = await client.show({ model });
    check(shown.capabilities.includes("completion"), shown);
    const text = await client.generate({ model, prompt: messages[0].content, options });
    check(text.response === answer.message.content, text);
  },

  async stream() {
    let text = "";
    let chunks = 0;
    for await (const chunk of await client.chat({ model, messages, options, stream: true })) {
      text += chunk.message.content;
      chunks += 1;
    }
    check(chunks > 4, chunks);
    check(text === (await ask()).message.content, text);
  },

  async tool() {
    const parameters = bounded({
      city: oneOf("string", "Paris", "Rome", "Oslo"),
      days: oneOf("integer", 1, 2, 3),
    });
    const named = { name: "get_weather", description: "Tells the weather of a city.", parameters };
    const call = { function: { name: "get_weather", arguments: { city: "Rome", days: 1 } } };
    const answer = await client.chat({
      model,
      messages: [
        { role: "user", content: "How is the weather in Rome tomorrow?" },
        { role: "assistant", content: "", tool_calls: [call] },
        { role: "tool", tool_name: "get_weather", content: "Sunny, 21 degrees." },
      ],
      tools: [{ type: "function", function: named }],
      options,
    });
    check(answer.message.content || answer.message.tool_calls, answer);
  },

  async schema() {
    const format = bounded({
      color: oneOf("string", "red", "green", "blue"),
      count: oneOf("integer", 1, 2, 3),
    });
    const pick = [{ role: "user", content: "Pick a color and a number from one to three." }];
    const limits = { temperature: 0, num_predict: 100 };
    const answer = await client.chat({ model, messages: pick, format, options: limits });
    const { color, count } = JSON.parse(answer.message.content);
    check(["red", "green", "blue"].includes(color) && [1, 2, 3].includes(count), answer);
  },

  async embed() {
    const input = ["one text", "another"];
    const [one, other] = (await client.embed({ model: embeddingModel, input })).embeddings;
    check(one.length > 0 && one.length === other.length, one.length, other.length);
    check(one.some((value, idx) => value !== other[idx]), "two texts have the same vector");
  },

  async cancel() {
    const long = { temperature: 0, num_predict: 1500 };
    const asked = { model, prompt: "1, 2, 3, 4,", raw: true, options: long, stream: true };
    const stream = await client.generate(asked);
    await stream[Symbol.asyncIterator]().next();
    check((await running()) >= 1, "the stream does not run");
    stream.abort();
    for (let attempt = 0; attempt < 100; attempt += 1) {
      if ((await running()) === 0) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error("the request still runs five seconds after its client left");
  },
};

for (const [ability, attempt] of Object.entries(abilities)) {
  let [result, note] = ["ok", ""];
  try {
    await attempt();
  } catch (error) {
    [result, note] = ["failed", String(error.message)];
    console.error(error);
  }
  console.log(JSON.stringify({ ability, result, note }));
}
