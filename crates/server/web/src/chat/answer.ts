// An answer as it arrives: the chunks of a stream, added up in a turn.

import type { End, Token, Turn } from "./types.ts";

interface Logprob {
  token: string;
  logprob: number;
  top_logprobs?: Logprob[];
}

interface Chunk {
  model?: string;
  error?: { message: string; code?: string | null; type?: string };
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
  } | null;
  choices?: {
    delta: {
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    logprobs?: { content?: Logprob[] | null } | null;
    finish_reason?: string | null;
  }[];
}

/** An error that the server reported, before or within a stream. */
export class ServerError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

function token({ token: text, logprob, top_logprobs: top = [] }: Logprob): Token {
  return { text, logprob, top: top.map((other) => ({ text: other.token, logprob: other.logprob })) };
}

/** Adds chunks to a turn. Times come from the caller, in milliseconds. */
export class Answer {
  #first: number | null = null;
  #last: number;
  #reasoned: number | null = null;
  #tokens = 0;
  readonly #before: number;

  constructor(
    readonly turn: Turn,
    readonly started: number,
    readonly context: number | null,
  ) {
    this.#last = started;
    // A continued answer counts on.
    this.#before = turn.stats?.answerTokens ?? 0;
  }

  /** Takes the next chunk. */
  add(value: unknown, now: number): void {
    const chunk = value as Chunk;
    if (chunk.error) {
      const { message, code, type } = chunk.error;
      throw new ServerError(message, 0, code ?? type ?? "");
    }
    const { turn } = this;
    // The server knows which one answers, even where the list of models is not here yet.
    if (chunk.model) turn.model = chunk.model;
    const choice = chunk.choices?.[0];
    if (choice) {
      const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
      if (content || reasoning || calls?.length) {
        this.#first ??= now;
        this.#last = now;
        this.#tokens += 1;
      }
      if (reasoning) {
        turn.reasoning = (turn.reasoning ?? "") + reasoning;
        this.#reasoned ??= now;
        turn.reasoningMs = now - this.#reasoned;
      }
      if (content) turn.text += content;
      for (const call of calls ?? []) this.#call(call);
      const logprobs = choice.logprobs?.content;
      if (logprobs?.length) (turn.tokens ??= []).push(...logprobs.map(token));
      if (choice.finish_reason) turn.end = this.#end(choice.finish_reason);
    }
    turn.stats = {
      promptTokens: chunk.usage?.prompt_tokens ?? turn.stats?.promptTokens ?? 0,
      cachedTokens: chunk.usage?.prompt_tokens_details?.cached_tokens ?? 0,
      // Chunks are tokens until the server tells how many there were.
      answerTokens: chunk.usage?.completion_tokens ?? this.#before + this.#tokens,
      firstTokenMs: (this.#first ?? now) - this.started,
      decodeMs: this.#last - (this.#first ?? now),
    };
    const { promptTokens, answerTokens } = turn.stats;
    const isFull = this.context !== null && promptTokens + answerTokens >= this.context - 1;
    if (turn.end === "length" && chunk.usage && isFull) turn.end = "context";
  }

  #call(call: { index: number; id?: string; function?: { name?: string; arguments?: string } }) {
    const calls = (this.turn.calls ??= []);
    const own = (calls[call.index] ??= { id: "", name: "", arguments: "" });
    own.id ||= call.id ?? "";
    own.name += call.function?.name ?? "";
    own.arguments += call.function?.arguments ?? "";
  }

  #end(reason: string): End {
    if (reason === "length") return "length";
    return this.turn.calls?.length ? "tools" : "done";
  }
}

/** Tokens per second of an answer, from its first token on; null while there is nothing to tell. */
export function speed(turn: Turn): number | null {
  const { answerTokens = 0, decodeMs = 0 } = turn.stats ?? {};
  return answerTokens > 1 && decodeMs > 0 ? ((answerTokens - 1) * 1000) / decodeMs : null;
}
