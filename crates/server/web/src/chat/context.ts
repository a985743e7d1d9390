// What to do when a conversation outgrows the context of its model: the oldest exchanges are left
// out whole, until the rest leaves room for an answer.

import { exchanges } from "./tree.ts";
import type { Turn } from "./types.ts";

/** Counts the tokens of the request that leaves out so many exchanges. */
export type Count = (dropped: number) => Promise<number>;

export interface Fit {
  /** Exchanges to leave out. */
  dropped: number;
  /** Tokens of the prompt, where they were counted. */
  tokens: number | null;
}

/** A message that fits into the context with nothing else of the conversation. */
export class TooLong extends Error {
  constructor(
    readonly tokens: number,
    readonly context: number,
  ) {
    super(`The message has ${tokens} tokens, and the context has room for ${context}.`);
  }
}

/** Tokens that are kept free for an answer. */
export function reserve(context: number, maxTokens: number | undefined): number {
  return Math.min(maxTokens ?? context, Math.floor(context / 4));
}

/** A guess at the tokens of a text, on the safe side for prose, code and most scripts. */
export function roughly(text: string): number {
  let wide = 0;
  for (const char of text) if (char > "\u2e7f") wide += 1;
  return Math.ceil((text.length - wide) / 2.5 + wide * 1.5) + 8;
}

/** At most how many tokens the next request of a branch has, by its last answer. */
export function estimate(turns: Turn[], dropped: number): number {
  const last = turns.findLastIndex((turn) => turn.stats !== undefined);
  const { stats, dropped: before } = turns[last] ?? {};
  const texts = (from: number) =>
    turns
      .slice(from)
      .flatMap((turn) => [turn.text, ...(turn.files ?? []).map((file) => file.text)])
      .reduce((sum, text) => sum + roughly(text), 0);
  if (!stats || (before ?? 0) !== dropped) return texts(0);
  return stats.promptTokens + stats.answerTokens + texts(last + 1);
}

/**
 * Finds how many exchanges to leave out. What an earlier answer left out stays out, so that the
 * beginning of the prompt, which the server may have in its prefix cache, changes seldom.
 *
 * Throws `TooLong` if the last exchange alone does not fit.
 */
export async function fit(
  turns: Turn[],
  context: number | null,
  maxTokens: number | undefined,
  count: Count,
): Promise<Fit> {
  const most = Math.max(0, exchanges(turns).length - 1);
  const before = turns.findLast((turn) => turn.dropped !== undefined)?.dropped ?? 0;
  let dropped = Math.min(before, most);
  if (context === null) return { dropped, tokens: null };
  const room = context - reserve(context, maxTokens);
  if (estimate(turns, dropped) < room / 2) return { dropped, tokens: null };
  let tokens = await count(dropped);
  if (tokens <= room) return { dropped, tokens };
  // Once something has to go, half of the room is made free: not one exchange with every message.
  const target = room / 2;
  let [low, high] = [dropped, most]; // the fewest that could do, the most there are
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((await count(middle)) <= target) high = middle;
    else low = middle + 1;
  }
  dropped = low;
  tokens = await count(dropped);
  if (tokens >= context) throw new TooLong(tokens, context);
  return { dropped, tokens };
}
