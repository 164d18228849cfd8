// Pauses of long work: in them the page draws how far it has come.

/** So long the page may be busy with no pause. */
const LONGEST_MS = 50;

/** Says how far the work has come. */
export type Progress = (words: string) => void;

export class Pauses {
  private last = performance.now();

  constructor(private readonly progress: Progress) {}

  /** A pause where one is due; null where the work may go on. */
  due(words: () => string): Promise<void> | null {
    return performance.now() - this.last < LONGEST_MS ? null : this.take(words());
  }

  async take(words: string): Promise<void> {
    this.progress(words);
    await drawn();
    this.last = performance.now();
  }
}

/** Once the page could draw. Timers would wait for a second each in a tab that is not shown, messages do not. */
function drawn(): Promise<void> {
  return new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      done();
    };
    port2.postMessage(null);
  });
}
