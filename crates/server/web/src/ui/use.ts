// What components share: the app, and a way to be drawn again when it changes.

import { type ComponentChildren, createContext } from "preact";
import { useContext, useEffect, useReducer } from "preact/hooks";
import type { App } from "../app.ts";

export const AppContext = createContext<App>(null as unknown as App);

/** The app; the component is drawn again whenever it changes. */
export function useApp(): App {
  const app = useContext(AppContext);
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => app.subscribe(() => redraw(undefined as never)), [app]);
  return app;
}

export type Children = { children?: ComponentChildren };

/** Copies a text; the answer is whether the browser let it. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without TLS browsers have no clipboard but for this.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr-only";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

const NUMBER = new Intl.NumberFormat("en");

export function count(n: number): string {
  return NUMBER.format(n);
}

/** A number with three digits at most and its unit's prefix: 1.25k, 34M. */
export function compact(n: number): string {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(n);
}

/** A number of bytes in the unit that suits it. */
export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(n, 1)) / 10));
  return `${Number((n / 1024 ** at).toPrecision(3))} ${units[at]}`;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}
