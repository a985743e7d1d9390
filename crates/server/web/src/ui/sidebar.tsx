// The list of conversations, by age, with a search.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { toJson, toMarkdown } from "../chat/file.ts";
import { matches, path } from "../chat/tree.ts";
import type { Conversation } from "../chat/types.ts";
import { download } from "../text/files.ts";
import { Icon, IconButton } from "./icons.tsx";
import { Menu } from "./menu.tsx";
import { ThemeButton } from "./theme.tsx";
import { useApp } from "./use.ts";

const DAY = 24 * 60 * 60 * 1000;

/** The heading under which a conversation is listed. */
export function age(updated: number, now: number): string {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (updated >= midnight) return "Today";
  if (updated >= midnight - DAY) return "Yesterday";
  if (updated >= midnight - 7 * DAY) return "Last seven days";
  return new Date(updated).toLocaleDateString("en", { month: "long", year: "numeric" });
}

function Entry({ conversation }: { conversation: Conversation }) {
  const app = useApp();
  const [isNamed, setNamed] = useState(false);
  const title = conversation.title || "Untitled";
  const isShown = app.view === "chat" && app.current === conversation;
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.select(), [isNamed]);
  if (isNamed) {
    const end = (event: Event) => {
      app.rename(conversation, (event.target as HTMLInputElement).value);
      setNamed(false);
    };
    return (
      <li class="entry">
        <input
          class="rename"
          aria-label="Name of the chat"
          defaultValue={title}
          dir="auto"
          ref={field}
          onBlur={end}
          onKeyDown={(event) => {
            if (event.key === "Enter") end(event);
            if (event.key !== "Escape") return;
            event.stopPropagation();
            setNamed(false);
          }}
        />
      </li>
    );
  }
  return (
    <li class={`entry ${isShown ? "is-shown" : ""}`}>
      <a href={`#/chat/${conversation.id}`} aria-current={isShown ? "page" : undefined} title={title}>
        <span class="title" dir="auto">{title}</span>
        {app.isRunning(conversation) && <span class="pulse" role="img" aria-label="answering" />}
      </a>
      <Menu
        label={`Actions for ${title}`}
        items={[
          { icon: "edit", label: "Rename", run: () => setNamed(true) },
          {
            icon: "save",
            label: "Export as JSON",
            run: () => download(`${title}.json`, toJson([conversation]), "application/json"),
          },
          {
            icon: "file",
            label: "Export as Markdown",
            run: () => download(`${title}.md`, toMarkdown(title, path(conversation)), "text/markdown"),
          },
          { icon: "trash", label: "Delete", isGrave: true, run: () => app.delete(conversation) },
        ]}
      />
    </li>
  );
}

export function Sidebar({ close }: { close: () => void }) {
  const app = useApp();
  const [query, setQuery] = useState("");
  const upload = useRef<HTMLInputElement>(null);
  const found = app.library.conversations.filter((conversation) => matches(conversation, query));
  const groups = new Map<string, Conversation[]>();
  for (const own of found) {
    const name = age(own.updated, Date.now());
    groups.set(name, [...(groups.get(name) ?? []), own]);
  }
  useEffect(() => {
    const toSearch = (event: KeyboardEvent) => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k") return;
      event.preventDefault();
      document.getElementById("search")?.focus();
    };
    document.addEventListener("keydown", toSearch);
    return () => document.removeEventListener("keydown", toSearch);
  }, []);
  return (
    <nav class="sidebar" id="sidebar" aria-label="Chats">
      <div class="brand">
        <a href="#/" onClick={(event) => (event.preventDefault(), app.newChat())}>
          realizar
        </a>
        <ThemeButton />
        <IconButton icon="close" label="Close the list of chats" class="only-narrow" onClick={close} />
      </div>
      <button type="button" id="new-chat" class="new-chat" onClick={() => app.newChat()}>
        <Icon name="plus" />
        New chat
      </button>
      <label class="search">
        <Icon name="search" />
        <input
          id="search"
          type="search"
          placeholder="Search chats"
          aria-label="Search chats"
          dir="auto"
          value={query}
          onInput={(event) => setQuery(event.currentTarget.value)}
        />
      </label>
      <div class="entries">
        {[...groups].map(([name, own]) => (
          <section key={name} aria-label={name}>
            <h2>{name}</h2>
            <ul>
              {own.map((conversation) => (
                <Entry key={conversation.id} conversation={conversation} />
              ))}
            </ul>
          </section>
        ))}
        {found.length === 0 && (
          <p class="hint">{query ? "No chat has these words." : "Chats are kept in this browser and nowhere else."}</p>
        )}
      </div>
      {!app.library.lasts && <p class="hint">This window keeps no data: chats are gone when it closes.</p>}
      <div class="foot">
        <a href="#/dashboard" class="row" aria-current={app.view === "dashboard" ? "page" : undefined}>
          <Icon name="chart" />
          Dashboard
        </a>
        <Menu
          label="All chats"
          class="upward"
          items={[
            { icon: "open", label: "Import…", run: () => upload.current?.click() },
            {
              icon: "save",
              label: "Export all",
              run: () => download("chats.json", toJson(app.library.conversations), "application/json"),
            },
            ...(app.api.key ? [{ icon: "key" as const, label: "Forget the API key", run: () => app.forgetKey() }] : []),
          ]}
        />
        <input
          ref={upload}
          id="import"
          type="file"
          accept="application/json,.json"
          hidden
          onChange={async (event) => {
            const input = event.currentTarget;
            const file = input.files?.[0];
            if (file) app.import(await file.text());
            input.value = "";
          }}
        />
      </div>
    </nav>
  );
}
