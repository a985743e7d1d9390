// From a branch of a conversation to the body of a request.

import { exchanges } from "./tree.ts";
import type { Attachment, SamplingName, Settings, ToolServer, Turn } from "./types.ts";

interface Message {
  role: string;
  content: string | null;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
  reasoning_content?: string;
}

export type Body = Record<string, unknown> & { messages: Message[] };

/** How a file is put before the words of a message. */
function attached({ name, text }: Attachment): string {
  const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map((m) => m[0].length + 1)));
  return `File: ${name}\n${fence}\n${text.trimEnd()}\n${fence}\n\n`;
}

/** What the model reads of a message of the user. */
export function userText(turn: Turn): string {
  return (turn.files ?? []).map(attached).join("") + turn.text;
}

function message(turn: Turn): Message {
  switch (turn.role) {
    case "user":
      return { role: "user", content: userText(turn) };
    case "tool":
      return { role: "tool", content: turn.text, tool_call_id: turn.callId ?? "" };
    case "assistant": {
      const own: Message = { role: "assistant", content: turn.text };
      if (turn.calls?.length) {
        own.content = turn.text || null;
        // Templates show the reasoning that led to a call; elsewhere they leave it out.
        if (turn.reasoning) own.reasoning_content = turn.reasoning;
        own.tool_calls = turn.calls.map(({ id, name, arguments: text }) => ({
          id,
          type: "function",
          function: { name, arguments: text },
        }));
      }
      return own;
    }
  }
}

/** An answer that failed or was stopped before its first word says nothing to the model. */
function isSaid(turn: Turn): boolean {
  return turn.role !== "assistant" || turn.text.trim() !== "" || Boolean(turn.calls?.length);
}

/** The messages of a branch without its `dropped` oldest exchanges; the system message stays. */
export function messages(turns: Turn[], settings: Settings, dropped: number): Message[] {
  const kept = exchanges(turns).slice(dropped).flat().filter(isSaid).map(message);
  const system = settings.system?.trim();
  return system ? [{ role: "system", content: system }, ...kept] : kept;
}

export const SAMPLING: readonly SamplingName[] = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
];

/** Reads the list of tools, or says what is wrong with it. */
export function readTools(text: string | undefined): unknown[] {
  if (!text?.trim()) return [];
  let tools: unknown;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not JSON: ${(error as Error).message}`);
  }
  if (!Array.isArray(tools)) throw new Error("The tools have to be a JSON list.");
  return tools.map((tool: Record<string, unknown> | null) => {
    // A function alone is what most documentation shows.
    const wrapped = tool && "function" in tool ? tool : { type: "function", function: tool };
    const name = (wrapped.function as { name?: unknown } | null)?.name;
    if (typeof name !== "string") throw new Error("Each tool needs a name.");
    return wrapped;
  });
}

/** The body of a request for the next turn; what a conversation does not set is left out. */
export function body(
  turns: Turn[],
  settings: Settings,
  { dropped = 0, proceeds = false, servers = [] }: { dropped?: number; proceeds?: boolean; servers?: ToolServer[] } = {},
): Body {
  const all: Body = { messages: messages(turns, settings, dropped) };
  if (settings.model) all.model = settings.model;
  for (const name of [...SAMPLING, "max_tokens", "seed"] as const) {
    if (settings[name] !== undefined) all[name] = settings[name];
  }
  if (settings.stop?.length) all.stop = settings.stop;
  if (settings.reasoning_effort) all.reasoning_effort = settings.reasoning_effort;
  if (settings.logprobs) Object.assign(all, { logprobs: true, top_logprobs: 5 });
  const used = servers.filter((server) => settings.servers?.includes(server.name));
  const tools = [...readTools(settings.tools), ...used.flatMap((server) => server.tools)];
  if (tools.length > 0) all.tools = tools;
  if (proceeds) Object.assign(all, { continue_final_message: true, add_generation_prompt: false });
  return all;
}
