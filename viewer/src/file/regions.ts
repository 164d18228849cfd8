// Regions that a program marked, each from its beginning to its end (src/vramlens/view/timeline/marked_regions.py).

import type { TrackHeader } from "../data/header";
import type { PreparedColumns } from "./prepared";
import type { Rules } from "./rules";
import type { Snapshot } from "./snapshot";
import type { Texts } from "./texts";
import { taken, wide, type Wide } from "./wide";

const DEEPEST = 8;
const ANY_DEVICE = -1;
/** Regions that may have begun after the one that ends: in a hostile file there could be any number. */
const MOST_CROSSED = 1000;

export interface Mark {
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
export function marksOf(snapshot: Snapshot, device: number): Mark[] {
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
    const least = Math.max(0, open.length - MOST_CROSSED);
    let depth = open.length - 1;
    while (depth >= least && open[depth].name !== mark.name) depth--;
    if (depth < least) continue;
    const [{ time: begin }] = open.splice(depth, 1);
    regions.push({ name: mark.name, begin, end: mark.time, depth });
  }
  open.forEach(({ name, time }, depth) =>
    regions.push({ name, begin: time, end: lastTime, depth }),
  );
  return regions;
}

/** A device's marked regions, those of collectives aside, as columns of a page. */
export function bandsOf(
  snapshot: Snapshot,
  marks: Mark[],
  clock: Wide,
  { collectives }: Rules,
  columns: PreparedColumns,
  texts: Texts,
): TrackHeader["bands"] {
  const start = clock[0] ?? 0;
  const last = Math.max(0, (clock[clock.length - 1] ?? 0) - start);
  const within = (time: number): number => Math.min(last, Math.max(0, time - start));
  const isCollective = (mark: Mark): boolean =>
    collectives.some((backend) => snapshot.text(mark.name).startsWith(backend));
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
  return {
    n: regions.length,
    begin: columns.add(regions.map(({ begin }) => begin)),
    end: columns.add(regions.map(({ end }) => end)),
    name: columns.add(regions.map(({ name }) => name)),
    depth: columns.add(regions.map(({ depth }) => depth)),
  };
}
