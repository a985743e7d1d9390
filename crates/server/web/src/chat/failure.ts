// What went wrong, and what the person who reads can do about it.

import { ServerError } from "./answer.ts";
import { TooLong } from "./context.ts";
import type { Failure } from "./types.ts";

/** The words for an error that a request ended with. */
export function failure(error: unknown): Failure {
  if (error instanceof TooLong) {
    const message =
      `This message has ${error.tokens.toLocaleString()} tokens; ` +
      `the model's context holds ${error.context.toLocaleString()}.`;
    const hint = "Shorten it or attach less, or start the server with a longer context (--ctx).";
    return { message, hint, code: "context" };
  }
  if (error instanceof ServerError) {
    return { message: sentence(error.message), hint: hint(error), code: error.code || String(error.status) };
  }
  if (error instanceof TypeError) {
    // What fetch throws when there is no connection, or when it is lost.
    const message = "The connection to the server was lost.";
    return { message, hint: "Check that it is still running, then try again.", code: "connection" };
  }
  const message = error instanceof Error ? error.message : String(error);
  return { message: sentence(message), hint: "", code: "page" };
}

function hint({ status, code }: ServerError): string {
  if (status === 401 || status === 403) return "Enter the API key that this server expects.";
  if (code === "context_length_exceeded") return "Shorten the message, or begin a new chat.";
  if (code === "model_not_found") return "Choose another model at the top of the page.";
  if (status === 429 || status === 503) return "The server is busy. Wait a moment, then try again.";
  if (status === 408 || status === 504) return "The request timed out. Try again, or ask for a shorter answer.";
  if (status >= 500 || status === 0) return "The server's log tells more. Try again.";
  return "Check this chat's settings, then try again.";
}

function sentence(text: string): string {
  const trimmed = text.trim() || "The request failed";
  const first = trimmed.charAt(0).toLocaleUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}
