// Keeps an error within the part of the page that it happened in.

import { Component, type ComponentChildren } from "preact";

interface Props {
  /** What is shown in place of the part; it can be tried again. */
  otherwise: (again: () => void, error: Error) => ComponentChildren;
  /** Of what the part shows; with another thing it is tried again. */
  of?: unknown;
  children?: ComponentChildren;
}

export class Guard extends Component<Props, { error: Error | null }> {
  override state = { error: null };

  static override getDerivedStateFromError(error: unknown) {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override componentDidUpdate(before: Props) {
    if (this.state.error && before.of !== this.props.of) this.setState({ error: null });
  }

  override render({ otherwise, children }: Props, { error }: { error: Error | null }) {
    return error ? otherwise(() => this.setState({ error: null }), error) : children;
  }
}

/** A part of the page other than a message. */
export function Part({ name, of, children }: { name: string; of?: unknown; children?: ComponentChildren }) {
  const otherwise = (again: () => void, error: Error) => (
    <div class="failed" role="alert">
      <p>
        <strong>{name} cannot be shown.</strong> {error.message}
      </p>
      <button type="button" class="button" onClick={again}>
        Try again
      </button>
    </div>
  );
  return (
    <Guard otherwise={otherwise} of={of}>
      {children}
    </Guard>
  );
}
