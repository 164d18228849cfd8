// What the picture is coloured and stacked by: every allocation in one of a few groups, and each group's bytes at any event.

import {
  category as categoryColours,
  distinct,
  NONE_COLOUR,
  OTHER_COLOUR,
  phase as phaseColours,
  sequence,
  type Colour,
} from "../base/palette";
import { shortPlace } from "../base/format";
import { upperBound } from "./search";
import { BORN, DIED, type Track } from "./track";

export const GROUPINGS = [
  "category",
  "phase",
  "module",
  "line",
  "code",
  "step",
  "stream",
  "pool",
  "age",
  "leak",
] as const;
export type GroupingName = (typeof GROUPINGS)[number];

const MOST = 9;
const BLOCK = 1024;
/** From the bottom of the stack to its top: what stays longest lies lowest. */
const CATEGORY_ORDER = [
  "parameters",
  "optimizer_state",
  "workspace",
  "gradients",
  "activations",
  "temporaries",
  "other",
];
const PHASE_ORDER = ["other", "optimizer", "forward", "backward", "evaluation", "unknown"];
const AGES = [1e3, 1e4, 1e5, 1e6, 1e7];
const AGE_NAMES = [
  "under 1 ms",
  "1 to 10 ms",
  "10 to 100 ms",
  "0.1 to 1 s",
  "1 to 10 s",
  "over 10 s",
  "never freed",
];

export interface Group {
  name: string;
  colour: Colour;
}

export class Groups {
  /** By allocation, its group; the groups from the bottom of the stack to its top. */
  readonly of: Uint8Array;
  readonly groups: Group[];
  private readonly sums: Float64Array;

  /** The most bytes that the group that is shown alone has after any event; 0 where all are shown. */
  readonly onlyPeak: number = 0;

  constructor(
    readonly track: Track,
    readonly by: GroupingName,
    /** The only group whose bytes count; -1: all of them do. */
    readonly only = -1,
  ) {
    const made = MAKERS[by](track);
    this.of = made.of;
    this.groups = made.groups;
    const { events, eventRow, eventKind, row, born } = track;
    const count = this.groups.length;
    const now = new Float64Array(count);
    const isShown = (group: number): boolean => only < 0 || group === only;
    for (let i = 0; i < track.n && born[i] < 0; i++)
      if (isShown(this.of[i])) now[this.of[i]] += row.bytes[i];
    this.onlyPeak = now[only] ?? 0;
    this.sums = new Float64Array((Math.floor(events / BLOCK) + 1) * count);
    for (let event = 0, place = 0; event < events; event++) {
      if (event % BLOCK === 0) {
        this.sums.set(now, place);
        place += count;
      }
      const about = eventRow[event];
      if (about < 0) continue;
      const kind = eventKind[event];
      const group = this.of[about];
      if (!isShown(group)) continue;
      if (kind & BORN) now[group] += row.bytes[about];
      if (kind & DIED) now[group] -= row.bytes[about];
      if (group === only && now[group] > this.onlyPeak) this.onlyPeak = now[group];
    }
    if (events % BLOCK === 0) this.sums.set(now, Math.floor(events / BLOCK) * count);
  }

  /** Bytes of each group right after an event, into `out`; quicker where `out` holds those after an earlier event. */
  at(event: number, out: Float64Array, known = -2): Float64Array {
    const count = this.groups.length;
    const { eventRow, eventKind, row } = this.track;
    const block = event < 0 ? 0 : Math.floor(event / BLOCK);
    let first = known + 1;
    if (known < block * BLOCK - 1 || known > event) {
      for (let g = 0; g < count; g++) out[g] = this.sums[block * count + g]!;
      first = block * BLOCK;
    }
    for (let e = first; e <= event; e++) {
      const about = eventRow[e];
      if (about < 0) continue;
      const kind = eventKind[e];
      const group = this.of[about];
      if (this.only >= 0 && group !== this.only) continue;
      if (kind & BORN) out[group] += row.bytes[about];
      if (kind & DIED) out[group] -= row.bytes[about];
    }
    return out;
  }
}

interface Made {
  of: Uint8Array;
  groups: Group[];
}

const MAKERS: Record<GroupingName, (track: Track) => Made> = {
  category: (track) =>
    fixed(track.row.category, track.header.categories, CATEGORY_ORDER, categoryColours),
  phase: (track) => fixed(track.row.phase, track.header.phases, PHASE_ORDER, phaseColours),
  module: (track) =>
    largest(track, track.row.module, (id) =>
      id ? track.text(track.header.modules[id - 1]) : "outside modules",
    ),
  line: (track) =>
    largest(track, track.row.line, (id) => {
      const place = track.header.lines[id - 1];
      return place
        ? shortPlace({ file: track.text(place[0]), line: place[1], function: track.text(place[2]) })
        : "no line of yours";
    }),
  code: (track) =>
    largest(track, track.codes.of, (id) => {
      const place = track.codes.places[id];
      return place ? shortPlace(place) : "no line of code";
    }),
  pool: (track) => largest(track, poolsOf(track), (id) => POOLS[id] ?? poolName(track, id), false),
  leak: byLeak,
  stream: (track) =>
    largest(
      track,
      track.row.stream,
      (id) => `stream ${track.header.rows.streams[id] ?? "?"}`,
      false,
    ),
  step: bySteps,
  age: byAge,
};

function fixed(
  ids: ArrayLike<number>,
  names: string[],
  order: string[],
  colours: Record<string, Colour>,
): Made {
  const used = names.map(() => false);
  for (let i = 0; i < ids.length; i++) used[ids[i]] = true;
  const all = [
    ...order.filter((name) => names.includes(name)),
    ...names.filter((name) => !order.includes(name)),
  ];
  const known = all.filter((name) => used[names.indexOf(name)]);
  if (!known.length) known.push(all[0] ?? "other");
  const place = names.map((name) => Math.max(0, known.indexOf(name)));
  const of = new Uint8Array(ids.length);
  for (let i = 0; i < ids.length; i++) of[i] = place[ids[i]] ?? 0;
  return {
    of,
    groups: known.map((name) => ({
      name: name.replaceAll("_", " "),
      colour: colours[name] ?? OTHER_COLOUR,
    })),
  };
}

/** The kinds that hold most at the peak, and then over the whole run; the rest together, on top. */
function largest(
  track: Track,
  ids: ArrayLike<number>,
  name: (id: number) => string,
  none = true,
): Made {
  const atPeak = new Map<number, number>();
  const overall = new Map<number, number>();
  const peak = track.header.counters.requested[2];
  for (let i = 0; i < track.n; i++) {
    const id = ids[i];
    const bytes = track.row.bytes[i];
    if (track.born[i] <= peak && track.died[i] > peak)
      atPeak.set(id, (atPeak.get(id) ?? 0) + bytes);
    overall.set(id, (overall.get(id) ?? 0) + bytes * (track.died[i] - track.born[i]));
  }
  const ranked = [...overall.keys()].sort(
    (a, b) => (atPeak.get(b) ?? 0) - (atPeak.get(a) ?? 0) || overall.get(b)! - overall.get(a)!,
  );
  const kept = ranked.slice(0, ranked.length > MOST ? MOST - 1 : MOST);
  const place = new Map(kept.map((id, i) => [id, i]));
  // Id 0 is "none": it gets the colour of no kind.
  let used = 0;
  const groups = kept.map((id) => ({
    name: name(id),
    colour: id === 0 && none ? NONE_COLOUR : distinct[used++ % distinct.length],
  }));
  const rest = ranked.length - kept.length;
  if (rest) groups.push({ name: `${rest.toLocaleString("en")} others`, colour: OTHER_COLOUR });
  const of = new Uint8Array(track.n);
  for (let i = 0; i < track.n; i++) of[i] = place.get(ids[i]) ?? kept.length;
  return { of, groups };
}

/** Before the recording, then runs of steps, the early ones darkest. */
function bySteps(track: Track): Made {
  const steps = track.stepStarts.length;
  const { name } = track.header.steps;
  const runs = Math.min(steps, MOST - 1);
  const of = new Uint8Array(track.n);
  for (let i = 0; i < track.n; i++) {
    const step = track.born[i] < 0 ? -1 : upperBound(track.stepStarts, track.born[i]) - 1;
    of[i] = step < 0 ? 0 : 1 + Math.floor((step * runs) / Math.max(1, steps));
  }
  const groups: Group[] = [
    { name: steps ? "before the recording" : "no steps known", colour: OTHER_COLOUR },
  ];
  for (let run = 0; run < runs; run++) {
    const first = Math.ceil((run * steps) / runs);
    const last = Math.ceil(((run + 1) * steps) / runs) - 1;
    groups.push({
      name: first === last ? `${name} ${first}` : `${name}s ${first}–${last}`,
      colour: sequence(run, runs),
    });
  }
  return { of, groups };
}

const POOLS = ["large pool", "small pool"];
/** Blocks up to this come from the small pool (c10/cuda/CUDACachingAllocator.cpp: kSmallSize). */
const SMALL = 1 << 20;

/** By allocation: 0 and 1 for the large and the small pool, else two more than its private pool. */
function poolsOf(track: Track): Uint16Array {
  const isPrivate = track.header.pools.map(([a, b]) => Boolean(a || b));
  return Uint16Array.from(track.row.bytes, (bytes, i) => {
    const pool = track.row.pool[i];
    if (pool && isPrivate[pool - 1]) return pool + 1;
    return bytes <= SMALL ? 1 : 0;
  });
}

export function poolName(track: Track, id: number): string {
  const pool = track.header.pools[id - 2];
  return pool ? `private pool (${pool[0]}, ${pool[1]})` : "a pool";
}

/** What leaks lies on top, by the step that left it behind; all else is one group below. */
function byLeak(track: Track): Made {
  const steps = bySteps(track);
  const isLeaking = new Uint8Array(track.n);
  track.marks.forEach((mark, i) => {
    if (track.header.verdict.findings[i].id === "leak")
      for (const row of mark?.rows ?? []) isLeaking[row] = 1;
  });
  const of = new Uint8Array(track.n);
  for (let i = 0; i < track.n; i++) of[i] = isLeaking[i] ? 1 + steps.of[i] : 0;
  const isStepped = track.stepStarts.length > 0;
  const kept = steps.groups.map(({ name, colour }) =>
    isStepped ? { name: `kept from ${name}`, colour } : { name: "kept", colour: distinct[1] },
  );
  return { of, groups: [{ name: "everything else", colour: OTHER_COLOUR }, ...kept] };
}

/** Whether anything leaks that the picture can show. */
export const hasLeak = (track: Track): boolean =>
  track.marks.some(
    (mark, i) =>
      track.header.verdict.findings[i].id === "leak" && mark !== null && mark.rows.length,
  );

/** What the analyses say; a dropped file has none of it. */
const ANALYSED: readonly string[] = ["category", "phase", "module"];

/** Whether the analyses have judged what each allocation is for. */
export const isAnalysed = (track: Track): boolean => track.header.categories.length > 0;

/** Those that a recording has something for, of groupings or of tables. */
export const knownOf = <Name extends string>(track: Track, names: readonly Name[]): Name[] =>
  names.filter((name) => isAnalysed(track) || !ANALYSED.includes(name));

/** The groupings that a recording has something for. */
export const groupingsOf = (track: Track): GroupingName[] =>
  knownOf(track, GROUPINGS).filter((by) => by !== "leak" || hasLeak(track));

/** What a picture is coloured by where nobody has chosen. */
export const usualGrouping = (track: Track): GroupingName =>
  isAnalysed(track) ? "category" : "code";

/** How long each allocation lived: what never goes lies lowest. */
function byAge(track: Track): Made {
  const of = new Uint8Array(track.n);
  const top = AGE_NAMES.length - 1;
  const timed = track.header.timed;
  for (let i = 0; i < track.n; i++) {
    const died = track.died[i];
    // Without times, a thousandth of the events stands for a millisecond of a second.
    const lived = timed
      ? track.timeOf(died) - track.timeOf(track.born[i])
      : ((died - track.born[i]) * 1e7) / Math.max(1, track.events);
    of[i] = died >= track.events ? 0 : top - upperBound(AGES, lived);
  }
  const names = timed
    ? AGE_NAMES
    : AGE_NAMES.map((name, i) =>
        i < AGES.length + 1 ? `age ${i + 1} of ${AGES.length + 1}` : name,
      );
  return {
    of,
    groups: names.map((name, i) => ({ name, colour: sequence(i, names.length) })).reverse(),
  };
}
