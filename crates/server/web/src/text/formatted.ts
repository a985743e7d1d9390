// What texts are formatted to.

/** HTML, which is safe to show once it is sanitized, or a text as it is. */
export type Block = { html: string } | { plain: string };

export interface Formatted {
  /** One part per block, so that a growing text changes only its last ones. */
  blocks: Block[];
  /** Whether a limit has left a part as plain text. */
  isCut: boolean;
  /** Formulas wait for their renderer. */
  needsMath: boolean;
}

/** A text of which nothing is formatted. */
export function unformatted(text: string): Formatted {
  return { blocks: [{ plain: text }], isCut: true, needsMath: false };
}
