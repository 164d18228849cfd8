// One device of one recording: its columns, and the quick questions about them.

import { Calls } from "./calls";
import { type Codes, codesOf } from "./codes";
import type { ColumnSource, Numbers } from "./container";
import { Curve, StepCurve } from "./curve";
import type { Mark, Place, TrackHeader } from "./header";
import { samePlaces } from "./same_places";
import { upperBound } from "./search";
import { WhatIfLine } from "./what_if";

/** What an event does to its allocation. */
export const BORN = 1;
export const FREED = 2;
export const DIED = 4;

const ROW_COLUMNS = [
  "born", "kept", "pending", "address", "bytes", "slack", "stack", "segment", "pool", "stream", "line", "inferred",
  "category", "certainty", "phase", "module", "name",
] as const; // prettier-ignore

/** Whose code a frame is. */
const LIBRARY = 1;
const USER = 2;

export interface Frame extends Place {
  user: boolean;
  /** Whether it only passes calls on: PyTorch's own, or generated. */
  plumbing: boolean;
}

/** What a finding is about: allocations, and holes by address and bytes. */
export type FindingMark = Record<keyof Mark, Numbers>;

export class Track {
  readonly events: number;
  readonly n: number;
  /** The allocations, in order of birth: the events of their life; -1 is before the recording, `events` is never. */
  readonly born: Int32Array;
  readonly freed: Int32Array;
  readonly died: Int32Array;
  readonly taken: Numbers;
  /** By event: the allocation that it is about (-1: none) and what it does to it. */
  readonly eventRow: Int32Array;
  readonly eventKind: Uint8Array;
  readonly requested: Curve;
  readonly reserved: StepCurve;
  readonly segmentBorn: Int32Array;

  private constructor(
    readonly header: TrackHeader,
    readonly clock: Numbers,
    readonly row: Record<(typeof ROW_COLUMNS)[number], Numbers>,
    readonly segment: Record<
      "died" | "address" | "bytes" | "expandable" | "pool" | "stack",
      Numbers
    >,
    segmentBorn: Numbers,
    readonly stepStarts: Numbers,
    readonly bands: Record<"begin" | "end" | "name" | "depth", Numbers>,
    readonly frames: Record<
      "file" | "function" | "line" | "kind" | "code" | "of_stacks" | "starts",
      Numbers
    >,
    /** Its collectives; null where the recording tells of none. */
    readonly calls: Calls | null,
    readonly whatIf: WhatIfLine[],
    /** By finding, what it is about; null where that is nothing in particular. */
    readonly marks: (FindingMark | null)[],
  ) {
    const n = (this.n = header.rows.n);
    const events = (this.events = header.events);
    this.born = new Int32Array(n);
    this.freed = new Int32Array(n);
    this.died = new Int32Array(n);
    this.taken = row.slack.some((slack) => slack > 0) ? new Float64Array(n) : row.bytes;
    this.eventRow = new Int32Array(events).fill(-1);
    this.eventKind = new Uint8Array(events);
    for (let i = 0; i < n; i++) {
      const born = (this.born[i] = row.born[i] - 1);
      const freed = (this.freed[i] = born + row.kept[i]);
      const died = (this.died[i] = freed + row.pending[i]);
      if (this.taken !== row.bytes) this.taken[i] = row.bytes[i] + row.slack[i];
      if (born >= 0) this.happens(born, i, BORN);
      if (freed < events) this.happens(freed, i, FREED);
      if (died < events) this.happens(died, i, DIED);
    }
    this.requested = new Curve(this, row.bytes, DIED);
    this.segmentBorn = Int32Array.from(segmentBorn, (born) => born - 1);
    this.reserved = StepCurve.ofLives(
      this.segmentBorn,
      segment.died,
      segment.bytes,
      header.counters.reserved[0],
      events,
    );
  }

  private lines: Codes | null = null;

  /** The lines of code, a library's too. */
  get codes(): Codes {
    return (this.lines ??= codesOf(this));
  }

  private firstFrames: Uint32Array | null = null;

  /** By frame, the first one of the same place. */
  get samePlaces(): Uint32Array {
    return (this.firstFrames ??= samePlaces(this));
  }

  /** What to add to an allocation's address to make it one of a segment's. */
  get addressShift(): number {
    const { rows, segments } = this.header;
    return segments.n ? Number(BigInt(rows.base) - BigInt(segments.base)) : 0;
  }

  private allocatedCurve: Curve | null = null;
  private activeCurve: Curve | null = null;

  /** What the program holds: freed when it gives memory up. */
  get allocated(): Curve {
    return (this.allocatedCurve ??= new Curve(this, this.taken, FREED));
  }

  /** What cannot be handed out again yet: freed when the last stream is done with it. */
  get active(): Curve {
    return (this.activeCurve ??= new Curve(this, this.taken, DIED));
  }

  private happens(event: number, row: number, kind: number): void {
    this.eventRow[event] = row;
    this.eventKind[event] |= kind;
  }

  static async read(container: ColumnSource, header: TrackHeader): Promise<Track> {
    const columns = async <Name extends string>(names: readonly Name[], from: object) => {
      const found = await Promise.all(
        names.map((name) => container.column((from as Record<Name, number>)[name])),
      );
      return Object.fromEntries(names.map((name, i) => [name, found[i]])) as Record<Name, Numbers>;
    };
    const [clock, row, segment, segmentBorn, steps, bands, frames, calls, whatIf, marks] =
      await Promise.all([
        container.column(header.clock),
        columns(ROW_COLUMNS, header.rows),
        columns(
          ["died", "address", "bytes", "expandable", "pool", "stack"] as const,
          header.segments,
        ),
        container.column(header.segments.born as number),
        container.column(header.steps.starts),
        columns(["begin", "end", "name", "depth"] as const, header.bands),
        columns(
          ["file", "function", "line", "kind", "code", "of_stacks", "starts"] as const,
          header.frames,
        ),
        header.collectives && Calls.read(container, header.collectives),
        Promise.all(header.what_if.map((one) => WhatIfLine.read(container, one))),
        Promise.all(
          header.verdict.findings.map(
            async ({ mark }) => mark && columns(["rows", "addresses", "bytes"] as const, mark),
          ),
        ),
      ]);
    return new Track(
      header,
      clock,
      row,
      segment,
      segmentBorn,
      steps,
      bands,
      frames,
      calls,
      whatIf,
      marks,
    );
  }

  /** The allocations that hold memory right after an event, oldest first. */
  alive(event: number): number[] {
    const found: number[] = [];
    const end = upperBound(this.born, event);
    const { died } = this;
    for (let i = 0; i < end; i++) if (died[i] > event) found.push(i);
    return found;
  }

  /** The segments that are reserved right after an event. */
  segmentsAlive(event: number): number[] {
    const found: number[] = [];
    for (let i = 0; i < this.header.segments.n; i++) {
      if (this.segmentBorn[i] <= event && this.segment.died[i] > event) found.push(i);
    }
    return found;
  }

  text(number: number): string {
    return this.header.texts[number] ?? "";
  }

  /** The frames of a stack as rows name it (0: none), innermost first. */
  stack(number: number): Frame[] {
    if (number <= 0 || number >= this.frames.starts.length) return [];
    const found: Frame[] = [];
    for (let at = this.frames.starts[number - 1]; at < this.frames.starts[number]; at++) {
      found.push(this.frame(this.frames.of_stacks[at]));
    }
    return found;
  }

  isUserFrame(number: number): boolean {
    return this.frames.kind[number] === USER;
  }

  /** Whether a frame only passes calls on. */
  isPlumbing(number: number): boolean {
    return this.frames.kind[number] < LIBRARY;
  }

  frame(number: number): Frame {
    const { file, line, function: name } = this.frames;
    return {
      file: this.text(file[number]),
      line: line[number],
      function: this.text(name[number]),
      user: this.isUserFrame(number),
      plumbing: this.isPlumbing(number),
    };
  }

  /** The user's line of an allocation; null where it has none. */
  line(row: number): Place | null {
    const place = this.header.lines[this.row.line[row] - 1];
    return place
      ? { file: this.text(place[0]), line: place[1], function: this.text(place[2]) }
      : null;
  }

  stepOf(event: number): number {
    return event < 0 ? -1 : upperBound(this.stepStarts, event) - 1;
  }

  /** Microseconds after the first event; 0 where the recording has no times. */
  timeOf(event: number): number {
    return event < 0 ? 0 : (this.clock[Math.min(event, this.events - 1)] ?? 0);
  }

  /** The event that the page opens at: the failure that ended the run, else the peak. */
  get answer(): number {
    const failures = this.header.failures;
    if (this.header.verdict.failed && failures.length) return failures[failures.length - 1].event;
    return this.header.counters.requested[2];
  }

  address(row: number): string {
    return `0x${(BigInt(this.header.rows.base) + BigInt(this.row.address[row])).toString(16)}`;
  }
}
