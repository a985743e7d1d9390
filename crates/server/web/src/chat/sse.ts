// Server-sent events, as far as completions use them: lines of data, one JSON value each.

/** The values of a stream. Pieces may end anywhere, also within a line. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<unknown> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? `${decoder.decode()}\n` : decoder.decode(value, { stream: true });
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
      if (done) throw new TypeError("the stream ended before its last event");
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
