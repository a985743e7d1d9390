// Markdown on the screen. A text that grows changes its last blocks only, so what a reader has
// selected above them stays selected.

import { Component, createRef } from "preact";
import { useContext } from "preact/hooks";
import { applyStyles, forget, markdown } from "../text/markdown.ts";
import { needMath } from "../text/math.ts";
import { AppContext } from "./use.ts";

class Block extends Component<{ html: string }> {
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

  override render() {
    return <div class="block" ref={this.#root} dangerouslySetInnerHTML={{ __html: this.props.html }} />;
  }
}

export function Prose({ text }: { text: string }) {
  const app = useContext(AppContext);
  const { blocks, needsMath } = markdown(text);
  if (needsMath) {
    needMath(() => {
      forget();
      for (const turn of app.current.turns) app.changed(turn);
    });
  }
  return (
    <div class="prose">
      {blocks.map((html, idx) => (
        <Block key={idx} html={html} />
      ))}
    </div>
  );
}
