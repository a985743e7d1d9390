// The frame of the page: the list of chats, the bar above the conversation, the settings.

import { useEffect, useState } from "preact/hooks";
import { estimate } from "../chat/context.ts";
import { keep, recall } from "../chat/storage.ts";
import { path } from "../chat/tree.ts";
import { Dashboard } from "./dashboard.tsx";
import { Guard, Part } from "./guard.tsx";
import { IconButton } from "./icons.tsx";
import { SettingsPanel } from "./settings.tsx";
import { Sidebar } from "./sidebar.tsx";
import { Thread } from "./thread.tsx";
import { compact, count, useApp } from "./use.ts";

const isNarrow = () => matchMedia("(max-width: 860px)").matches;

/** How much of the context the conversation takes. */
function ContextUse() {
  const app = useApp();
  const context = app.model?.context;
  const turns = path(app.current);
  if (!context || turns.length === 0) return null;
  const dropped = turns.findLast((turn) => turn.dropped !== undefined)?.dropped ?? 0;
  const used = Math.min(context, estimate(turns, dropped));
  const share = used / context;
  const title = `${count(used)} of ${count(context)} tokens of the context are used`;
  return (
    <span class={`context number ${share > 0.85 ? "is-full" : ""}`} title={title} role="img" aria-label={title}>
      <svg viewBox="0 0 20 20" aria-hidden="true">
        <circle cx="10" cy="10" r="7" />
        <circle cx="10" cy="10" r="7" class="used" pathLength={100} stroke-dasharray={`${share * 100} 100`} />
      </svg>
      <span>
        {compact(used)} / {compact(context)}
      </span>
    </span>
  );
}

function ModelChoice() {
  const app = useApp();
  const chosen = app.current.settings.model;
  const isKnown = !chosen || app.models.some((model) => model.id === chosen);
  return (
    <select
      id="model"
      aria-label="Model"
      value={chosen ?? app.model?.id ?? ""}
      onChange={(event) => app.set({ model: event.currentTarget.value })}
    >
      {!isKnown && <option value={chosen}>{chosen} (not on this server)</option>}
      {app.models.map((model) => (
        <option key={model.id} value={model.id}>
          {model.id}
        </option>
      ))}
      {app.models.length === 0 && <option value="">No model</option>}
    </select>
  );
}

export function Shell() {
  const app = useApp();
  const [hasList, setList] = useState<boolean>(false); // on narrow windows
  const [hasSettings, setSettings] = useState<boolean>(() => !isNarrow() && recall("settings", false));
  const closeSettings = () => {
    setSettings(false);
    keep("settings", false);
    document.getElementById("show-settings")?.focus();
  };
  const closeList = () => setList(false);

  useEffect(closeList, [app.current, app.view]);
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key === "Escape") {
        if (hasList) closeList();
        else if (app.isRunning()) app.stop();
        else if (hasSettings && isNarrow()) closeSettings();
      } else if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
        event.preventDefault();
        app.newChat();
      }
    };
    document.addEventListener("keydown", onKeyDown);
    return () => document.removeEventListener("keydown", onKeyDown);
  }, [hasList, hasSettings]);
  useEffect(() => {
    const title = app.view === "dashboard" ? "Dashboard" : app.current.title;
    document.title = title ? `${title} – realizar` : "realizar";
  });

  const isChat = app.view === "chat";
  return (
    <div class={`shell ${hasList ? "has-list" : ""} ${hasSettings && isChat ? "has-settings" : ""}`}>
      <a
        class="skip"
        href="#prompt"
        onClick={(event) => {
          event.preventDefault();
          document.querySelector<HTMLElement>("#prompt, #key, main")?.focus();
        }}
      >
        To the message
      </a>
      <Part name="The list of chats">
        <Sidebar close={closeList} />
      </Part>
      <div class="veil" onClick={() => (closeList(), isNarrow() && closeSettings())} />
      <div class="main">
        <header class="bar">
          <IconButton icon="menu" label="Chats" class="only-narrow" expanded={hasList} onClick={() => setList(true)} />
          {isChat && app.link !== "key" && <ModelChoice />}
          <span class="space" />
          {isChat && (
            <Guard otherwise={() => null} of={app.current}>
              <ContextUse />
            </Guard>
          )}
          <IconButton icon="plus" label="New chat" class="only-narrow" onClick={() => app.newChat()} />
          {isChat && app.link !== "key" && (
            <IconButton
              icon="sliders"
              id="show-settings"
              label="Settings of this chat"
              expanded={hasSettings}
              onClick={() => {
                if (hasSettings) return closeSettings();
                setSettings(true);
                keep("settings", true);
              }}
            />
          )}
        </header>
        <Part of={isChat ? app.current : app.view} name={isChat ? "This chat" : "The dashboard"}>
          {isChat ? <Thread /> : <Dashboard />}
        </Part>
      </div>
      {hasSettings && isChat && app.link !== "key" && (
        <Part of={app.current} name="The settings">
          <SettingsPanel key={app.current.id} close={closeSettings} />
        </Part>
      )}
      <div class="sr-only" role="status">
        {app.status}
      </div>
      {app.notice && (
        <div class="notice" role="status">
          {app.notice.text}
          {app.notice.undo && (
            <button type="button" class="link" onClick={app.notice.undo}>
              Undo
            </button>
          )}
          <IconButton icon="close" label="Dismiss" onClick={() => app.dismiss()} />
        </div>
      )}
    </div>
  );
}
