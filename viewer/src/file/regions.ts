// Regions that a program marked, each from its beginning to its end (src/vramlens/view/marked_regions.py), and the steps among them.

import { upperBound } from "../data/search";
import type { TrackHeader } from "../data/header";
import type { Device } from "./device";
import type { PreparedColumns } from "./prepared";
import type { Rules } from "./rules";
import type { Snapshot } from "./snapshot";
import type { Texts } from "./texts";
import { taken, wide, type Wide } from "./wide";

const DEEPEST = 8;
const ALLOC = 0;
const ANY_DEVICE = -1;
const STEP = "vramlens.step";

interface Mark {
  name: number;
  isBegin: boolean;
  time: number;
}

interface Region {
  name: number;
  begin: number;
  end: number;
  depth: number;
}

/** The marks of a device, in order of their time. */
function marksOf(snapshot: Snapshot, device: number): Mark[] {
  const rows = snapshot.numbers("annotations.rows");
  const column = (name: string) => wide(taken(snapshot.raw(`annotations.${name}`), rows));
  const [stage, name, of, time] = ["stage", "name", "device", "time_us"].map(column);
  const marks: Mark[] = [];
  for (let i = 0; i < rows.length; i++)
    if (of[i] === device || of[i] === ANY_DEVICE)
      marks.push({ name: name[i], isBegin: snapshot.text(stage[i]) === "START", time: time[i] });
  return marks.sort((a, b) => a.time - b.time);
}

function regionsOf(marks: Mark[], lastTime: number): Region[] {
  const regions: Region[] = [];
  const open: Mark[] = [];
  for (const mark of marks) {
    if (mark.isBegin) {
      open.push(mark);
      continue;
    }
    // The latest of that name: regions of several threads may cross.
    let depth = open.length - 1;
    while (depth >= 0 && open[depth].name !== mark.name) depth--;
    if (depth < 0) continue;
    const [{ time: begin }] = open.splice(depth, 1);
    regions.push({ name: mark.name, begin, end: mark.time, depth });
  }
  open.forEach(({ name, time }, depth) =>
    regions.push({ name, begin: time, end: lastTime, depth }),
  );
  return regions;
}

/** A device's marked regions, those of collectives aside, as columns of a page; and its steps. */
export function bandsOf(
  snapshot: Snapshot,
  device: Device,
  clock: Wide,
  rules: Rules,
  columns: PreparedColumns,
  texts: Texts,
): Pick<TrackHeader, "bands" | "steps"> {
  const start = clock[0] ?? 0;
  const last = Math.max(0, (clock[clock.length - 1] ?? 0) - start);
  const within = (time: number): number => Math.min(last, Math.max(0, time - start));
  const marks = marksOf(snapshot, device.device);
  const isCollective = (mark: Mark): boolean =>
    rules.collectives.some((backend) => snapshot.text(mark.name).startsWith(backend));
  const regions = regionsOf(
    marks.filter((mark) => !isCollective(mark)),
    start + last,
  ).map(({ name, begin, end, depth }) => ({
    name: texts.number(snapshot, name),
    begin: within(begin),
    end: within(end),
    depth: Math.min(depth, DEEPEST),
  }));
  regions.sort((a, b) => a.begin - b.begin || a.depth - b.depth);
  const starts = stepStarts(snapshot, device, clock, marks);
  return {
    bands: {
      n: regions.length,
      begin: columns.add(regions.map(({ begin }) => begin)),
      end: columns.add(regions.map(({ end }) => end)),
      name: columns.add(regions.map(({ name }) => name)),
      depth: columns.add(regions.map(({ depth }) => depth)),
    },
    steps: { source: starts.length ? STEP : null, starts: columns.add(starts) },
  };
}

/** The event that each step begins with, where the program has marked them; none else. */
function stepStarts(snapshot: Snapshot, device: Device, clock: Wide, marks: Mark[]): number[] {
  const ends = marks.filter(
    ({ name, isBegin }) => !isBegin && snapshot.text(name).startsWith(STEP),
  );
  if (!ends.length || !clock.length) return [];
  const starts = new Set([0, ...ends.map(({ time }) => upperBound(clock, time))]);
  return withoutTail(
    device,
    [...starts].filter((event) => event < clock.length).sort((a, b) => a - b),
  );
}

/** Without the last start, when what follows it is only the end of the program and no step. */
function withoutTail(device: Device, starts: number[]): number[] {
  if (starts.length < 2) return starts;
  const [before, last] = starts.slice(-2);
  if (device.failures.some(({ event }) => event >= last)) return starts;
  const tail = stacksBornIn(device, last, device.action.length);
  const usual = stacksBornIn(device, before, last);
  const shared = [...tail].filter((stack) => usual.has(stack)).length;
  return 2 * shared >= Math.max(1, usual.size) ? starts : starts.slice(0, -1);
}

function stacksBornIn({ action, stack }: Device, from: number, to: number): Set<number> {
  const stacks = new Set<number>();
  for (let event = from; event < to; event++) if (action[event] === ALLOC) stacks.add(stack[event]);
  return stacks;
}
