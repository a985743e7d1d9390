// The openai package for Node. It prints the same lines as the scripts in Python.

import OpenAI from "openai";

const [url, model, embeddingModel] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", timeout: 300_000, maxRetries: 0 });
const common = { model, temperature: 0 };
const messages = [{ role: "user", content: "Why is the sky blue? Answer in one sentence." }];
const maxTokens = 48;

function check(condition, ...found) {
  if (!condition) throw new Error(found.map((x) => JSON.stringify(x)).join(" ") || "not as expected");
}

function bounded(properties) {
  const required = Object.keys(properties);
  return { type: "object", properties, required, additionalProperties: false };
}

const oneOf = (type, ...values) => ({ type, enum: values });

async function running() {
  const page = await (await fetch(`${url}/metrics`)).text();
  const lines = page.split("\n").filter((line) => line.startsWith("vllm:num_requests_running"));
  check(lines.length > 0, "/metrics has no vllm:num_requests_running");
  return lines.reduce((sum, line) => sum + Number(line.trim().split(/\s+/).pop()), 0);
}

const ask = () => client.chat.completions.create({ ...common, messages, max_tokens: maxTokens });

const abilities = {
  async chat() {
    const answer = await ask();
    check(answer.choices[0].message.content.trim(), answer);
    check(["stop", "length"].includes(answer.choices[0].finish_reason), answer);
    check(answer.usage.completion_tokens > 0, answer);
  },

  async stream() {
    let text = "";
    let chunks = 0;
    const options = { ...common, messages, max_tokens: maxTokens, stream: true };
    for await (const chunk of await client.chat.completions.create(options)) {
      text += chunk.choices[0]?.delta?.content ?? "";
      chunks += 1;
    }
    check(chunks > 4, chunks);
    check(text === (await ask()).choices[0].message.content, text);
  },

  async tool() {
    const parameters = bounded({
      city: oneOf("string", "Paris", "Rome", "Oslo"),
      days: oneOf("integer", 1, 2, 3),
    });
    const named = { name: "get_weather", description: "Tells the weather of a city.", parameters };
    const answer = await client.chat.completions.create({
      ...common,
      messages: [{ role: "user", content: "How is the weather in Rome tomorrow?" }],
      tools: [{ type: "function", function: named }],
      tool_choice: { type: "function", function: { name: "get_weather" } },
      max_tokens: 200,
    });
    const call = answer.choices[0].message.tool_calls[0].function;
    const { city, days } = JSON.parse(call.arguments);
    check(call.name === "get_weather", call);
    check(["Paris", "Rome", "Oslo"].includes(city) && [1, 2, 3].includes(days), call);
  },

  async schema() {
    const schema = bounded({
      color: oneOf("string", "red", "green", "blue"),
      count: oneOf("integer", 1, 2, 3),
    });
    const answer = await client.chat.completions.create({
      ...common,
      messages: [{ role: "user", content: "Pick a color and a number from one to three." }],
      response_format: { type: "json_schema", json_schema: { name: "pick", strict: true, schema } },
      max_tokens: 100,
    });
    const { color, count } = JSON.parse(answer.choices[0].message.content);
    check(["red", "green", "blue"].includes(color) && [1, 2, 3].includes(count), answer);
  },

  async embed() {
    const input = ["one text", "another"];
    const answer = await client.embeddings.create({ model: embeddingModel, input });
    const [one, other] = answer.data.map((item) => item.embedding);
    check(one.length > 0 && one.length === other.length, one.length, other.length);
    check(one.some((value, idx) => value !== other[idx]), "two texts have the same vector");
  },

  async cancel() {
    const options = { ...common, messages, max_tokens: 1500, stream: true, ignore_eos: true };
    const stream = await client.chat.completions.create(options);
    await stream[Symbol.asyncIterator]().next();
    check((await running()) >= 1, "the stream does not run");
    stream.controller.abort();
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
