// One device of a dropped file as a page's track: what src/vramlens/view/track.py writes, but for what the analyses say.

import type { TrackHeader } from "../data/header";
import { type Device, NONE, shifted } from "./device";
import { verdictOf } from "./facts";
import type { Meta } from "./meta";
import { PreparedColumns } from "./prepared";
import { bandsOf, marksOf } from "./regions";
import type { Rules } from "./rules";
import type { Snapshot } from "./snapshot";
import { NO_FRAME, Stacks } from "./stacks";
import { PATTERN, stepsOf } from "./steps";
import { shortened, Texts } from "./texts";
import { madeOf, type Wide } from "./wide";

/** What is said of the file as a whole. */
export interface FileFacts {
  /** The file's name. */
  name: string;
  meta: Meta;
  settings: string | null;
  missing: string[];
}

export class TrackMaker {
  private readonly stacks: Stacks;
  private readonly pools: [number, number][];

  constructor(
    private readonly snapshot: Snapshot,
    private readonly rules: Rules,
    private readonly file: FileFacts,
  ) {
    this.stacks = new Stacks(snapshot, rules);
    const ids = snapshot.numbers("pools.ids");
    this.pools = Array.from({ length: ids.length / 2 }, (_, i) => [ids[2 * i], ids[2 * i + 1]]);
  }

  header(device: Device, columns: PreparedColumns): TrackHeader {
    const texts = new Texts();
    const { snapshot, file } = this;
    const clock = clockOf(device.time);
    const start = clock[0] ?? 0;
    const frames = this.stacks.header(columns, texts);
    const marks = marksOf(snapshot, device.device);
    const steps = stepsOf(snapshot, device, clock, marks, this.stacks);
    const { lines, lineOfRow } = this.lines(device, texts);
    const meta = file.meta.device(device.device);
    return {
      device: device.device,
      events: device.action.length,
      start_us: start,
      timed: clock.length > 0 && clock[clock.length - 1] > start,
      clock: columns.add(clock.map((time) => time - start)),
      counters: device.counters,
      rows: rowsOf(device, lineOfRow, columns),
      segments: segmentsOf(device, columns),
      failures: device.failures,
      steps: {
        source: steps.source,
        name: steps.source === PATTERN ? "cycle" : "step",
        starts: columns.add(steps.starts),
      },
      bands: bandsOf(snapshot, marks, clock, this.rules, columns, texts),
      collectives: null,
      frames,
      lines,
      categories: [],
      certainties: [],
      phases: [],
      modules: [],
      pools: this.pools,
      sources: {},
      texts: texts.all,
      source: file.name,
      name: file.name,
      rank: file.meta.rank,
      world_size: file.meta.worldSize,
      gpu: file.meta.gpu,
      torch: file.meta.torch,
      total_bytes: meta.totalBytes,
      limit_bytes: meta.limitBytes,
      settings: file.settings === null ? null : shortened(file.settings),
      complete: !file.missing.length,
      verdict: verdictOf(device, file),
      what_if: [],
    };
  }

  /** The user's lines as a page names them, and by allocation the number of its own plus one. */
  private lines(device: Device, texts: Texts): { lines: TrackHeader["lines"]; lineOfRow: Wide } {
    const lines: TrackHeader["lines"] = [];
    const numbers = new Map<string, number>();
    const numberOf = (frame: number): number => {
      const place = this.stacks.place(frame, texts);
      const key = place.join();
      if (!numbers.has(key)) numbers.set(key, lines.push(place));
      return numbers.get(key)!;
    };
    const { stack } = device.rows;
    const lineOfStack = new Map<number, number>();
    const lineOfRow = madeOf(stack.length, (row) => {
      let number = lineOfStack.get(stack[row]);
      if (number === undefined) {
        const frame = stack[row] === NONE ? NO_FRAME : this.stacks.userFrame[stack[row]];
        number = frame === NO_FRAME ? 0 : numberOf(frame);
        lineOfStack.set(stack[row], number);
      }
      return number;
    });
    return { lines, lineOfRow };
  }
}

/** The time of each event, made to never run backward: the order of events is the truth, the time is not. */
function clockOf(times: Wide): Float64Array {
  const clock = new Float64Array(times.length);
  let latest = -Infinity;
  for (let i = 0; i < clock.length; i++) clock[i] = latest = Math.max(latest, times[i]);
  return clock;
}

function rowsOf(
  { rows, action }: Device,
  line: Wide,
  columns: PreparedColumns,
): TrackHeader["rows"] {
  const n = rows.born.length;
  const base = lowest(rows.address);
  const { streams, numbers: stream } = numbered(rows.stream);
  const made = (value: (row: number) => number): number => columns.add(madeOf(n, value));
  const freed = rows.free_requested.map((event, row) => Math.min(event, rows.died[row]));
  const nothing = new Uint8Array(n);
  return {
    n,
    base: BigInt(base).toString(),
    streams,
    names: [],
    born: made((row) => rows.born[row] + 1),
    kept: made((row) => freed[row] - rows.born[row]),
    pending: made((row) => Math.min(rows.died[row], action.length) - freed[row]),
    address: made((row) => rows.address[row] - base),
    bytes: columns.add(rows.requested),
    slack: made((row) => Math.max(0, rows.taken[row] - rows.requested[row])),
    stack: made((row) => shifted(rows.stack[row])),
    segment: made((row) => shifted(rows.segment[row])),
    pool: made((row) => shifted(rows.pool[row])),
    stream: columns.add(stream),
    line: columns.add(line),
    inferred: columns.add(nothing),
    category: columns.add(nothing),
    certainty: columns.add(nothing),
    phase: columns.add(nothing),
    module: columns.add(nothing),
    name: columns.add(nothing),
  };
}

function segmentsOf(
  { segments, action, stack }: Device,
  columns: PreparedColumns,
): TrackHeader["segments"] {
  const base = lowest(segments.address);
  return {
    n: segments.born.length,
    base: BigInt(base).toString(),
    streams: Array.from(segments.stream, (pointer) => BigInt(pointer).toString()),
    born: columns.add(segments.born.map((event) => event + 1)),
    died: columns.add(segments.died.map((event) => Math.min(event, action.length))),
    address: columns.add(segments.address.map((address) => address - base)),
    bytes: columns.add(segments.size),
    expandable: columns.add(segments.mapped),
    pool: columns.add(Float64Array.from(segments.pool, shifted)),
    stack: columns.add(
      Float64Array.from(segments.born, (event) => (event < 0 ? 0 : shifted(stack[event]))),
    ),
  };
}

/** The lowest address; 0 where there is none. */
function lowest(addresses: Wide): number {
  let least = Infinity;
  for (const address of addresses) least = Math.min(least, address);
  return addresses.length ? least : 0;
}

/** The distinct values in order, and by row which of them it is. */
function numbered(values: Wide): { streams: string[]; numbers: Wide } {
  const all = new Set<number>();
  for (let row = 0; row < values.length; row++)
    if (!row || values[row] !== values[row - 1]) all.add(values[row]);
  const distinct = Float64Array.from(all).sort();
  const places = new Map(Array.from(distinct, (value, i) => [value, i]));
  return {
    streams: Array.from(distinct, (value) => BigInt(value).toString()),
    numbers: madeOf(values.length, (row) => places.get(values[row])!),
  };
}
