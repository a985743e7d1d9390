// Formatted texts on the screen: Markdown, and code with colours. A text that grows changes its last
// blocks only, so what a reader has selected above them stays selected.

import { Component, createRef } from "preact";
import { useState } from "preact/hooks";
import type { Block, Formatted } from "../text/formatted.ts";
import { Formatter, type Job, type Reader, type Reply } from "../text/formatter.ts";
import { applyStyles, sanitize } from "../text/sanitize.ts";
import { count } from "./use.ts";

/** The formatter of the page, with a worker of the server. */
const formatter = new Formatter((receive, failed) => {
  const worker = new Worker("page/markdown.js", { type: "module" });
  worker.onmessage = ({ data }: MessageEvent<Reply>) => receive(data);
  worker.onerror = (event) => {
    event.preventDefault();
    failed();
  };
  return { post: (job: Job) => worker.postMessage(job), end: () => worker.terminate() };
});

/** Longer texts are shown up to here at first: browsers take long to lay them out. */
const SHOWN = 50_000;

/** A text as it is. */
export function Plain({ text }: { text: string }) {
  const [isWhole, setWhole] = useState(false);
  if (isWhole || text.length <= SHOWN) return <>{text}</>;
  return (
    <>
      {text.slice(0, SHOWN)}…{" "}
      <button type="button" class="link" onClick={() => setWhole(true)}>
        Show all {count(text.length)} characters
      </button>
    </>
  );
}

class Html extends Component<{ html: string }> {
  #root = createRef<HTMLDivElement>();

  override shouldComponentUpdate(next: { html: string }) {
    return next.html !== this.props.html;
  }

  override componentDidMount() {
    this.componentDidUpdate();
  }

  override componentDidUpdate() {
    if (this.#root.current) applyStyles(this.#root.current);
  }

  override render({ html }: { html: string }) {
    return <div class="block" dir="auto" ref={this.#root} dangerouslySetInnerHTML={{ __html: sanitize(html) }} />;
  }
}

function Part({ block }: { block: Block }) {
  if ("html" in block) return <Html html={block.html} />;
  return (
    <div class="block plain" dir="auto">
      <Plain text={block.plain} />
    </div>
  );
}

interface Props {
  text: string;
}

interface State {
  formatted: Formatted | null;
  /** What it was formatted from. */
  of: string;
}

/** Shows what the worker makes of a text; until it is there, the text itself. */
abstract class Worked extends Component<Props, State> implements Reader {
  abstract readonly language: string | null;

  get text(): string {
    return this.props.text;
  }

  show(formatted: Formatted, of: string): void {
    this.setState({ formatted, of });
  }

  override componentWillMount() {
    const formatted = formatter.known(this.text, this.language) ?? null;
    this.setState({ formatted, of: this.text });
  }

  override componentDidMount() {
    if (!this.state.formatted) formatter.ask(this);
  }

  override componentDidUpdate(before: Props) {
    if (before.text !== this.text) formatter.ask(this);
  }

  override componentWillUnmount() {
    formatter.drop(this);
  }

  protected again = () => {
    this.setState({ formatted: null });
    formatter.ask(this, true);
  };

  protected get isBusy(): boolean {
    return this.state.formatted === null || this.state.of !== this.text;
  }
}

/** Markdown. */
export class Prose extends Worked {
  readonly language = null;

  override render({ text }: Props, { formatted }: State) {
    return (
      <>
        <div class="prose" aria-busy={this.isBusy}>
          {formatted?.blocks.map((block, idx) => <Part key={idx} block={block} />) ?? (
            <div class="block plain is-new" dir="auto">
              <Plain text={text} />
            </div>
          )}
        </div>
        {formatted?.isCut && !this.isBusy && (
          <p class="cut" role="note">
            <span>A part of this takes too long to format or is nested too deeply, and is shown as plain text.</span>
            <button type="button" class="link" onClick={this.again}>
              Try again
            </button>
          </p>
        )}
      </>
    );
  }
}

/** JSON with its colours. */
export class Json extends Worked {
  readonly language = "json";

  override render({ text }: Props, { formatted, of }: State) {
    const block = of === text ? formatted?.blocks[0] : undefined;
    return (
      <pre tabIndex={0} dir="ltr">
        {block && "html" in block ? (
          <code dangerouslySetInnerHTML={{ __html: sanitize(block.html) }} />
        ) : (
          <code>
            <Plain text={text} />
          </code>
        )}
      </pre>
    );
  }
}
