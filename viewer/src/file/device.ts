// One device's part of a snapshot: its events, and what became of each allocation and segment. As
// src/vramlens/read/tables/device_traces.py and lifetime_columns.py make it.

import { upperBound } from "../data/search";
import { FileError } from "./file_error";
import type { Column } from "./native";
import type { Snapshot } from "./snapshot";
import { madeOf, taken, type Wide, wide } from "./wide";

/** An id that stands for none, in columns of stacks, pools, segments and texts. */
export const NONE = 0xffffffff;
export const OUT_OF_MEMORY = 7;
const EVENT_FIELDS = ["action", "address", "size", "stream", "stack"] as const;
const COUNTERS = ["requested", "allocated", "active", "reserved"] as const;
const MOST_DEVICES = 128;
const LARGEST_BLOCK = 2 ** 43;
const LARGEST_SUM = 2 ** 62;
const UNLIMITED = 2n ** 64n - 1n;
const PENDING_STATES = ["active_pending_free", "active_awaiting_free"];

export interface Failure {
  event: number;
  bytes: number;
  free: number | null;
  stack: number;
}

type Columns<Name extends string> = Record<Name, Wide>;

export interface Device {
  device: number;
  action: Wide;
  time: Wide;
  stack: Wide;
  /** By event the bytes that it is about; made when asked for. */
  size: () => Wide;
  rows: Columns<
    "born" | "free_requested" | "died" | "address" | "requested" | "taken" | "stream" | "stack" | "segment" | "pool"
  >;
  segments: Columns<"born" | "died" | "address" | "size" | "stream" | "mapped" | "pool">;
  counters: Record<(typeof COUNTERS)[number], [base: number, peak: number, event: number]>;
  failures: Failure[];
  isWhole: boolean;
  orphans: number;
} // prettier-ignore

/** The events of a list: where they lie in the snapshot's columns. */
type Rows = { first: number; count: number } | { at: Wide };

const countOf = (rows: Rows): number => ("at" in rows ? rows.at.length : rows.count);
const rowAt = (rows: Rows, event: number): number =>
  "at" in rows ? rows.at[event] : rows.first + event;

export class DeviceTables {
  private readonly segmentDevice: Wide;
  private readonly counts: Wide;
  private readonly isLive: Uint8Array;
  private readonly isPending: Uint8Array;

  constructor(
    private readonly snapshot: Snapshot,
    private readonly settings: Record<string, unknown>,
  ) {
    this.segmentDevice = taken(
      snapshot.raw("segments.device"),
      snapshot.numbers("final.rows"),
    ) as Wide;
    this.counts = snapshot.numbers("traces.count");
    const names = Array.from(snapshot.numbers("blocks.state"), (state) => snapshot.text(state));
    this.isPending = Uint8Array.from(names, (name) => Number(PENDING_STATES.includes(name)));
    this.isLive = Uint8Array.from(names, (name, i) =>
      Number(name === "active_allocated" || this.isPending[i] > 0),
    );
  }

  /** Those that have events or segments, by number. */
  devices(): Device[] {
    const numbers = new Set<number>();
    for (const device of this.segmentDevice) if (device >= 0) numbers.add(device);
    this.counts.forEach((count, device) => count && numbers.add(device));
    const most = Math.max(numbers.size, this.counts.length);
    if (most > MOST_DEVICES) throw new FileError(`refused: it claims ${most} devices`);
    return [...numbers].sort((a, b) => a - b).map((number) => this.device(number));
  }

  private rowsOf(device: number): Rows {
    if (device >= this.counts.length) return { first: 0, count: 0 };
    const first = this.snapshot.numbers("traces.first")[device];
    if (first >= 0) return { first, count: this.counts[device] };
    const starts = this.snapshot.numbers("traces.starts");
    const rows = this.snapshot.numbers("traces.rows");
    return { at: rows.slice(starts[device], starts[device + 1]) };
  }

  private device(number: number): Device {
    const { snapshot } = this;
    const rows = this.rowsOf(number);
    const events = countOf(rows);
    const eventColumn = (name: string) => this.eventColumn(name, rows);
    const isWhole =
      number >= this.counts.length || snapshot.numbers("traces.whole")[number] > 0;
    const hasWholeState = snapshot.numbers("final.whole").includes(1);
    const action = wide(eventColumn("action"));
    const segments = this.finalSegments(number);
    const native = snapshot.native;
    const lifetimes = native.lifetimes(
      {
        ...Object.fromEntries(EVENT_FIELDS.map((name) => [name, this.eventPlace(name, rows)])),
        ...segments.columns,
        ...this.roundup(),
      },
      {
        events: BigInt(events),
        segments: BigInt(segments.columns.segment_address.length),
        blocks: BigInt(segments.columns.block_address.length),
        has_final_state: (isWhole && hasWholeState) || !events ? 1n : 0n,
        max_split_size: this.maxSplitSize(),
      },
    );
    const column = (name: string): Wide => wide(native.lifetimesColumn(lifetimes, name));
    const summary = summaryOf(native.names("lifetimes_summary"), column("summary"));
    const made = lifetimesOf(column);
    refuseImpossible(made.rows.requested, made.rows.taken, made.segments.size);
    const pool = this.poolColumn(rows);
    const segmentPool = segmentPools(made.segments, segments, pool, events);
    return {
      device: number,
      action,
      time: wide(eventColumn("time_us")),
      stack: wide(eventColumn("stack")),
      size: () => wide(eventColumn("size")),
      rows: { ...made.rows, pool: rowPools(made.rows, segmentPool, pool) },
      segments: { ...made.segments, pool: segmentPool },
      counters: Object.fromEntries(
        COUNTERS.map((name) => [
          name,
          [summary.get(`base_${name}`), summary.get(`peak_${name}`), summary.get(`peak_${name}_event`)],
        ]),
      ) as Device["counters"],
      failures: this.failures(rows, action),
      isWhole,
      orphans: summary.get("orphans") ?? 0,
    };
  } // prettier-ignore

  private eventColumn(name: string, rows: Rows): Column {
    const all = this.snapshot.raw(`events.${name}`);
    return "at" in rows ? taken(all, rows.at) : all.subarray(rows.first, rows.first + rows.count);
  }

  /** The same for the reader alone: where they lie in its memory, if they follow one another there. */
  private eventPlace(name: string, rows: Rows): Column | number {
    if ("at" in rows) return this.eventColumn(name, rows);
    return this.snapshot.place(`events.${name}`, rows.first);
  }

  /** By event its pool; null where the recording does not say (before PyTorch 2.12). */
  private poolColumn(rows: Rows): Wide | null {
    const all = this.snapshot.numbers("events.pool");
    // A single element stands for all rows.
    if (all.length === 1 && all[0] === NONE) return null;
    const pool = madeOf(countOf(rows), (event) => all[all.length === 1 ? 0 : rowAt(rows, event)]);
    return pool.some((id) => id !== NONE) ? pool : null;
  }

  /** The segments of the final state, and their live blocks. */
  private finalSegments(device: number): FinalSegments {
    const { snapshot } = this;
    const places: number[] = [];
    this.segmentDevice.forEach((of, place) => of === device && places.push(place));
    const finalRows = snapshot.numbers("final.rows");
    const rows = places.map((place) => finalRows[place]);
    const segment = (name: string) => taken(snapshot.raw(`segments.${name}`), rows);
    const address = segment("address") as BigUint64Array<ArrayBuffer>;
    const stream = segment("stream");
    const blocks = this.blocks(places, address);
    const block = (name: string) => taken(snapshot.raw(`blocks.${name}`), blocks.rows);
    const size = block("size") as BigUint64Array<ArrayBuffer>;
    return {
      pool: wide(segment("pool")),
      columns: {
        segment_address: address,
        segment_size: segment("total_size"),
        segment_stream: stream,
        segment_expandable: segment("is_expandable"),
        block_address: blocks.address,
        block_size: size,
        block_requested: (block("requested_size") as typeof size).map((asked, i) => asked || size[i]),
        block_stream: taken(stream, blocks.segment),
        block_stack: block("stack"),
        block_pending: Uint8Array.from(blocks.rows, (row) => this.isPending[row]),
      },
    };
  } // prettier-ignore

  /** The live blocks of some segments: their rows, which of the segments each is in, and where it lies. */
  private blocks(
    places: number[],
    base: BigUint64Array,
  ): { rows: number[]; segment: number[]; address: BigUint64Array<ArrayBuffer> } {
    const starts = this.snapshot.numbers("final.block_starts");
    const all = this.snapshot.numbers("final.block_rows");
    const sizes = this.snapshot.raw("blocks.size") as BigUint64Array;
    const addresses = this.snapshot.raw("blocks.address") as BigUint64Array;
    const rows: number[] = [];
    const segment: number[] = [];
    const found: bigint[] = [];
    places.forEach((place, number) => {
      // Before PyTorch 2.1 blocks have no address: they follow one another from the segment's start.
      let next = base[number];
      for (let at = starts[place]; at < (starts[place + 1] ?? 0); at++) {
        const row = all[at];
        if (this.isLive[row]) {
          rows.push(row);
          segment.push(number);
          found.push(addresses[row] || next);
        }
        next += sizes[row];
      }
    });
    return { rows, segment, address: BigUint64Array.from(found) };
  }

  private failures(rows: Rows, action: Wide): Failure[] {
    const { snapshot } = this;
    const events: number[] = [];
    action.forEach((kind, event) => kind === OUT_OF_MEMORY && events.push(event));
    if (!events.length) return [];
    const freeOf = snapshot.numbers("events.oom_device_free");
    const free = new Map(
      Array.from(snapshot.numbers("events.oom_row"), (row, i) => [row, freeOf[i]] as const),
    );
    const size = wide(this.eventColumn("size", rows));
    const stack = wide(this.eventColumn("stack", rows));
    return events.map((event) => ({
      event,
      bytes: size[event],
      free: free.get(rowAt(rows, event)) ?? null,
      stack: shifted(stack[event]),
    }));
  }

  private maxSplitSize(): bigint {
    const { max_split_size: size } = this.settings;
    return Number.isSafeInteger(size) && (size as number) > 0 ? BigInt(size as number) : UNLIMITED;
  }

  /** Divisions for sizes from 1 MiB, 2 MiB, ... 32 GiB on; nothing where nothing is set. */
  private roundup(): { roundup_divisions?: Column } {
    const { roundup_power2_divisions: table } = this.settings;
    if (typeof table !== "object" || table === null) return {};
    const divisions = BigUint64Array.from({ length: 16 }, (_, slot) => {
      const value = (table as Record<string, unknown>)[String(2 ** slot)];
      return Number.isSafeInteger(value) && (value as number) > 0 ? BigInt(value as number) : 0n;
    });
    return divisions.some(Boolean) ? { roundup_divisions: divisions } : {};
  }
}

interface FinalSegments {
  pool: Wide;
  columns: Record<
    | "segment_address"
    | "segment_size"
    | "segment_stream"
    | "segment_expandable"
    | "block_address"
    | "block_size"
    | "block_requested"
    | "block_stream"
    | "block_stack"
    | "block_pending",
    Column
  >;
}

/** An id as a page numbers it: 0 is none. */
export const shifted = (id: number): number => (id === NONE ? 0 : id + 1);

const summaryOf = (names: string[], values: Wide): Map<string, number> =>
  new Map(names.map((name, i) => [name, values[i]]));

function lifetimesOf(column: (name: string) => Wide) {
  const of = (table: string, name: string) => column(`${table}.${name}`);
  const row = (name: string) => of("allocations", name);
  const segment = (name: string) => of("segments", name);
  return {
    rows: {
      born: row("born"),
      free_requested: row("free_requested"),
      died: row("died"),
      address: row("address"),
      requested: row("requested"),
      taken: row("taken"),
      stream: row("stream"),
      stack: row("stack"),
      segment: row("segment"),
    },
    segments: {
      born: segment("born"),
      died: segment("died"),
      address: segment("address"),
      size: segment("size"),
      stream: segment("stream"),
      mapped: segment("mapped"),
    },
  };
}

/** No device has terabytes in one piece; sums of such sizes would not be exact. */
function refuseImpossible(...columns: Wide[]): void {
  for (const sizes of columns) {
    let largest = 0;
    let sum = 0;
    for (const size of sizes) {
      largest = Math.max(largest, size);
      sum += size;
    }
    if (largest > LARGEST_BLOCK || sum > LARGEST_SUM)
      throw new FileError(
        `refused: it claims a block of ${largest.toLocaleString("en")} bytes, more than any device has`,
      );
  }
}

/** By segment its pool: as its own event says, else as the final state shows it. */
function segmentPools(
  { born, died, address }: Columns<"born" | "died" | "address">,
  final: FinalSegments,
  eventPool: Wide | null,
  events: number,
): Wide {
  const pools = new Map<number, number>();
  wide(final.columns.segment_address).forEach((start, i) => pools.set(start, final.pool[i]));
  const starts = Float64Array.from(pools.keys()).sort();
  return Uint32Array.from(address, (at, i) => {
    if (eventPool && born[i] >= 0) return eventPool[born[i]];
    if (!starts.length || died[i] !== events) return NONE;
    // Mapped ranges lie inside the expandable segment that the final state shows as one.
    return pools.get(starts[Math.max(0, upperBound(starts, at) - 1)]) ?? NONE;
  });
}

/** By allocation its pool: as its own event says, else that of its segment. */
function rowPools(
  { born, segment }: Columns<"born" | "segment">,
  segmentPool: Wide,
  eventPool: Wide | null,
): Wide {
  return madeOf(born.length, (i) => {
    if (eventPool && born[i] >= 0) return eventPool[born[i]];
    return segment[i] === NONE ? NONE : segmentPool[segment[i]];
  });
}
