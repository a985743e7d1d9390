// The openai package for Node.

import OpenAI from "openai";

import * as a from "./abilities.mjs";

const client = new OpenAI({ baseURL: a.api, apiKey: a.key, timeout: a.timeout, maxRetries: 0 });
const common = { model: a.model, temperature: 0 };
const asked = { ...common, messages: a.messages, max_tokens: a.maxTokens };
const ask = () => client.chat.completions.create(asked);

await a.run({
  async chat() {
    const answer = await ask();
    a.check(answer.choices[0].message.content.trim(), answer);
    a.check(["stop", "length"].includes(answer.choices[0].finish_reason), answer);
    a.check(answer.usage.completion_tokens > 0, answer);
  },

  async stream() {
    let text = "";
    let chunks = 0;
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0]?.delta?.content ?? "";
      chunks += 1;
    }
    a.check(chunks > 4, chunks);
    a.check(text === (await ask()).choices[0].message.content, text);
  },

  async tool() {
    const answer = await client.chat.completions.create({
      ...common,
      messages: [{ role: "user", content: a.weather }],
      tools: [{ type: "function", function: a.tool }],
      tool_choice: { type: "function", function: { name: a.tool.name } },
      max_tokens: 200,
    });
    const call = answer.choices[0].message.tool_calls[0].function;
    a.checkCall(call.name, JSON.parse(call.arguments));
  },

  async schema() {
    const form = { name: "pick", strict: true, schema: a.pickSchema };
    const answer = await client.chat.completions.create({
      ...common,
      messages: [{ role: "user", content: a.pick }],
      response_format: { type: "json_schema", json_schema: form },
      max_tokens: 100,
    });
    a.checkPick(JSON.parse(answer.choices[0].message.content));
  },

  async embed() {
    const input = ["one text", "another"];
    const answer = await client.embeddings.create({ model: a.embeddingModel, input });
    a.checkVectors(...answer.data.map((item) => item.embedding));
  },

  async cancel() {
    const options = { ...asked, max_tokens: 1500, stream: true, ignore_eos: true };
    const stream = await client.chat.completions.create(options);
    await stream[Symbol.asyncIterator]().next();
    await a.checkCancel(() => stream.controller.abort());
  },
});
