// What a conversation is made of, as it is kept in the browser and as it is exported.

export type Role = "user" | "assistant" | "tool";

/** A file whose text goes to the model with a message. */
export interface Attachment {
  name: string;
  text: string;
  /** Pages of a PDF; absent for text files. */
  pages?: number;
  /** How a text file was read, if not as UTF-8. */
  encoding?: string;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it; it may be incomplete while the answer streams. */
  arguments: string;
  /** What it gave, while others of its turn still wait. */
  result?: string;
}

/** A function that a model may call, in OpenAI's form. */
export interface Tool {
  type: "function";
  function: { name: string; description?: string; parameters?: unknown };
}

/** An MCP server that the server was started with. */
export interface ToolServer {
  name: string;
  tools: Tool[];
  /** Why it cannot be used. */
  error: string | null;
}

/** One generated token and what else could have stood in its place. */
export interface Token {
  text: string;
  logprob: number;
  top: { text: string; logprob: number }[];
}

/** Why an answer ended; `streaming` while it has not. */
export type End =
  | "streaming"
  | "done"
  | "tools" // the model calls tools
  | "length" // the maximum number of tokens
  | "context" // no more room in the context
  | "stopped" // by the user, or because the page was closed
  | "failed";

export interface Stats {
  promptTokens: number;
  cachedTokens: number;
  answerTokens: number;
  /** From the request to the first token. */
  firstTokenMs: number;
  /** From the first token to the last. */
  decodeMs: number;
}

/** What went wrong, in words for the person who reads. */
export interface Failure {
  message: string;
  hint: string;
  code: string;
}

/** A node of the conversation's tree. */
export interface Turn {
  id: string;
  parent: string | null;
  role: Role;
  text: string;
  created: number;
  files?: Attachment[];
  reasoning?: string;
  /** How long the model reasoned. */
  reasoningMs?: number;
  calls?: ToolCall[];
  /** The call that a turn of role `tool` answers. */
  callId?: string;
  model?: string;
  end?: End;
  failure?: Failure;
  stats?: Stats;
  tokens?: Token[];
  /** How many of the oldest exchanges the request for this answer left out. */
  dropped?: number;
}

/** Fields of a request that a conversation sets; what is absent is the model's default. */
export interface Settings {
  model?: string;
  system?: string;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repetition_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  max_tokens?: number;
  seed?: number;
  /** Texts that end an answer. */
  stop?: string[];
  reasoning_effort?: string;
  /** A JSON list of tools in OpenAI's form. */
  tools?: string;
  /** Names of the MCP servers whose tools the model may ask for. */
  servers?: string[];
  logprobs?: boolean;
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether the user named it; otherwise the title follows the first message. */
  named: boolean;
  created: number;
  updated: number;
  turns: Turn[];
  /** The last turn of the branch that is shown. */
  leaf: string | null;
  settings: Settings;
}

/** A model as `/v1/models` describes it. */
export interface Model {
  id: string;
  /** Tokens of prompt and answer; unknown while it is not loaded. */
  context: number | null;
  loaded: boolean;
  failure: string | null;
  architecture: string | null;
  parameters: number | null;
  bytes: number | null;
  defaults: Partial<Record<SamplingName, number>>;
}

export type SamplingName =
  | "temperature"
  | "top_p"
  | "top_k"
  | "min_p"
  | "repetition_penalty"
  | "presence_penalty"
  | "frequency_penalty";
