// Tabs of this page tell one another what they store and which answers arrive in them.

/** What a tab tells the others. */
export type Note =
  /** The conversation has changed in the storage. */
  | { kind: "stored"; id: string }
  | { kind: "deleted"; id: string }
  /** An answer of a conversation arrives in the tab that tells of it, or no longer does. */
  | { kind: "started" | "ended"; id: string; turn: string }
  /** Asks which answers arrive. */
  | { kind: "who" }
  /** Asks the tab in which an answer arrives to stop it. */
  | { kind: "stop"; turn: string };

export class Tabs {
  readonly #channel: BroadcastChannel | null;

  constructor(receive: (note: Note) => void) {
    this.#channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("realizar");
    if (this.#channel) this.#channel.onmessage = ({ data }) => receive(data as Note);
  }

  tell(note: Note): void {
    this.#channel?.postMessage(note);
  }
}
