// Where messages are written and files attached.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Attachment } from "../chat/types.ts";
import { readFile } from "../text/files.ts";
import { Icon, IconButton } from "./icons.tsx";
import { plural, useApp } from "./use.ts";

/** Makes a field as high as its text; the style sheet bounds it. */
export function grow(field: HTMLTextAreaElement): void {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

/** What a reader may want to know of how a file was read. */
export function FileHint({ file: { pages, encoding } }: { file: Attachment }) {
  if (pages !== undefined) return <span class="hint">{plural(pages, "page")}</span>;
  return encoding === undefined ? null : <span class="hint">read as {encoding}</span>;
}

// What was begun in a chat is there when it is shown again.
const drafts = new Map<string, { text: string; files: Attachment[] }>();

export function Composer() {
  const app = useApp();
  const field = useRef<HTMLTextAreaElement>(null);
  const upload = useRef<HTMLInputElement>(null);
  const { id } = app.current;
  const [text, setText] = useState("");
  const [files, setFiles] = useState<Attachment[]>([]);
  const [problem, setProblem] = useState("");
  const [isDropped, setDropped] = useState(false);
  const isRunning = app.isRunning();

  // With the chat itself, so that what is typed next is in the new one.
  useLayoutEffect(() => {
    const draft = drafts.get(id) ?? { text: "", files: [] };
    setText(draft.text);
    setFiles(draft.files);
    setProblem("");
    // Where a keyboard would cover the page it is left to the reader.
    if (matchMedia("(pointer: fine)").matches) field.current?.focus();
  }, [id]);
  useLayoutEffect(() => {
    drafts.set(id, { text, files });
    if (field.current) grow(field.current);
  }, [text, files]);

  const send = () => {
    if (isRunning || (text.trim() === "" && files.length === 0)) return;
    drafts.delete(id);
    setText("");
    setFiles([]);
    setProblem("");
    app.send(text.trim(), files);
    if (matchMedia("(pointer: fine)").matches) field.current?.focus();
  };
  const attach = async (list: Iterable<File>) => {
    setProblem("");
    for (const file of list) {
      try {
        const read = await readFile(file);
        setFiles((before) => [...before, read]);
      } catch (error) {
        setProblem((error as Error).message);
      }
    }
    field.current?.focus();
  };

  return (
    <form
      class={`composer ${isDropped ? "is-dropped" : ""}`}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onDragOver={(event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        setDropped(true);
      }}
      onDragLeave={() => setDropped(false)}
      onDrop={(event) => {
        setDropped(false);
        if (!event.dataTransfer?.files.length) return;
        event.preventDefault();
        void attach(event.dataTransfer.files);
      }}
    >
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {files.length > 0 && (
        <ul class="attached" aria-label="Attached files">
          {files.map((file, idx) => (
            <li key={idx}>
              <Icon name="file" />
              <span>{file.name}</span>
              <FileHint file={file} />
              <IconButton icon="close" label={`Remove ${file.name}`} onClick={() => setFiles(files.filter((own) => own !== file))} />
            </li>
          ))}
        </ul>
      )}
      <textarea
        ref={field}
        id="prompt"
        rows={1}
        dir="auto"
        placeholder="Write a message"
        aria-label="Message"
        aria-describedby="composer-hint"
        enterkeyhint="send"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onPaste={(event) => {
          const pasted = event.clipboardData?.files;
          if (!pasted?.length) return;
          event.preventDefault();
          void attach(pasted);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          } else if (event.key === "ArrowUp" && text === "") {
            const all = document.querySelectorAll<HTMLElement>(".message.user .edit");
            all[all.length - 1]?.click();
            if (all.length > 0) event.preventDefault();
          }
        }}
      />
      <div class="row">
        <IconButton icon="clip" label="Attach text files or PDFs" onClick={() => upload.current?.click()} />
        <input
          ref={upload}
          id="attach"
          type="file"
          multiple
          hidden
          onChange={(event) => {
            const input = event.currentTarget;
            void attach([...(input.files ?? [])]).then(() => (input.value = ""));
          }}
        />
        <span class="hint only-wide" id="composer-hint">
          {isRunning ? "Esc stops the answer" : "Enter sends, Shift + Enter begins a new line"}
        </span>
        {isRunning ? (
          <button type="button" id="stop" class="round" aria-label="Stop" title="Stop (Esc)" onClick={() => app.stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button
            type="submit"
            id="send"
            class="round is-main"
            aria-label="Send"
            title="Send"
            disabled={text.trim() === "" && files.length === 0}
          >
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}
