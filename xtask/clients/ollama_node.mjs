// Ollama's package for Node, against Ollama's API.

import { Ollama } from "ollama";

import * as a from "./abilities.mjs";

const client = new Ollama({ host: a.url });
const options = { temperature: 0, num_predict: a.maxTokens };
const ask = () => client.chat({ model: a.model, messages: a.messages, options });

await a.run({
  async chat() {
    const answer = await ask();
    a.check(answer.message.content.trim(), answer);
    a.check(["stop", "length"].includes(answer.done_reason) && answer.eval_count > 0, answer);
    const { models } = await client.list();
    a.check(models.some((listed) => listed.model === `${a.model}:latest`), models);
    const shown = await client.show({ model: a.model });
    a.check(shown.capabilities.includes("completion"), shown);
    const text = await client.generate({ model: a.model, prompt: a.question, options });
    a.check(text.response === answer.message.content, text);
  },

  async stream() {
    let text = "";
    let chunks = 0;
    const asked = { model: a.model, messages: a.messages, options, stream: true };
    for await (const chunk of await client.chat(asked)) {
      text += chunk.message.content;
      chunks += 1;
    }
    a.check(chunks > 4, chunks);
    a.check(text === (await ask()).message.content, text);
  },

  async tool() {
    const call = { function: { name: a.tool.name, arguments: { city: "Rome", days: 1 } } };
    const answer = await client.chat({
      model: a.model,
      messages: [
        { role: "user", content: a.weather },
        { role: "assistant", content: "", tool_calls: [call] },
        { role: "tool", tool_name: a.tool.name, content: "Sunny, 21 degrees." },
      ],
      tools: [{ type: "function", function: a.tool }],
      options,
    });
    a.check(answer.message.content || answer.message.tool_calls, answer);
  },

  async schema() {
    const answer = await client.chat({
      model: a.model,
      messages: [{ role: "user", content: a.pick }],
      format: a.pickSchema,
      options: { temperature: 0, num_predict: 100 },
    });
    a.checkPick(JSON.parse(answer.message.content));
  },

  async embed() {
    const input = ["one text", "another"];
    const answer = await client.embed({ model: a.embeddingModel, input });
    a.checkVectors(...answer.embeddings);
  },

  async cancel() {
    const long = { temperature: 0, num_predict: 1500 };
    const asked = { model: a.model, prompt: "1, 2, 3, 4,", raw: true, options: long, stream: true };
    const stream = await client.generate(asked);
    await stream[Symbol.asyncIterator]().next();
    await a.checkCancel(() => stream.abort());
  },
});
