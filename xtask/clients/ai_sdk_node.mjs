// The AI SDK with its provider for servers of OpenAI's API.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, Output, streamText, tool as asTool } from "ai";

import * as a from "./abilities.mjs";

const provider = createOpenAICompatible({
  name: "realizar",
  baseURL: a.api,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const common = { model: provider(a.model), temperature: 0, maxRetries: 0 };
const asked = { ...common, prompt: a.question, maxOutputTokens: a.maxTokens };
const ask = () => generateText(asked);

await a.run({
  async chat() {
    const answer = await ask();
    a.check(answer.text.trim(), answer.text);
    a.check(["stop", "length"].includes(answer.finishReason), answer.finishReason);
    a.check(answer.usage.outputTokens > 0, answer.usage);
  },

  async stream() {
    const parts = [];
    const answer = streamText(asked);
    for await (const part of answer.textStream) parts.push(part);
    a.check(parts.length > 4, parts);
    a.check(parts.join("") === (await ask()).text, parts);
    a.check((await answer.usage).outputTokens > 0, await answer.usage);
  },

  async tool() {
    const { name, description, parameters } = a.tool;
    const inputSchema = jsonSchema(parameters);
    const answer = await generateText({
      ...common,
      prompt: a.weather,
      tools: { [name]: asTool({ description, inputSchema }) },
      toolChoice: "required",
      maxOutputTokens: 200,
    });
    const [call] = answer.toolCalls;
    a.checkCall(call.toolName, call.input);
  },

  async schema() {
    const output = Output.object({ schema: jsonSchema(a.pickSchema) });
    const answer = await generateText({ ...common, prompt: a.pick, output, maxOutputTokens: 100 });
    a.checkPick(answer.output);
  },

  async embed() {
    const values = ["one text", "another"];
    const answer = await embedMany({ model: provider.embeddingModel(a.embeddingModel), values });
    a.checkVectors(...answer.embeddings);
  },

  async cancel() {
    const controller = new AbortController();
    const answer = streamText({
      ...common,
      prompt: a.story,
      maxOutputTokens: 1500,
      abortSignal: controller.signal,
      onError: () => {},
    });
    await answer.textStream[Symbol.asyncIterator]().next();
    await a.checkCancel(() => controller.abort());
  },
});
