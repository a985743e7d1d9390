// The @anthropic-ai/sdk package for Node.

import Anthropic from "@anthropic-ai/sdk";

import * as a from "./abilities.mjs";

const client = new Anthropic({ baseURL: a.url, apiKey: a.key, timeout: a.timeout, maxRetries: 0 });
const common = { model: a.model, temperature: 0 };
const asked = { ...common, messages: a.messages, max_tokens: a.maxTokens };
const ask = () => client.messages.create(asked);

await a.run({
  async chat() {
    const answer = await ask();
    a.check(answer.content[0].type === "text" && answer.content[0].text.trim(), answer);
    a.check(["end_turn", "max_tokens"].includes(answer.stop_reason), answer);
    a.check(answer.usage.input_tokens > 0 && answer.usage.output_tokens > 0, answer);
  },

  async stream() {
    const parts = [];
    const events = client.messages.stream(asked);
    events.on("text", (text) => parts.push(text));
    const whole = await events.finalMessage();
    a.check(parts.length > 4, parts);
    a.check(parts.join("") === whole.content[0].text, whole);
    a.check(whole.content[0].text === (await ask()).content[0].text, whole);
  },

  async tool() {
    const { name, description, parameters } = a.tool;
    const options = {
      ...common,
      messages: [{ role: "user", content: a.weather }],
      tools: [{ name, description, input_schema: parameters }],
      tool_choice: { type: "tool", name },
      max_tokens: 200,
    };
    const answer = await client.messages.create(options);
    const call = answer.content.find((block) => block.type === "tool_use");
    a.checkCall(call.name, call.input);
    const streamed = await client.messages.stream(options).finalMessage();
    const again = streamed.content.find((block) => block.type === "tool_use");
    a.check(JSON.stringify(again.input) === JSON.stringify(call.input), again, call);
  },

  async schema() {
    const answer = await client.messages.create({
      ...common,
      messages: [{ role: "user", content: a.pick }],
      output_config: { format: { type: "json_schema", schema: a.pickSchema } },
      max_tokens: 100,
    });
    a.checkPick(JSON.parse(answer.content[0].text));
  },

  async embed() {
    throw new a.Skip("the API has no embeddings");
  },

  async cancel() {
    // The API has no way to ask for more than the model wants to say.
    const messages = [{ role: "user", content: a.story }];
    const options = { ...common, messages, max_tokens: 1500, stream: true };
    const stream = await client.messages.create(options);
    const events = stream[Symbol.asyncIterator]();
    while ((await events.next()).value.type !== "content_block_delta");
    await a.checkCancel(() => stream.controller.abort());
  },
});
