// The requests that the page makes, all of them to the server that it came from.

import { ServerError } from "./answer.ts";
import type { Body } from "./request.ts";
import { SAMPLING } from "./request.ts";
import { events } from "./sse.ts";
import type { Model, ToolServer } from "./types.ts";

export interface ModelBody {
  id: string;
  max_model_len: number | null;
  capabilities: string[];
  status: { value: string; error?: string };
  meta: {
    architecture: string;
    n_params: number;
    size: number;
    sampling?: Record<string, number>;
  } | null;
}

/** Samples of an hour, oldest first; see the server's `history.rs`. */
export interface History {
  now: number;
  interval: number;
  models: { model: string; samples: Sample[] }[];
}

export interface Sample {
  /** The end of its interval, in seconds since 1970. */
  time: number;
  prompt_tokens: number;
  generated_tokens: number;
  running: number;
  waiting: number;
  /** The used part of the key-value cache. */
  kv_used: number;
  /** Means over the interval, in seconds; null where nothing was measured. */
  ttft: number | null;
  inter_token: number | null;
}

export function readModel(body: ModelBody): Model {
  const { meta } = body;
  const known = SAMPLING.filter((name) => typeof meta?.sampling?.[name] === "number");
  return {
    id: body.id,
    context: body.max_model_len,
    loaded: body.status.value === "loaded",
    failure: body.status.error ?? null,
    architecture: meta?.architecture ?? null,
    parameters: meta?.n_params ?? null,
    bytes: meta?.size ?? null,
    defaults: Object.fromEntries(known.map((name) => [name, meta?.sampling?.[name]])),
  };
}

export class Api {
  key = "";

  async #request(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    if (init.body) headers.set("content-type", "application/json");
    if (this.key) headers.set("authorization", `Bearer ${this.key}`);
    const response = await fetch(path, { ...init, headers });
    if (response.ok) return response;
    const text = await response.text();
    let error: Record<string, unknown> = {};
    try {
      error = JSON.parse(text).error ?? {};
    } catch {
      // A proxy answers in a form of its own.
    }
    const message = typeof error.message === "string" ? error.message : `${response.status} ${response.statusText}`;
    const code = typeof error.code === "string" ? error.code : "";
    throw new ServerError(message, response.status, code, error);
  }

  #post(path: string, body: object, signal?: AbortSignal): Promise<Response> {
    const init: RequestInit = { method: "POST", body: JSON.stringify(body) };
    if (signal) init.signal = signal;
    return this.#request(path, init);
  }

  /** The models that answer with text. */
  async models(): Promise<Model[]> {
    const { data } = (await (await this.#request("v1/models")).json()) as { data: ModelBody[] };
    return data.filter((body) => body.capabilities.includes("completion")).map(readModel);
  }

  /** The MCP servers whose tools may be used here. */
  async servers(): Promise<ToolServer[]> {
    return ((await (await this.#request("mcp/tools")).json()) as { servers: ToolServer[] }).servers;
  }

  /** What a tool says; the user was asked. */
  async call(name: string, args: unknown): Promise<string> {
    const response = await this.#post("mcp/call", { name, arguments: args });
    const { content, is_error: failed } = (await response.json()) as { content: string; is_error: boolean };
    return failed ? `Error: ${content}` : content;
  }

  /** How many tokens the prompt of a request has. */
  async count(body: Body, signal: AbortSignal): Promise<number> {
    try {
      const response = await this.#post("v1/chat/completions/render", body, signal);
      return ((await response.json()) as { token_ids: number[] }).token_ids.length;
    } catch (error) {
      // What is too long for the context is not rendered, but counted.
      const tokens = error instanceof ServerError ? error.details.n_prompt_tokens : undefined;
      if (typeof tokens === "number") return tokens;
      throw error;
    }
  }

  /** The chunks of an answer. */
  async *answer(body: Body, signal: AbortSignal): AsyncGenerator<unknown> {
    const streamed = {
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    const response = await this.#post("v1/chat/completions", streamed, signal);
    if (response.body) yield* events(response.body);
  }

  async history(signal: AbortSignal): Promise<History> {
    return (await this.#request("metrics/history", { signal })).json();
  }
}
