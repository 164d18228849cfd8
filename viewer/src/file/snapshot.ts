// A snapshot's tables, as the native reader fills them (src/vramlens/read/snapshot.py is its other caller).

import { FileError, visible } from "./file_error";
import { type Column, Native, type Source } from "./native";
import { type Wide, wide } from "./wide";

export class Snapshot {
  private readonly starts: Wide;
  private readonly characters: Uint8Array;
  private readonly decoded = new Map<number, string>();
  private added = 0;
  private readonly decoder = new TextDecoder();
  /** The values of the top level that no table has, by name. */
  readonly top: Map<string, bigint>;
  /** The byte at which the file ends early; null for a whole one. */
  readonly truncatedAt: number | null;

  private constructor(
    readonly native: Native,
    private readonly handle: number,
  ) {
    const { code, offset, message } = native.status(handle);
    if (code !== "whole" && code !== "truncated")
      throw new FileError(
        `${code === "unsafe" || code === "limit" ? "refused" : "not readable"} at byte ${offset}: ${visible(message)}`,
      );
    this.truncatedAt = code === "truncated" ? offset : null;
    this.characters = this.raw("strings.bytes") as Uint8Array;
    this.starts = this.numbers("strings.starts");
    const values = this.raw("top.values") as BigUint64Array;
    this.top = new Map(
      Array.from(this.numbers("top.keys"), (key, i) => [this.text(key), values[i]]),
    );
  }

  static async read(wasm: BufferSource, source: Source): Promise<Snapshot> {
    const native = await Native.start(wasm, source);
    return new Snapshot(native, await native.read());
  }

  /** A column, "table.name", as it is. */
  raw(name: string): Column {
    return this.native.snapshotColumn(this.handle, name);
  }

  /** Where a row of a column lies in the reader's memory. */
  place(name: string, row: number): number {
    return this.native.snapshotPlace(this.handle, name, row);
  }

  numbers(name: string): Wide {
    return wide(this.raw(name));
  }

  /** A text by its id; the empty one where there is none. */
  text(id: number): string {
    let text = this.decoded.get(id);
    if (text === undefined && id + 1 >= this.starts.length) return "";
    if (text === undefined) {
      text = this.decoder.decode(this.characters.subarray(this.starts[id], this.starts[id + 1]));
      this.decoded.set(id, text);
    }
    return text;
  }

  /** The id of a text that no column names. */
  addText(text: string): number {
    const id = this.starts.length + this.added++;
    this.decoded.set(id, text);
    return id;
  }

  /** The allocator's settings as the file has them; none where it has none. */
  settings(): Record<string, unknown> {
    const cell = this.top.get("allocator_settings");
    const value = cell === undefined ? null : this.native.json(this.handle, cell);
    return isRecord(value) ? value : {};
  }
}

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
