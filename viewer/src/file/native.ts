// The native reader as WebAssembly (native/page_reader.cpp): its objects, its columns, its structures.

/** A column as the reader holds it, copied out of its memory. */
export type Column =
  | Uint8Array<ArrayBuffer>
  | Int32Array<ArrayBuffer>
  | Uint32Array<ArrayBuffer>
  | BigInt64Array<ArrayBuffer>
  | BigUint64Array<ArrayBuffer>;

/** Where the reader has its bytes from. */
export interface Source {
  /** At most so many more bytes of the file; none at its end. */
  take(capacity: number): Uint8Array;
  /** What the reader waits for before it goes on; null for nothing. */
  pause(): Promise<void> | null;
}

/** What newer browsers have: WebAssembly that waits for JavaScript. Elsewhere a file is read without a pause. */
interface Waiting {
  Suspending?: new (imported: Import) => WebAssembly.ImportValue;
  promising?: (exported: () => number) => () => Promise<number>;
}
type Import = (buffer: number, capacity: number) => number | Promise<number>;

const { Suspending, promising } = WebAssembly as unknown as Waiting;

interface Exports {
  memory: WebAssembly.Memory;
  _initialize(): void;
  malloc(bytes: number): number;
  vl_layout(): number;
  vl_page_read: () => number;
  vl_snapshot_status(snapshot: number, out: number): void;
  vl_snapshot_column: (snapshot: number, name: number, out: number) => number;
  vl_snapshot_json(snapshot: number, value: bigint, buffer: number, capacity: bigint): bigint;
  vl_lifetimes_make(device: number): number;
  vl_lifetimes_column: (lifetimes: number, name: number, out: number) => number;
}

/** A field of a structure, as the reader describes it (native/layout.cpp). */
interface Field {
  type: string;
  at: number;
}

interface Structure {
  bytes: number;
  fields: Map<string, Field>;
}

/** By the numbers of VL_U8 and so on (native/vramlens.h). */
const ELEMENTS = [Uint8Array, Int32Array, Uint32Array, BigInt64Array, BigUint64Array] as const;
/** WASI's "not supported". */
const UNSUPPORTED = 52;
const NO_MEMORY = "this browser has not enough memory for it";
const JSON_BYTES = 1 << 20;

/** One file's reader, with memory of its own: whatever a file does to it ends with it. */
export class Native {
  private readonly structures = new Map<string, Structure>();
  private readonly enums = new Map<string, string[]>();

  private constructor(private readonly exports: Exports) {
    exports._initialize();
    for (const line of this.text(exports.vl_layout()).trim().split("\n")) this.describe(line);
  }

  static async start(wasm: BufferSource, source: Source): Promise<Native> {
    let memory: WebAssembly.Memory | null = null;
    const bytes = (at: number, count: number) => new Uint8Array(memory!.buffer, at, count);
    const fill: Import = (buffer, capacity) => {
      const chunk = source.take(capacity);
      bytes(buffer, chunk.length).set(chunk);
      const pause = Suspending ? source.pause() : null;
      return pause ? pause.then(() => chunk.length) : chunk.length;
    };
    const imports = {
      page: { fill: Suspending ? new Suspending(fill) : fill },
      env: {
        emscripten_notify_memory_growth: () => undefined,
        getentropy: (buffer: number, count: number): number => {
          bytes(buffer, count).set(crypto.getRandomValues(new Uint8Array(count)));
          return 0;
        },
      },
      wasi_snapshot_preview1: {
        clock_time_get: () => UNSUPPORTED,
        proc_exit: () => {
          throw new Error(NO_MEMORY);
        },
      },
    };
    const { instance } = await WebAssembly.instantiate(wasm, imports);
    const exports = instance.exports as unknown as Exports;
    memory = exports.memory;
    return new Native(exports);
  }

  /** Reads the whole source; the status of what comes of it is to be asked before anything else. */
  async read(): Promise<number> {
    const read = promising?.(this.exports.vl_page_read) ?? this.exports.vl_page_read;
    return this.given(await read());
  }

  status(snapshot: number): { code: string; offset: number; message: string } {
    const { at, field } = this.room("vl_status");
    this.exports.vl_snapshot_status(snapshot, at);
    const view = this.view();
    return {
      code: this.enums.get("read_status")![view.getInt32(field("code"), true)] ?? "",
      offset: Number(view.getBigInt64(field("offset"), true)),
      message: this.text(field("message")),
    };
  }

  /** Where a row of a column lies in the reader's memory: it stays there as long as the snapshot. */
  snapshotPlace(snapshot: number, name: string, row: number): number {
    const { data, Element } = this.found(this.exports.vl_snapshot_column, snapshot, name);
    return data + row * Element.BYTES_PER_ELEMENT;
  }

  snapshotColumn(snapshot: number, name: string): Column {
    return this.column(this.exports.vl_snapshot_column, snapshot, name);
  }

  lifetimesColumn(lifetimes: number, name: string): Column {
    return this.column(this.exports.vl_lifetimes_column, lifetimes, name);
  }

  /** A pickled value; null where it is larger than any setting. */
  json(snapshot: number, value: bigint): unknown {
    const buffer = this.given(this.exports.malloc(JSON_BYTES));
    const length = this.exports.vl_snapshot_json(snapshot, value, buffer, BigInt(JSON_BYTES / 2));
    if (length < 0n) return null;
    const text = new Uint8Array(this.exports.memory.buffer, buffer, Number(length)).slice();
    return JSON.parse(new TextDecoder().decode(text)) as unknown;
  }

  /** What became of a device's allocations: the fields of vl_device, columns (or where they lie) and numbers. */
  lifetimes(columns: Record<string, Column | number>, numbers: Record<string, bigint>): number {
    const device = this.room("vl_device");
    const places = Object.entries(columns).map(
      ([name, column]) => [name, typeof column === "number" ? column : this.put(column)] as const,
    );
    const view = this.view();
    for (const [name, at] of places) view.setUint32(device.field(name), at, true);
    for (const [name, number] of Object.entries(numbers)) {
      const { type } = this.structures.get("vl_device")!.fields.get(name)!;
      if (type === "int32") view.setInt32(device.field(name), Number(number), true);
      else view.setBigUint64(device.field(name), BigInt.asUintN(64, number), true);
    }
    return this.given(this.exports.vl_lifetimes_make(device.at));
  }

  /** The members of an enum of the interface, in order. */
  names(name: string): string[] {
    return this.enums.get(name) ?? [];
  }

  private column(find: Exports["vl_snapshot_column"], handle: number, name: string): Column {
    const { data, count, Element } = this.found(find, handle, name);
    if (!count) return new Element(0);
    return new Element(this.exports.memory.buffer, data, count).slice();
  }

  private found(find: Exports["vl_snapshot_column"], handle: number, name: string) {
    const { at, field } = this.room("vl_column");
    const key = this.put(new TextEncoder().encode(`${name}\0`));
    if (!find(handle, key, at)) throw new Error(`the reader has no column ${name}`);
    const view = this.view();
    return {
      data: view.getUint32(field("data"), true),
      count: Number(view.getBigInt64(field("count"), true)),
      Element: ELEMENTS[view.getInt32(field("type"), true)],
    };
  }

  /** Room for a structure, all zero; each of its fields has a place there. */
  private room(name: string): { at: number; field: (name: string) => number } {
    const { bytes, fields } = this.structures.get(name)!;
    const at = this.put(new Uint8Array(bytes));
    return { at, field: (field) => at + fields.get(field)!.at };
  }

  private put(column: Column): number {
    const at = this.given(this.exports.malloc(Math.max(8, column.byteLength)));
    const bytes = new Uint8Array(column.buffer, column.byteOffset, column.byteLength);
    new Uint8Array(this.exports.memory.buffer, at, bytes.length).set(bytes);
    return at;
  }

  private given(at: number): number {
    if (!at) throw new Error(NO_MEMORY);
    return at;
  }

  /** The memory as it is now: it moves when it grows. */
  private view(): DataView {
    return new DataView(this.exports.memory.buffer);
  }

  private text(at: number): string {
    const bytes = new Uint8Array(this.exports.memory.buffer);
    return new TextDecoder().decode(bytes.slice(at, bytes.indexOf(0, at)));
  }

  private describe(line: string): void {
    const [kind, name, number] = line.split(" ");
    if (kind === "struct")
      this.structures.set(name, { bytes: Number(number), fields: new Map<string, Field>() });
    else if (kind === "enum") this.enums.set(name, []);
    else if (kind === "number") [...this.enums.values()].pop()![Number(number)] = name;
    else [...this.structures.values()].pop()!.fields.set(name, { type: kind, at: Number(number) });
  }
}
