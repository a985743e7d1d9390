// The page's state and what can be done with it. The user interface reads it, calls its methods,
// and is told when something has changed.

import { Answer, ServerError } from "./chat/answer.ts";
import { Api } from "./chat/api.ts";
import { fit } from "./chat/context.ts";
import { failure } from "./chat/failure.ts";
import { fromJson } from "./chat/file.ts";
import { Library } from "./chat/library.ts";
import { body } from "./chat/request.ts";
import { keep, type Prompt, recall } from "./chat/storage.ts";
import * as tree from "./chat/tree.ts";
import type { Attachment, Conversation, End, Model, Settings, ToolCall, ToolServer, Turn } from "./chat/types.ts";

export type View = "chat" | "dashboard";
/** Whether the page knows its models, and if not, why. */
export type Link = "connecting" | "ready" | "key" | "lost";

/** Time between two writes of an answer that streams, in milliseconds. */
const SAVE_EVERY = 1000;

export class App {
  readonly api = new Api();
  readonly library = new Library({
    changed: (turn) => this.changed(turn),
    deleted: (conversation) => this.#deletedElsewhere(conversation),
    stop: (id) => {
      for (const { turn, abort } of this.#running.values()) if (turn.id === id) abort.abort();
    },
    problem: (text) => this.tell(text),
  });
  current: Conversation = tree.newConversation({});
  models: Model[] = [];
  /** MCP servers that the server offers the tools of. */
  servers: ToolServer[] = [];
  link: Link = "connecting";
  /** Why the key was refused, once one was tried. */
  keyError: string | null = null;
  view: View = "chat";
  /** What a screen reader is told. */
  status = "";
  /** A message at the bottom of the page, for what has no place of its own. */
  notice: { text: string; undo?: () => void } | null = null;
  prompts: Prompt[] = recall("prompts", []);

  /** Of conversations, the answer that arrives in this tab. */
  #running = new Map<string, { abort: AbortController; turn: Turn }>();
  #calling = new Set<ToolCall>();
  /** Of conversations, the tools that run there without a further question, until the page is closed. */
  #always = new Map<string, Set<string>>();
  #versions = new WeakMap<Turn, number>();
  #listeners = new Set<() => void>();
  #frame = 0;
  #noticeTimer = 0;

  // ---- Listeners.

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Tells the user interface of a change, once per frame. */
  changed(turn?: Turn): void {
    if (turn) this.#versions.set(turn, this.version(turn) + 1);
    if (this.#frame) return;
    // Frames stop in a tab that is not seen; a timer goes on.
    const next = document.hidden ? setTimeout : requestAnimationFrame;
    this.#frame = next(() => {
      this.#frame = 0;
      for (const listener of this.#listeners) listener();
    }) as unknown as number;
  }

  /** Changes whenever the turn does. */
  version(turn: Turn): number {
    return this.#versions.get(turn) ?? 0;
  }

  tell(text: string, undo?: () => void): void {
    this.notice = undo ? { text, undo } : { text };
    clearTimeout(this.#noticeTimer);
    this.#noticeTimer = window.setTimeout(() => this.dismiss(), 8000);
    this.changed();
  }

  dismiss(): void {
    this.notice = null;
    this.changed();
  }

  // ---- The start.

  async start(): Promise<void> {
    const session = recall("key", "", () => sessionStorage);
    this.api.key = session || recall("key", "");
    this.current.settings = recall<Settings>("defaults", {});
    await Promise.all([this.library.open(), this.connect()]);
    this.route();
  }

  /** Shows what the address names. */
  route(): void {
    const [, name = "", id = ""] = location.hash.split("/");
    this.view = name === "dashboard" ? "dashboard" : "chat";
    const found = name === "chat" ? this.library.conversations.find((own) => own.id === id) : undefined;
    if (found) this.current = found;
    else if (this.view === "chat" && this.library.has(this.current)) this.#fresh();
    this.changed();
  }

  /** Learns the models; asks for a key if the server does. */
  async connect(): Promise<void> {
    try {
      this.models = await this.api.models();
      this.link = "ready";
      this.keyError = null;
      await this.loadServers();
    } catch (error) {
      const status = error instanceof ServerError ? error.status : 0;
      this.link = status === 401 || status === 403 ? "key" : "lost";
      if (this.link === "key" && this.api.key) this.keyError = (error as Error).message;
    }
    this.changed();
  }

  /** Tries a key, and keeps it for this visit or for later ones too. */
  async useKey(key: string, isKept: boolean): Promise<void> {
    this.api.key = key.trim();
    this.keyError = null;
    await this.connect();
    if (this.link !== "ready") return;
    keep("key", this.api.key, () => sessionStorage);
    keep("key", isKept ? this.api.key : undefined);
  }

  forgetKey(): void {
    this.api.key = "";
    keep("key", undefined, () => sessionStorage);
    keep("key", undefined);
    void this.connect();
  }

  // ---- Conversations.

  /** The model of the conversation, or the one that the server would choose. */
  get model(): Model | undefined {
    const name = this.current.settings.model;
    return this.models.find((model) => model.id === name) ?? this.models[0];
  }

  #fresh(): void {
    this.current = tree.newConversation(recall<Settings>("defaults", {}));
  }

  /** Begins a new chat. What streams elsewhere goes on there. */
  newChat(): void {
    this.#fresh();
    this.view = "chat";
    history.pushState(null, "", "#/");
    this.changed();
  }

  open(conversation: Conversation): void {
    location.hash = `#/chat/${conversation.id}`;
  }

  openDashboard(): void {
    location.hash = "#/dashboard";
  }

  /** Takes a conversation into the list, at its head. */
  #touch(conversation: Conversation): void {
    conversation.updated = Date.now();
    this.library.add(conversation);
    if (conversation === this.current && this.view === "chat") {
      history.replaceState(null, "", `#/chat/${conversation.id}`);
    }
    void this.library.save(conversation);
  }

  rename(conversation: Conversation, title: string): void {
    conversation.named = title.trim() !== "";
    conversation.title = title.trim() || tree.titleOf(conversation);
    void this.library.save(conversation);
    this.changed();
  }

  delete(conversation: Conversation): void {
    this.stop(conversation);
    this.library.delete(conversation);
    if (this.current === conversation) this.newChat();
    this.#offer(conversation, "Chat deleted.");
  }

  #deletedElsewhere(conversation: Conversation): void {
    this.#running.get(conversation.id)?.abort.abort();
    if (this.current === conversation) {
      this.newChat();
      this.#offer(conversation, "Another tab has deleted this chat.");
    }
    this.changed();
  }

  /** Says that a conversation is gone, and offers to bring it back. */
  #offer(conversation: Conversation, text: string): void {
    this.tell(text, () => {
      this.library.add(conversation);
      void this.library.save(conversation);
      this.dismiss();
    });
  }

  /** Adds the conversations of a file. */
  import(text: string): void {
    try {
      const found = fromJson(text);
      this.library.add(...found);
      for (const conversation of found) void this.library.save(conversation);
      this.tell(found.length === 1 ? "1 chat imported." : `${found.length} chats imported.`);
    } catch (error) {
      this.tell((error as Error).message);
    }
  }

  /** Changes settings of the current conversation; an undefined value is the model's default. */
  set(changes: { [K in keyof Settings]?: Settings[K] | undefined }): void {
    const settings = { ...this.current.settings, ...changes };
    const kept = Object.entries(settings).filter(([, value]) => value !== undefined && value !== "");
    this.current.settings = Object.fromEntries(kept) as Settings;
    void this.library.save(this.current);
    this.changed();
  }

  /** New chats begin with the settings of this one. */
  keepAsDefaults(): void {
    keep("defaults", this.current.settings);
    this.tell("New chats begin with these settings.");
  }

  savePrompt(name: string, text: string): void {
    // Another tab may have saved one too.
    const others = recall<Prompt[]>("prompts", []).filter((own) => own.name !== name);
    this.prompts = [...others, { name, text }].sort((a, b) => a.name.localeCompare(b.name));
    keep("prompts", this.prompts);
    this.changed();
  }

  deletePrompt(name: string): void {
    this.prompts = recall<Prompt[]>("prompts", []).filter((own) => own.name !== name);
    keep("prompts", this.prompts);
    this.changed();
  }

  /** Another tab has saved or deleted a prompt. */
  reloadPrompts(): void {
    this.prompts = recall("prompts", []);
    this.changed();
  }

  // ---- Answers.

  /** Whether the conversation is being answered, in this tab or, in the branch that is shown, in another one. */
  isRunning(conversation = this.current): boolean {
    return this.#running.has(conversation.id) || this.library.elsewhere(conversation) !== undefined;
  }

  /** Stops the answer of a conversation; what there is of it stays. */
  stop(conversation = this.current): void {
    const elsewhere = this.library.elsewhere(conversation);
    if (elsewhere) this.library.stopElsewhere(elsewhere);
    this.#running.get(conversation.id)?.abort.abort();
  }

  /** Why an answer ended. One that nobody receives any more was stopped, as its tab was closed. */
  endOf(turn: Turn): End | undefined {
    return turn.end === "streaming" && !this.library.isLive(turn) ? "stopped" : turn.end;
  }

  /** Says something, and has it answered. */
  send(text: string, files: Attachment[]): void {
    const conversation = this.current;
    if (this.isRunning(conversation)) return;
    tree.append(conversation, conversation.leaf, "user", text, files.length ? { files } : {});
    void this.#answer(conversation);
  }

  /** Says something else in place of a message. */
  edit(turn: Turn, text: string): void {
    if (this.isRunning()) return;
    const { files } = turn;
    tree.append(this.current, turn.parent, "user", text, files ? { files } : {});
    void this.#answer(this.current);
  }

  /** Answers once more; a failed answer is replaced. */
  regenerate(turn: Turn): void {
    const conversation = this.current;
    if (this.isRunning(conversation)) return;
    if (turn.end === "failed" && turn.text === "") tree.remove(conversation, turn);
    conversation.leaf = turn.parent;
    void this.#answer(conversation);
  }

  /** Continues an answer that was cut or stopped. */
  proceed(turn: Turn): void {
    if (this.isRunning()) return;
    void this.#answer(this.current, turn);
  }

  // ---- Tools.

  /** Learns the MCP servers. Those who may not use them see none. */
  async loadServers(): Promise<void> {
    this.servers = await this.api.servers().catch(() => []);
    this.changed();
  }

  /** The MCP server that runs a call, if the conversation uses one that has the tool. */
  serverOf(call: ToolCall, conversation = this.current): ToolServer | undefined {
    const used = this.servers.filter((server) => conversation.settings.servers?.includes(server.name));
    return used.find((server) => server.tools.some((tool) => tool.function.name === call.name));
  }

  isCalling(call: ToolCall): boolean {
    return this.#calling.has(call);
  }

  /** Runs a call that the user lets run, and from now on all of its tool in this conversation. */
  runAlways(turn: Turn, call: ToolCall): void {
    const tools = this.#always.get(this.current.id) ?? new Set();
    this.#always.set(this.current.id, tools.add(call.name));
    void this.run(turn, call);
  }

  /** Runs a call that the user lets run. */
  async run(turn: Turn, call: ToolCall, conversation = this.current): Promise<void> {
    if (this.isCalling(call) || call.result !== undefined) return;
    this.#calling.add(call);
    this.changed(turn);
    try {
      call.result = await this.api.call(call.name, JSON.parse(call.arguments || "{}"));
    } catch (error) {
      // The model may know what to do about it, and the result is there to be read.
      call.result = `Error: ${(error as Error).message}`;
    }
    this.#calling.delete(call);
    this.#settle(conversation, turn);
  }

  decline(turn: Turn, call: ToolCall): void {
    call.result = "The user declined this call.";
    this.#settle(this.current, turn);
  }

  /** Gives results of tools to the model, in the order of its calls; those that ran have their own. */
  giveResults(turn: Turn, results: string[]): void {
    for (const [idx, call] of (turn.calls ?? []).entries()) call.result ??= results[idx] ?? "";
    this.#settle(this.current, turn);
  }

  /** Goes on once every call has a result, unless the conversation went another way. */
  #settle(conversation: Conversation, turn: Turn): void {
    const calls = turn.calls ?? [];
    void this.library.save(conversation);
    this.changed(turn);
    if (calls.some((call) => call.result === undefined)) return;
    if (conversation.leaf !== turn.id || this.isRunning(conversation)) return;
    for (const { id, result = "" } of calls) {
      tree.append(conversation, conversation.leaf, "tool", result, { callId: id });
    }
    void this.#answer(conversation);
  }

  showSibling(turn: Turn, step: number): void {
    const all = tree.siblings(this.current, turn);
    const next = all[all.indexOf(turn) + step];
    if (!next) return;
    tree.show(this.current, next);
    void this.library.save(this.current);
    this.changed();
  }

  branchFrom(turn: Turn): void {
    const copy = tree.branch(this.current, turn);
    this.library.add(copy);
    void this.library.save(copy);
    this.open(copy);
    this.tell("Branched into a new chat.");
  }

  /**
   * Has the current branch of a conversation answered, in a turn of its own or in `proceeds`. All
   * it changes is this conversation, whichever one is shown.
   */
  async #answer(conversation: Conversation, proceeds?: Turn): Promise<void> {
    const { settings } = conversation;
    const before = tree.path(conversation);
    const turn = proceeds ?? tree.append(conversation, conversation.leaf, "assistant", "");
    const abort = new AbortController();
    const { signal } = abort;
    this.#running.set(conversation.id, { abort, turn });
    this.library.started(conversation, turn);
    turn.end = "streaming";
    delete turn.failure;
    this.status = "The model is answering.";
    this.#touch(conversation);
    this.changed(turn);
    try {
      const model = this.models.find((own) => own.id === settings.model) ?? this.models[0];
      turn.model = model?.id ?? settings.model ?? "";
      const { servers } = this;
      const asked = (dropped: number) => body(before, settings, { dropped, proceeds: Boolean(proceeds), servers });
      const context = model?.context ?? null;
      const count = (dropped: number) => this.api.count(asked(dropped), signal);
      const { dropped } = await fit(before, context, settings.max_tokens, count);
      if (dropped > 0) turn.dropped = dropped;
      const answer = new Answer(turn, performance.now(), context);
      let saved = performance.now();
      for await (const chunk of this.api.answer(asked(dropped), signal)) {
        // What is on its way when the user stops comes too late.
        if (signal.aborted) break;
        const now = performance.now();
        answer.add(chunk, now);
        if (now - saved > SAVE_EVERY) {
          saved = now;
          void this.library.save(conversation);
        }
        this.changed(turn);
      }
      if (turn.end === "streaming") turn.end = signal.aborted ? "stopped" : "done";
      if (model && !model.loaded) void this.connect();
    } catch (error) {
      if (signal.aborted) {
        turn.end = "stopped";
      } else {
        turn.end = "failed";
        turn.failure = failure(error);
        if (error instanceof ServerError && error.status === 401) void this.connect();
      }
    } finally {
      this.#running.delete(conversation.id);
    }
    const end = turn.end as string;
    const always = this.#always.get(conversation.id);
    for (const call of end === "tools" ? (turn.calls ?? []) : []) {
      if (always?.has(call.name) && this.serverOf(call, conversation)) void this.run(turn, call, conversation);
    }
    this.status = { failed: "The answer failed.", stopped: "Stopped." }[end] ?? "The answer is complete.";
    this.changed(turn);
    await this.library.save(conversation);
    this.library.ended(conversation, turn);
    this.changed(turn);
  }
}
