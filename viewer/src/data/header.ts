// The header of a page, as src/vramlens/view/{page,track,verdict}.py write it. Column numbers stand for columns.

import type { Place } from "../base/place";

export type { Place };

/** What a finding is about, as columns: allocations by number, holes by address and bytes. */
export interface Mark {
  rows: number;
  addresses: number;
  bytes: number;
}

export interface Finding {
  id: string;
  verdict: string;
  title: string;
  bytes: number | null;
  place: Place | null;
  evidence: string[];
  fix: string | null;
  event: number;
  mark: Mark | null;
}

export interface Verdict {
  failed: boolean;
  headline: string;
  sentences: string[];
  figures: [number, string][];
  ledger: [number, string][];
  ledger_when: string;
  findings: Finding[];
  steps: string;
  unknown: string[];
  origin: string[];
  next: string[];
  exact: string[];
}

/** A setting that was replayed. */
export interface WhatIf {
  conf: string;
  /** The peak of reserved bytes, and its bounds. */
  reserved: number;
  low: number;
  high: number;
  confidence: string;
  oom: boolean | null;
  /** The failure that ends the program, and with it the line. */
  died: number | null;
  /** What it comes to, in a sentence or two. */
  words: string;
  /** How many changes a step of the line stands for: it is the highest of them. */
  changes: number;
  /** Columns: by step, one more than the event from which its bytes count, and those. */
  event: number;
  bytes: number;
}

/** Collectives; every name that is not told here is a column's number. */
export interface CallsHeader extends Record<string, unknown> {
  n: number;
  notes: string[];
  /** Of each group, the texts of its name and of its ranks. */
  groups: [number, number][];
  states: string[];
  flight: boolean;
}

export interface TrackHeader {
  device: number;
  events: number;
  start_us: number;
  timed: boolean;
  clock: number;
  counters: Record<"requested" | "allocated" | "active" | "reserved", [number, number, number]>;
  rows: { n: number; base: string; streams: string[]; names: number[] } & Record<string, unknown>;
  segments: { n: number; base: string; streams: string[] } & Record<string, unknown>;
  failures: { event: number; bytes: number; free: number | null; stack: number }[];
  /** `name`: "step", or "cycle" where only a pattern repeats and it may be the layers of one step. */
  steps: { source: string | null; name: "step" | "cycle"; starts: number };
  bands: { n: number; begin: number; end: number; name: number; depth: number };
  collectives: CallsHeader | null;
  frames: {
    file: number;
    function: number;
    line: number;
    kind: number;
    code: number;
    of_stacks: number;
    starts: number;
  };
  lines: [number, number, number][];
  categories: string[];
  certainties: string[];
  phases: string[];
  modules: number[];
  pools: [number, number][];
  sources: Record<string, { first: number; lines: string[] }>;
  texts: string[];
  source: string;
  name: string;
  rank: number | null;
  world_size: number | null;
  gpu: string | null;
  torch: string | null;
  total_bytes: number | null;
  limit_bytes: number | null;
  /** The allocator's settings as they were given, "" for the default; null where unknown. */
  settings: string | null;
  complete: boolean;
  verdict: Verdict;
  what_if: WhatIf[];
}

/** A difference between ranks; `track` is one that shows it. */
export type RankFinding = Pick<Finding, "verdict" | "title" | "place" | "evidence" | "fix"> & {
  track: number | null;
};

/** What differs between the ranks. */
export interface Comparison {
  headline: string;
  findings: RankFinding[];
}

/** A line whose bytes at the peak differ between two recordings. */
export interface LineChange {
  place: Place;
  /** Where the line was before; null where it is the same. */
  was: Place | null;
  before: number;
  after: number;
}

/** What `vramlens diff` says of two recordings. */
export interface Difference {
  headline: string;
  sentences: string[];
  lines: LineChange[];
  notes: string[];
  /** By how much what has no line changed. */
  unattributed: number;
}

export interface PageHeader {
  version: number;
  vramlens: string;
  title: string;
  tracks: TrackHeader[];
  comparison: Comparison | null;
  difference: Difference | null;
}
