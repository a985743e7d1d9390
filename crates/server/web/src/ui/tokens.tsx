// The tokens of an answer, shaded by how likely each was. Under the pointer, or under a cursor that
// the arrow keys move, a token shows what else could have stood there.

import { useRef, useState } from "preact/hooks";
import type { Token } from "../chat/types.ts";

/** A token as a text that shows its blanks. */
export function visible(text: string): string {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";
}

export function percent(logprob: number): string {
  const share = Math.exp(logprob) * 100;
  return share >= 99.95 ? "100 %" : share < 0.01 ? "< 0.01 %" : `${share.toFixed(share < 1 ? 2 : 1)} %`;
}

/** The shade of a token: 0 for a sure one, 4 for one that was hardly likely. */
export function shade(logprob: number): number {
  const steps = [0.9, 0.6, 0.3, 0.1];
  const at = steps.findIndex((least) => Math.exp(logprob) >= least);
  return at === -1 ? steps.length : at;
}

export function Tokens({ tokens }: { tokens: Token[] }) {
  const root = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<number | null>(null);
  const chosen = at === null ? undefined : tokens[at];
  const node = at === null ? null : root.current?.querySelector<HTMLElement>(`[data-at="${at}"]`);
  const place = (tip: HTMLElement | null) => {
    if (!tip || !node || !root.current) return;
    const room = root.current.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(node.offsetLeft, room))}px`;
    tip.style.top = `${node.offsetTop + node.offsetHeight + 6}px`;
  };
  return (
    <div
      class="tokens"
      ref={root}
      tabIndex={0}
      role="group"
      aria-label="Tokens with their probabilities; the arrow keys go from one to the next"
      onMouseOver={(event) => {
        const own = (event.target as HTMLElement).dataset.at;
        if (own !== undefined) setAt(Number(own));
      }}
      onMouseLeave={() => setAt(null)}
      onBlur={() => setAt(null)}
      onFocus={() => setAt((before) => before ?? 0)}
      onKeyDown={(event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        setAt((before) => Math.max(0, Math.min(tokens.length - 1, (before ?? -1) + step)));
      }}
    >
      {tokens.map(({ text, logprob }, idx) => (
        <span key={idx} data-at={idx} class={`token shade-${shade(logprob)} ${idx === at ? "is-chosen" : ""}`}>
          {text}
        </span>
      ))}
      {chosen && (
        <div class="tip" role="status" ref={place}>
          <table>
            <tbody>
              {[chosen, ...chosen.top.filter((other) => other.text !== chosen.text)].map((other, idx) => (
                <tr key={idx} class={idx === 0 ? "is-chosen" : ""}>
                  <td>
                    <code>{visible(other.text)}</code>
                  </td>
                  <td>
                    <meter min={0} max={1} value={Math.exp(other.logprob)} aria-hidden="true" />
                  </td>
                  <td class="number">{percent(other.logprob)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}
