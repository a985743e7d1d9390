// JSON as it is shown.

/** Longer texts are shown as they are. */
const LONGEST = 100_000;
/** How much longer a text may become by being indented. */
const GROWTH = 8;

/** A JSON text on lines of its own, indented; any other text as it is. */
export function pretty(text: string): string {
  if (text.length > LONGEST) return text;
  try {
    const indented = JSON.stringify(JSON.parse(text), null, 2);
    return indented.length <= text.length * GROWTH + 100 ? indented : text;
  } catch {
    return text;
  }
}
