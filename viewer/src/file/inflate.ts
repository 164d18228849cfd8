// What the browser itself unpacks, part by part.

export function inflated(blob: Blob, format: CompressionFormat): AsyncIterable<Uint8Array> {
  return partsOf(blob.stream().pipeThrough(new DecompressionStream(format)));
}

export async function* partsOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
