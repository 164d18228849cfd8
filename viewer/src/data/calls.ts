// The collectives of a rank: its calls in order of time, and which of them did not go well.

import type { ColumnSource, Numbers } from "./container";
import type { CallsHeader } from "./header";
import { lowerBound, upperBound } from "./search";
import type { Frame, Track } from "./track";

const COLUMNS = [
  "at", "late", "took", "finished", "name", "group", "seq", "state", "bytes", "shape", "stack", "problem",
  "frame_file", "frame_line", "frame_function", "frame_user", "stack_starts",
] as const; // prettier-ignore
const NEVER_FINISHED = ["started", "scheduled", "not returned"];

/** What calls are laid out along: time or events. */
export interface Along {
  readonly kind: "time" | "events";
  readonly end: number;
  readonly track: { readonly clock: Numbers };
}

export type CallColumns = Record<(typeof COLUMNS)[number], Numbers>;

/** Where calls are on an axis, and where the last of all up to each one ends. */
export interface Places {
  from: Float64Array;
  to: Float64Array;
  reach: Float64Array;
}

export class Calls {
  readonly n: number;
  /** By call: 2 for those in which the ranks differ, 1 for others that never finished. */
  readonly flagged: Uint8Array;
  /** Those that never finished, and how many there are in which the ranks differ. */
  readonly open: number[] = [];
  readonly differing: number;
  private readonly placed = new Map<Along["kind"], Places>();

  constructor(
    readonly header: CallsHeader,
    readonly column: CallColumns,
  ) {
    this.n = header.n;
    for (let i = 0; i < this.n; i++) if (NEVER_FINISHED.includes(this.state(i))) this.open.push(i);
    this.flagged = Uint8Array.from(column.problem, (problem) => (problem ? 2 : 0));
    this.differing = this.flagged.reduce((sum, one) => sum + one / 2, 0);
    for (const call of this.open) this.flagged[call] ||= 1;
  }

  static async read(container: ColumnSource, header: CallsHeader): Promise<Calls> {
    const found = await Promise.all(
      COLUMNS.map((name) => container.column(header[name] as number)),
    );
    return new Calls(
      header,
      Object.fromEntries(COLUMNS.map((name, i) => [name, found[i]])) as CallColumns,
    );
  }

  state(call: number): string {
    return this.header.states[this.column.state[call]] ?? "";
  }

  /** The last event before a call. */
  event(track: Track, call: number): number {
    return Math.min(track.events, upperBound(track.clock, this.column.at[call])) - 1;
  }

  /** The stack of a call, innermost frame first. */
  stack(track: Track, call: number): Frame[] {
    const {
      stack,
      stack_starts: starts,
      frame_file: file,
      frame_line: line,
      frame_function: name,
      frame_user: user,
    } = this.column;
    const number = stack[call];
    const found: Frame[] = [];
    for (let at = number ? starts[number - 1] : 0; at < (number ? starts[number] : 0); at++) {
      found.push({
        file: track.text(file[at]),
        line: line[at],
        function: track.text(name[at]),
        user: user[at] === 1,
        plumbing: false,
      });
    }
    return found;
  }

  places(axis: Along): Places {
    let found = this.placed.get(axis.kind);
    if (found) return found;
    const { at, took } = this.column;
    const place = (us: number) => (axis.kind === "time" ? us : lowerBound(axis.track.clock, us));
    const from = Float64Array.from(at, place);
    const to = Float64Array.from(at, (us, i) =>
      Math.min(axis.end, place(us + Math.max(0, took[i] - 1))),
    );
    const reach = Float64Array.from(to);
    for (let i = 1; i < reach.length; i++) reach[i] = Math.max(reach[i], reach[i - 1]);
    this.placed.set(axis.kind, (found = { from, to, reach }));
    return found;
  }

  /** The calls that touch a stretch of an axis lie in [first, end); not all of those in it do. */
  between(axis: Along, from: number, to: number): [first: number, end: number] {
    const places = this.places(axis);
    return [lowerBound(places.reach, from), upperBound(places.from, to)];
  }
}
