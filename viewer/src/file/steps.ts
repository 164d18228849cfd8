// Where a device's steps begin, from the best evidence that the file holds (src/vramlens/analyses/attribution/steps.py).

import { lowerBound, upperBound } from "../data/search";
import { type Device, NONE } from "./device";
import type { Mark } from "./regions";
import type { Snapshot } from "./snapshot";
import type { Stacks } from "./stacks";
import type { Wide } from "./wide";

const ALLOC = 0;
const FEWEST_CYCLES = 3;
/** The source of what may be steps, and may be the layers, tokens or solver steps within one. */
export const PATTERN = "repeating pattern";

export interface Steps {
  source: string | null;
  starts: number[];
}

export function stepsOf(
  snapshot: Snapshot,
  device: Device,
  clock: Wide,
  marks: Mark[],
  stacks: Stacks,
): Steps {
  const evidence = new Evidence(snapshot, device, clock, marks, stacks);
  const sources: [string, () => number[]][] = [
    ["vramlens.step", () => evidence.ends("vramlens.step")],
    ["optimizer marks", () => evidence.optimizerMarks()],
    ["optimizer frames", () => evidence.optimizerFrames()],
    [PATTERN, () => evidence.pattern()],
  ];
  for (const [source, find] of sources) {
    const boundaries = find();
    if (!boundaries.length) continue;
    const starts = withoutTail(device, inOrder([0, ...boundaries], device.action.length));
    return {
      source,
      starts: source.startsWith("optimizer") ? joinedTurns(device, starts) : starts,
    };
  }
  return { source: null, starts: [] };
}

class Evidence {
  /** The events that allocate. */
  private readonly births: number[] = [];

  constructor(
    private readonly snapshot: Snapshot,
    private readonly device: Device,
    private readonly clock: Wide,
    private readonly marks: Mark[],
    private readonly stacks: Stacks,
  ) {
    device.action.forEach((action, event) => action === ALLOC && this.births.push(event));
  }

  /** The first event after the end of each region whose name begins so. */
  ends(prefix: string): number[] {
    if (!this.clock.length) return [];
    return this.marks
      .filter(({ name, isBegin }) => !isBegin && this.snapshot.text(name).startsWith(prefix))
      .map(({ time }) => upperBound(this.clock, time));
  }

  optimizerMarks(): number[] {
    const { births } = this;
    const cleared = this.ends("Optimizer.zero_grad#");
    // A zero_grad right behind belongs to the step it clears up after.
    const ends = this.ends("Optimizer.step#").map((end) => {
      const next = births[lowerBound(births, end)] ?? this.device.action.length;
      return Math.max(end, cleared[upperBound(cleared, next) - 1] ?? end);
    });
    // Steps with no new memory between them are several optimizers of one step.
    const outside = births.filter((event) => !this.isOptimizers(event));
    const groups = ends.map((end) => lowerBound(outside, end));
    return ends.filter((_, i) => groups[i + 1] !== groups[i]);
  }

  /** Where a run of allocations from inside an optimizer ends. */
  optimizerFrames(): number[] {
    const inside = this.births.map((event) => this.isOptimizers(event));
    return this.births.filter((_, i) => i > 0 && inside[i - 1] && !inside[i]);
  }

  private isOptimizers(event: number): boolean {
    const stack = this.device.stack[event];
    return stack !== NONE && this.stacks.optimizers[stack] > 0;
  }

  /**
   * The events at which a repeating sequence of allocations begins anew. The rarest stack (size, where there are no stacks)
   * that comes at even distances counts the cycles.
   */
  pattern(): number[] {
    const { births, device } = this;
    const hasStacks = births.some((event) => device.stack[event] !== NONE);
    const keys = hasStacks ? device.stack : device.size();
    const places = new Map<number, number[]>();
    births.forEach((event, place) => {
      const key = keys[event];
      const known = places.get(key);
      if (known) known.push(place);
      else places.set(key, [place]);
    });
    const kinds = [...places.keys()].sort((a, b) => a - b);
    const rarest = kinds
      .filter((key) => key !== NONE && places.get(key)!.length >= FEWEST_CYCLES)
      .sort((a, b) => places.get(a)!.length - places.get(b)!.length);
    for (const key of rarest) {
      const anchors = places.get(key)!;
      if (isEven(anchors, births.length))
        return cycleStarts([...places.values()], anchors).map((place) => births[place]);
    }
    return [];
  }
}

/** Whether something comes at even distances, over a good part of the run. */
function isEven(anchors: number[], births: number): boolean {
  const gaps = anchors.slice(1).map((anchor, i) => anchor - anchors[i]);
  const usual = median(gaps);
  const even = gaps.filter((gap) => Math.abs(gap - usual) <= usual / 2).length / gaps.length;
  return usual >= 2 && even >= 0.8 && anchors[anchors.length - 1] - anchors[0] >= 0.3 * births;
}

/** Where each cycle after the first begins, among the births: with the earliest kind that every cycle has. */
function cycleStarts(kinds: number[][], anchors: number[]): number[] {
  const cycles = anchors.length - 1;
  const [from, to] = [anchors[0], anchors[cycles]];
  const every = kinds
    .map((places) => {
      const inside = places.slice(lowerBound(places, from), lowerBound(places, to));
      const seen = new Set(inside.map((place) => upperBound(anchors, place)));
      return { places, first: places[0], total: inside.length, cycles: seen.size };
    })
    .filter((kind) => kind.cycles >= 0.8 * cycles)
    .sort((a, b) => a.first - b.first);
  // Of the earliest few, the one that comes least often a cycle marks the beginning most sharply.
  const [mark] = every.slice(0, 3).sort((a, b) => a.total - b.total || a.first - b.first);
  const lead = mark.first - every[0].first;
  const next = anchors.map((anchor) => mark.places[upperBound(mark.places, anchor)]);
  return inOrder(
    next.filter((place) => place !== undefined).map((place) => place - lead),
    Infinity,
  );
}

/** One step of what several optimizers do in turns (a GAN's two): their stacks differ, and come again together. */
function joinedTurns(device: Device, starts: number[]): number[] {
  const all = starts.map((start, i) =>
    stacksBornIn(device, start, starts[i + 1] ?? device.action.length),
  );
  for (const stacks of all) stacks.delete(NONE);
  const common = all.reduce((shared, stacks) => intersection(shared, stacks), all[0] ?? new Set());
  if (median(all.map(({ size }) => common.size / Math.max(size, 1))) > 0.5) return starts;
  const own = all.map((stacks) => new Set([...stacks].filter((stack) => !common.has(stack))));
  const alike = (distance: number): number => {
    const pairs = own
      .slice(distance)
      .map((stacks, i) => [own[i], stacks] as const)
      .filter(([a, b]) => a.size && b.size);
    return pairs.length
      ? median(pairs.map(([a, b]) => intersection(a, b).size / Math.min(a.size, b.size)))
      : 1;
  };
  for (const turns of [2, 3])
    if (own.length >= 2 * turns && alike(1) < 0.1 && alike(turns) > 0.9)
      return starts.filter((_, i) => i % turns === 0);
  return starts;
}

/** Without the last start, when what follows it is only the end of the program and no step. */
function withoutTail(device: Device, starts: number[]): number[] {
  if (starts.length < 2) return starts;
  const [before, last] = starts.slice(-2);
  if (device.failures.some(({ event }) => event >= last)) return starts;
  const tail = stacksBornIn(device, last, device.action.length);
  const usual = stacksBornIn(device, before, last);
  const shared = intersection(tail, usual).size;
  return 2 * shared >= Math.max(1, usual.size) ? starts : starts.slice(0, -1);
}

function stacksBornIn({ action, stack }: Device, from: number, to: number): Set<number> {
  const stacks = new Set<number>();
  for (let event = from; event < to; event++) if (action[event] === ALLOC) stacks.add(stack[event]);
  return stacks;
}

const intersection = (a: Set<number>, b: Set<number>): Set<number> =>
  new Set([...a].filter((number) => b.has(number)));

/** The distinct numbers below an end, sorted. */
const inOrder = (numbers: number[], end: number): number[] =>
  [...new Set(numbers)].filter((number) => number < end).sort((a, b) => a - b);

function median(numbers: number[]): number {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
