// The conversation that is shown, the field below it, and what stands there instead while the page
// does not know its models.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { exchanges, path, siblings } from "../chat/tree.ts";
import { Composer } from "./composer.tsx";
import { Icon } from "./icons.tsx";
import { Message } from "./message.tsx";
import { copy, plural, useApp } from "./use.ts";

/** Asks for the API key. */
function KeyForm() {
  const app = useApp();
  const field = useRef<HTMLInputElement>(null);
  const [isKept, keep] = useState(false);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => field.current?.focus(), [app.keyError]);
  const onSubmit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    await app.useKey(field.current?.value ?? "", isKept);
    setBusy(false);
    field.current?.select();
  };
  const error = app.keyError;
  return (
    <form class="card" onSubmit={onSubmit}>
      <h1>This server asks for an API key</h1>
      <p>It is one of the keys that the server was started with (--api-key).</p>
      <label class="field">
        API key
        <input
          ref={field}
          id="key"
          type="password"
          autocomplete="current-password"
          required
          aria-invalid={error !== null}
          aria-describedby={error ? "key-error" : undefined}
        />
      </label>
      {error && (
        <p class="problem" id="key-error" role="alert">
          The server does not accept this key. Check it for missing characters, or ask who runs the server.
        </p>
      )}
      <label class="tick">
        <input type="checkbox" checked={isKept} onChange={(event) => keep(event.currentTarget.checked)} />
        Remember it in this browser
      </label>
      <button type="submit" class="button is-main" disabled={isBusy}>
        Continue
      </button>
    </form>
  );
}

function Lost() {
  const app = useApp();
  return (
    <div class="card" role="alert">
      <h1>The server does not answer</h1>
      <p>Check that it is still running and that this address is right, then try again.</p>
      <button type="button" class="button is-main" onClick={() => void app.connect()}>
        <Icon name="redo" />
        Try again
      </button>
    </div>
  );
}

function Empty() {
  const app = useApp();
  if (app.link === "ready" && app.models.length === 0) {
    return (
      <div class="card">
        <h1>No chat model yet</h1>
        <p>The server has no model that answers with text. Start it with one, as in “realizar serve smollm2”.</p>
      </div>
    );
  }
  return (
    <div class="welcome">
      <h1>What is on your mind?</h1>
      <p>{app.model ? `${app.model.id} answers on this server. Nothing leaves it.` : "\u00a0"}</p>
    </div>
  );
}

/** Goes from the number of a footnote to its text, or back. */
function toNote(target: Element): void {
  const { note, noteOf } = target.closest<HTMLElement>("button.note")?.dataset ?? {};
  const number = note ?? noteOf;
  if (number === undefined) return;
  const found = target.closest(".prose")?.querySelector<HTMLElement>(note ? `[data-note-text="${number}"]` : `[data-note="${number}"]`);
  found?.focus();
  found?.scrollIntoView({ block: "nearest" });
}

/** Whether the list is followed to its end while an answer grows. */
const NEAR = 80;

export function Thread() {
  const app = useApp();
  const scroller = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const lastTop = useRef(0);
  const [hasMore, setMore] = useState(false);
  const { current } = app;
  const turns = path(current);
  const last = turns.at(-1);
  const groups = exchanges(turns);
  // What the latest answer left out is marked in the conversation.
  const dropped = turns.findLast((turn) => turn.dropped !== undefined)?.dropped ?? 0;
  const firstKept = dropped > 0 ? groups[Math.min(dropped, groups.length - 1)]?.[0] : undefined;
  const isBusy = app.isRunning();

  // Whatever makes the conversation longer: texts are formatted some time after they came.
  useLayoutEffect(() => {
    const messages = scroller.current?.firstElementChild;
    if (!messages) return;
    const observer = new ResizeObserver(() => {
      const own = scroller.current;
      if (own && isAtEnd.current) own.scrollTop = own.scrollHeight;
    });
    observer.observe(messages);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    isAtEnd.current = true;
    lastTop.current = 0;
    const own = scroller.current;
    if (own) own.scrollTop = own.scrollHeight;
  }, [current.id, turns.length]);

  const onScroll = () => {
    const own = scroller.current;
    if (!own) return;
    const isNear = own.scrollHeight - own.scrollTop - own.clientHeight < NEAR;
    // The end is left by scrolling up; it also moves away when a text is formatted.
    isAtEnd.current = isNear || (isAtEnd.current && own.scrollTop >= lastTop.current);
    lastTop.current = own.scrollTop;
    setMore(!isAtEnd.current);
  };
  const toEnd = () => {
    isAtEnd.current = true;
    scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  };
  const onClick = async (event: MouseEvent) => {
    const target = event.target as Element;
    toNote(target);
    const button = target.closest("[data-copy]");
    if (!button) return;
    const code = button.closest("figure")?.querySelector("code");
    if (!(await copy(code?.textContent ?? ""))) return;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  };

  const isBlocked = app.link === "key" || (app.link === "lost" && turns.length === 0);
  return (
    <main class="thread">
      <div class="scroller" ref={scroller} onScroll={onScroll} onClick={onClick}>
        <div class="column" id="messages">
          {app.link === "key" && <KeyForm />}
          {app.link === "lost" && turns.length === 0 && <Lost />}
          {!isBlocked && turns.length === 0 && <Empty />}
          {app.link !== "key" &&
            turns.map((turn) => (
              <>
                {turn === firstKept && (
                  <p class="dropped" role="note" key={`dropped-${turn.id}`}>
                    <span>
                      The context is full: {plural(dropped, "earlier exchange")} above {dropped === 1 ? "is" : "are"} no
                      longer sent to the model. The system prompt still is.
                    </span>
                  </p>
                )}
                <Message
                  key={turn.id}
                  app={app}
                  turn={turn}
                  isLast={turn === last}
                  version={[current.id, app.version(turn), turn === last, isBusy, app.servers.length, app.endOf(turn), siblings(current, turn).length].join()}
                />
              </>
            ))}
        </div>
      </div>
      {hasMore && (
        <button type="button" class="to-end" aria-label="To the end of the conversation" onClick={toEnd}>
          <Icon name="down" />
        </button>
      )}
      {!isBlocked && (
        <div class="gutter">
          <div class="column dock">
            <Composer />
          </div>
        </div>
      )}
    </main>
  );
}
