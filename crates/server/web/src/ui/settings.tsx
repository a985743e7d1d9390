// Settings of the conversation that is shown. A field that is empty has the model's default, which
// it shows.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { readTools } from "../chat/request.ts";
import type { SamplingName, Settings } from "../chat/types.ts";
import { Icon, IconButton } from "./icons.tsx";
import { bytes, compact, plural, useApp } from "./use.ts";

interface NumberField {
  name: SamplingName | "max_tokens" | "seed";
  label: string;
  help: string;
  min: number;
  max?: number;
  step: number;
  /** What an empty field means, where the model has no default of its own. */
  otherwise: string;
}

const SAMPLING: NumberField[] = [
  { name: "temperature", label: "Temperature", help: "0 always takes the likeliest token.", min: 0, max: 5, step: 0.05, otherwise: "default" },
  { name: "top_p", label: "Top-p", help: "Draws from the likeliest tokens that have this share together.", min: 0.01, max: 1, step: 0.01, otherwise: "default" },
  { name: "top_k", label: "Top-k", help: "Draws from so many tokens; 0 is all.", min: 0, step: 1, otherwise: "default" },
  { name: "min_p", label: "Min-p", help: "Leaves out tokens below this share of the likeliest.", min: 0, max: 1, step: 0.01, otherwise: "default" },
  { name: "repetition_penalty", label: "Repetition penalty", help: "1 is none.", min: 0.5, max: 2, step: 0.05, otherwise: "default" },
  { name: "presence_penalty", label: "Presence penalty", help: "0 is none.", min: -2, max: 2, step: 0.1, otherwise: "default" },
  { name: "frequency_penalty", label: "Frequency penalty", help: "0 is none.", min: -2, max: 2, step: 0.1, otherwise: "default" },
];
const LIMITS: NumberField[] = [
  { name: "max_tokens", label: "Maximum tokens", help: "Of an answer.", min: 1, step: 1, otherwise: "what fits" },
  { name: "seed", label: "Seed", help: "The same seed draws the same tokens.", min: 0, step: 1, otherwise: "random" },
];

/**
 * The text of a field that is taken over once it is complete. Until then it is the field's own: the page is
 * drawn again at any time, as when an answer arrives, and must not put the former value in its place.
 */
function useDraft(value: string) {
  const [draft, setDraft] = useState<string | null>(null);
  return {
    value: draft ?? value,
    onInput: (event: { currentTarget: { value: string } }) => setDraft(event.currentTarget.value),
    onBlur: () => setDraft(null),
  };
}

function NumberInput({ field }: { field: NumberField }) {
  const app = useApp();
  const value = app.current.settings[field.name];
  const own = field.name in (app.model?.defaults ?? {}) ? app.model?.defaults[field.name as SamplingName] : undefined;
  const draft = useDraft(value === undefined ? "" : String(value));
  return (
    <label class="field">
      <span>{field.label}</span>
      <input
        {...draft}
        type="number"
        inputMode="decimal"
        name={field.name}
        min={field.min}
        max={field.max}
        step={field.step}
        title={field.help}
        placeholder={own === undefined ? field.otherwise : `${Number(own.toPrecision(4))} (default)`}
        onChange={(event) => {
          const input = event.currentTarget;
          const isWrong = input.value !== "" && !input.checkValidity() && !input.validity.stepMismatch;
          if (isWrong || input.validity.badInput) return void input.reportValidity();
          app.set({ [field.name]: input.value === "" ? undefined : input.valueAsNumber });
        }}
      />
    </label>
  );
}

function SystemPrompt() {
  const app = useApp();
  const { system = "" } = app.current.settings;
  const saved = app.prompts.find((prompt) => prompt.text === system);
  const [name, setName] = useState<string | null>(null);
  const nameField = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => nameField.current?.focus(), [name === null]);
  const draft = useDraft(system);
  return (
    <fieldset>
      <legend>System prompt</legend>
      {app.prompts.length > 0 && (
        <div class="row">
          <select
            aria-label="Saved system prompts"
            value={saved?.name ?? ""}
            onChange={(event) => {
              const own = app.prompts.find((prompt) => prompt.name === event.currentTarget.value);
              app.set({ system: own?.text });
            }}
          >
            <option value="">{system && !saved ? "Not saved" : "None"}</option>
            {app.prompts.map((prompt) => (
              <option key={prompt.name}>{prompt.name}</option>
            ))}
          </select>
          {saved && <IconButton icon="trash" label={`Delete the prompt ${saved.name}`} onClick={() => app.deletePrompt(saved.name)} />}
        </div>
      )}
      <textarea
        id="system"
        rows={5}
        aria-label="System prompt"
        placeholder="Tells the model how to answer in this chat"
        dir="auto"
        {...draft}
        onChange={(event) => app.set({ system: event.currentTarget.value })}
      />
      {name === null ? (
        <button type="button" class="link" disabled={!system.trim() || saved !== undefined} onClick={() => setName("")}>
          Save by name…
        </button>
      ) : (
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            if (name.trim()) app.savePrompt(name.trim(), system);
            setName(null);
          }}
        >
          <input
            aria-label="Name of the prompt"
            placeholder="Name"
            value={name}
            dir="auto"
            ref={nameField}
            onInput={(event) => setName(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Escape") return;
              event.stopPropagation();
              setName(null);
            }}
          />
          <button type="submit" class="button" disabled={!name.trim()}>
            Save
          </button>
        </form>
      )}
    </fieldset>
  );
}

function Tools() {
  const app = useApp();
  const { tools = "" } = app.current.settings;
  const draft = useDraft(tools);
  let problem = "";
  try {
    readTools(tools);
  } catch (error) {
    problem = (error as Error).message;
  }
  return (
    <label class="field">
      <span>Tools (JSON)</span>
      <textarea
        rows={3}
        class="code"
        spellcheck={false}
        placeholder={'[{"name": "get_weather", "parameters": {…}}]'}
        {...draft}
        aria-invalid={problem !== ""}
        onChange={(event) => app.set({ tools: event.currentTarget.value })}
      />
      {problem && <span class="problem">{problem}</span>}
    </label>
  );
}

/** The MCP servers whose tools this chat uses. */
function Servers() {
  const app = useApp();
  const used = app.current.settings.servers ?? [];
  // One may have started since the page was loaded.
  useEffect(() => void app.loadServers(), []);
  if (app.servers.length === 0) return null;
  const use = (name: string, isUsed: boolean) => {
    const servers = isUsed ? [...used, name] : used.filter((own) => own !== name);
    app.set({ servers: servers.length ? servers : undefined });
  };
  return (
    <fieldset>
      <legend>Tools of MCP servers</legend>
      {app.servers.map(({ name, tools, error }) => (
        <label class="tick" key={name} title={tools.map((tool) => tool.function.name).join(", ")}>
          <input
            type="checkbox"
            checked={used.includes(name)}
            disabled={tools.length === 0 && !used.includes(name)}
            onChange={(event) => use(name, event.currentTarget.checked)}
          />
          {name}
          <span class="hint">{error ?? plural(tools.length, "tool")}</span>
        </label>
      ))}
      <p class="hint">You are asked before each call.</p>
    </fieldset>
  );
}

function Facts() {
  const model = useApp().model;
  if (!model) return null;
  const facts = [
    model.architecture,
    model.parameters && `${compact(model.parameters)} parameters`,
    model.bytes && bytes(model.bytes),
    model.context && `${compact(model.context)} tokens of context`,
    !model.loaded && "not loaded; the first message loads it",
  ];
  return <p class="hint">{facts.filter(Boolean).join(" · ")}</p>;
}

export function SettingsPanel({ close }: { close: () => void }) {
  const app = useApp();
  const { settings } = app.current;
  const stop = useDraft((settings.stop ?? []).join("\n"));
  const names = Object.keys(settings).filter((name) => name !== "model" && name !== "system") as (keyof Settings)[];
  // At once: later it would take the focus from the field that the user is in by then.
  useLayoutEffect(() => document.getElementById("settings")?.focus(), []);
  return (
    <aside class="settings" id="settings" aria-label="Settings of this chat" tabIndex={-1}>
      <header>
        <h2>This chat</h2>
        <IconButton icon="close" label="Close the settings" onClick={close} />
      </header>
      <Facts />
      <SystemPrompt />
      <fieldset>
        <legend>Sampling</legend>
        <div class="grid">
          {SAMPLING.map((field) => (
            <NumberInput key={field.name} field={field} />
          ))}
        </div>
      </fieldset>
      <fieldset>
        <legend>Answers</legend>
        <div class="grid">
          {LIMITS.map((field) => (
            <NumberInput key={field.name} field={field} />
          ))}
        </div>
        <label class="field">
          <span>Reasoning</span>
          <select
            value={settings.reasoning_effort ?? ""}
            onChange={(event) => app.set({ reasoning_effort: event.currentTarget.value })}
          >
            <option value="">The model's default</option>
            <option value="none">Off, where the model allows it</option>
            <option value="low">Low</option>
            <option value="medium">Medium</option>
            <option value="high">High</option>
          </select>
        </label>
        <label class="field">
          <span>Stop texts, one in each line</span>
          <textarea
            rows={2}
            class="code"
            dir="auto"
            {...stop}
            onChange={(event) => {
              const texts = event.currentTarget.value.split("\n").filter(Boolean);
              app.set({ stop: texts.length ? texts : undefined });
            }}
          />
        </label>
        <label class="tick">
          <input
            type="checkbox"
            checked={settings.logprobs ?? false}
            onChange={(event) => app.set({ logprobs: event.currentTarget.checked || undefined })}
          />
          Keep the probabilities of tokens
        </label>
        <Tools />
      </fieldset>
      <Servers />
      <div class="row foot">
        <button
          type="button"
          class="link"
          disabled={names.length === 0}
          onClick={() => app.set(Object.fromEntries(names.map((name) => [name, undefined])))}
        >
          <Icon name="redo" />
          The model's defaults
        </button>
        <button type="button" class="link" onClick={() => app.keepAsDefaults()}>
          Use for new chats
        </button>
      </div>
    </aside>
  );
}
