// One turn of a conversation, with what can be done about it.

import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { App } from "../app.ts";
import { speed } from "../chat/answer.ts";
import { siblings } from "../chat/tree.ts";
import type { ToolCall, Turn } from "../chat/types.ts";
import { pretty } from "../text/json.ts";
import { FileHint, grow } from "./composer.tsx";
import { Guard } from "./guard.tsx";
import { Icon, IconButton, type IconName } from "./icons.tsx";
import { Json, Plain, Prose } from "./prose.tsx";
import { Tokens } from "./tokens.tsx";
import { copy, count, plural } from "./use.ts";

interface Props {
  app: App;
  turn: Turn;
  isLast: boolean;
  /** Changes whenever the turn, or what is shown about it, does. */
  version: string;
}

function CopyButton({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  const run = async () => {
    setDone(await copy(text));
    setTimeout(() => setDone(false), 1600);
  };
  return <IconButton icon={done ? "check" : "copy"} label={done ? "Copied" : label} onClick={run} />;
}

function Siblings({ app, turn }: { app: App; turn: Turn }) {
  const all = siblings(app.current, turn);
  if (all.length < 2) return null;
  const at = all.indexOf(turn);
  const isBusy = app.isRunning();
  return (
    <span class="siblings">
      <IconButton icon="left" label="Previous version" disabled={at === 0 || isBusy} onClick={() => app.showSibling(turn, -1)} />
      <span class="number" aria-label={`Version ${at + 1} of ${all.length}`}>
        {at + 1} / {all.length}
      </span>
      <IconButton icon="right" label="Next version" disabled={at === all.length - 1 || isBusy} onClick={() => app.showSibling(turn, 1)} />
    </span>
  );
}

function Reasoning({ app, turn }: { app: App; turn: Turn }) {
  const isLive = app.endOf(turn) === "streaming" && turn.text === "" && !turn.calls?.length;
  const seconds = Math.max(1, Math.round((turn.reasoningMs ?? 0) / 1000));
  const label = isLive ? "Thinking…" : `Thought for ${plural(seconds, "second")}`;
  return (
    <Fold icon="think" label={label} isLive={isLive}>
      <Prose text={turn.reasoning ?? ""} />
    </Fold>
  );
}

/** A part that is folded unless it is being written or the reader opened it. */
function Fold({ icon, label, isLive, children }: {
  icon: IconName;
  label: string;
  isLive: boolean;
  children: preact.ComponentChildren;
}) {
  const [chosen, choose] = useState<boolean | null>(null);
  const isOpen = chosen ?? isLive;
  return (
    <div class={`fold ${isLive ? "is-live" : ""}`}>
      <button type="button" aria-expanded={isOpen} onClick={() => choose(!isOpen)}>
        <Icon name={icon} />
        <span>{label}</span>
        <Icon name={isOpen ? "down" : "right"} />
      </button>
      {isOpen && <div class="folded">{children}</div>}
    </div>
  );
}

/** Asks whether a call may run on an MCP server. */
function Ask({ app, turn, call }: { app: App; turn: Turn; call: ToolCall }) {
  const server = app.serverOf(call);
  if (call.result !== undefined) return <p class="hint">Done; the model waits for the other calls.</p>;
  if (app.isCalling(call)) return <p class="hint">Running…</p>;
  return (
    <div class="ask" role="group" aria-label={`Run ${call.name}?`}>
      <span>Run this on {server?.name}?</span>
      <button type="button" class="button is-main" onClick={() => void app.run(turn, call)}>
        Run
      </button>
      <button type="button" class="button" onClick={() => app.runAlways(turn, call)}>
        Always in this chat
      </button>
      <button type="button" class="button" onClick={() => app.decline(turn, call)}>
        Decline
      </button>
    </div>
  );
}

function Calls({ app, turn, isLast }: { app: App; turn: Turn; isLast: boolean }) {
  const calls = turn.calls ?? [];
  const [results, setResults] = useState<string[]>([]);
  const waits = isLast && turn.end === "tools";
  const isOpen = (call: ToolCall) => call.result === undefined;
  const byHand = calls.filter((call) => isOpen(call) && !app.serverOf(call));
  const field = (call: ToolCall, idx: number) => (
    <label class="field">
      Result of {call.name}
      <textarea
        rows={2}
        dir="auto"
        value={results[idx] ?? ""}
        onInput={(event) => {
          const next = [...results];
          next[idx] = event.currentTarget.value;
          setResults(next);
        }}
      />
    </label>
  );
  return (
    <div class="calls">
      {calls.map((call, idx) => (
        <section class="call" key={call.id || idx} aria-label={`Call of ${call.name}`}>
          <h3>
            <Icon name="tool" />
            {call.name}
          </h3>
          <Json text={pretty(call.arguments)} />
          {waits && (byHand.includes(call) ? field(call, idx) : <Ask app={app} turn={turn} call={call} />)}
        </section>
      ))}
      {waits && byHand.length > 0 && (
        <button
          type="button"
          class="button"
          disabled={calls.some((call) => isOpen(call) && !byHand.includes(call))}
          onClick={() => app.giveResults(turn, results)}
        >
          Give {calls.length === 1 ? "the result" : "the results"} to the model
        </button>
      )}
    </div>
  );
}

function Facts({ app, turn }: { app: App; turn: Turn }) {
  const { stats } = turn;
  if (!stats || stats.answerTokens === 0) return null;
  const rate = speed(turn);
  const cached = stats.cachedTokens > 0 ? ` (${count(stats.cachedTokens)} from the cache)` : "";
  const title = `${plural(stats.promptTokens, "prompt token")}${cached}`;
  return (
    <p class="facts number" title={title}>
      <span>{turn.model}</span>
      {rate !== null && <span>{rate.toFixed(rate < 100 ? 1 : 0)} tokens/s</span>}
      <span>{plural(stats.answerTokens, "token")}</span>
      {app.endOf(turn) !== "streaming" && <span>{(stats.firstTokenMs / 1000).toFixed(2)} s to first token</span>}
    </p>
  );
}

/** Why an answer ends before its end, and what can be done. */
function Cut({ app, turn, isLast }: { app: App; turn: Turn; isLast: boolean }) {
  const text = {
    length: "Cut off: the answer reached its maximum number of tokens.",
    context: "Cut off: the model's context is full. To continue, the oldest messages are left out.",
    stopped: "Stopped.",
  }[app.endOf(turn) as string];
  if (!text) return null;
  const canProceed = isLast && turn.text.trim() !== "" && !turn.calls?.length;
  return (
    <p class="cut" role="note">
      <span>{text}</span>
      {canProceed && (
        <button type="button" class="link" onClick={() => app.proceed(turn)}>
          Continue
        </button>
      )}
    </p>
  );
}

function Failed({ app, turn }: { app: App; turn: Turn }) {
  if (!turn.failure) return null;
  const { message, hint } = turn.failure;
  return (
    <div class="failed" role="alert">
      <p>
        <strong>{message}</strong> {hint}
      </p>
      <button type="button" class="button" onClick={() => app.regenerate(turn)}>
        <Icon name="redo" />
        Try again
      </button>
    </div>
  );
}

function Editor({ app, turn, close }: { app: App; turn: Turn; close: () => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const own = field.current;
    if (!own) return;
    grow(own);
    own.focus();
    own.setSelectionRange(own.value.length, own.value.length);
  }, []);
  const send = () => {
    const text = field.current?.value.trim() ?? "";
    if (text || turn.files?.length) app.edit(turn, text);
    close();
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={field}
        aria-label="Edit the message"
        dir="auto"
        defaultValue={turn.text}
        onInput={(event) => grow(event.currentTarget)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            close();
          } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      <div class="row">
        <span class="hint">The earlier version stays; switch between them below the message.</span>
        <button type="button" class="button" onClick={close}>
          Cancel
        </button>
        <button type="submit" class="button is-main">
          Send
        </button>
      </div>
    </form>
  );
}

function User({ app, turn }: Props) {
  const [isEdited, setEdited] = useState(false);
  if (isEdited) return <Editor app={app} turn={turn} close={() => setEdited(false)} />;
  return (
    <>
      <div class="bubble">
        {turn.files?.map((file, idx) => (
          <details class="file" key={idx}>
            <summary>
              <Icon name="file" />
              {file.name}
              <FileHint file={file} />
            </summary>
            <pre tabIndex={0} dir="auto">
              <Plain text={file.text} />
            </pre>
          </details>
        ))}
        {turn.text && (
          <div class="said" dir="auto">
            <Plain text={turn.text} />
          </div>
        )}
      </div>
      <div class="actions">
        <Siblings app={app} turn={turn} />
        <CopyButton text={turn.text} label="Copy message" />
        <IconButton icon="edit" label="Edit message" class="edit" disabled={app.isRunning()} onClick={() => setEdited(true)} />
      </div>
    </>
  );
}

function Assistant({ app, turn, isLast }: Props) {
  const [hasTokens, setTokens] = useState(false);
  const isLive = app.endOf(turn) === "streaming";
  const isEmpty = !turn.text && !turn.reasoning && !turn.calls?.length;
  return (
    <>
      {turn.reasoning && <Reasoning app={app} turn={turn} />}
      {isLive && isEmpty && (
        <p class="waiting" aria-label="Reading the conversation">
          <span />
          <span />
          <span />
        </p>
      )}
      {hasTokens && turn.tokens ? <Tokens tokens={turn.tokens} /> : turn.text && <Prose text={turn.text} />}
      {turn.calls && <Calls app={app} turn={turn} isLast={isLast} />}
      <Failed app={app} turn={turn} />
      {!isLive && <Cut app={app} turn={turn} isLast={isLast} />}
      <div class="actions">
        {!isLive && (
          <>
            <Siblings app={app} turn={turn} />
            <CopyButton text={turn.text} label="Copy answer" />
            <IconButton icon="redo" label="Answer again" class="again" disabled={app.isRunning()} onClick={() => app.regenerate(turn)} />
            <IconButton icon="branch" label="Branch into a new chat" onClick={() => app.branchFrom(turn)} />
            {turn.tokens && (
              <IconButton icon="bars" label="Token probabilities" pressed={hasTokens} onClick={() => setTokens(!hasTokens)} />
            )}
          </>
        )}
        <Facts app={app} turn={turn} />
      </div>
    </>
  );
}

function Tool({ turn }: Props) {
  return (
    <Fold icon="tool" label="Tool result" isLive={false}>
      <Json text={pretty(turn.text)} />
    </Fold>
  );
}

const NAMES = { user: "You", assistant: "Assistant", tool: "Tool" };
const KINDS = { user: User, assistant: Assistant, tool: Tool };

/** In place of a message that cannot be shown as usual. */
function Broken({ turn, again }: { turn: Turn; again: () => void }) {
  return (
    <>
      <div class="plain" dir="auto">
        <Plain text={turn.text} />
      </div>
      <p class="cut" role="note">
        <span>This message cannot be shown as usual; this is its text.</span>
        <button type="button" class="link" onClick={again}>
          Try again
        </button>
      </p>
    </>
  );
}

export class Message extends Component<Props> {
  override shouldComponentUpdate(next: Props) {
    return next.version !== this.props.version;
  }

  override render(props: Props) {
    const { app, turn } = props;
    const { role } = turn;
    const Kind = KINDS[role];
    return (
      <article class={`message ${role}`} aria-label={NAMES[role]} aria-busy={app.endOf(turn) === "streaming"}>
        <Guard otherwise={(again) => <Broken turn={turn} again={again} />}>
          <Kind {...props} />
        </Guard>
      </article>
    );
  }
}
