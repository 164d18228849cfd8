// Stacks as a tree of frames, each as heavy as what was asked for through it.

import { longPlace, shortPlace } from "../base/format";
import type { Track } from "../data/track";
import { add, type FrameKind, framesOf, stackSums, type Sum } from "./stack_sums";
import { named, type Weighed } from "./tally";

/** What a bar of the graph stands for. */
interface Bar {
  /** What leads to it among its siblings: the number of its frame, or a word where it is none. */
  id: string;
  /** The number of its frame; -1 where it is none. */
  frame: number;
  name: string;
  long: string;
  user: boolean;
}

export interface Flame extends Bar, Sum {
  depth: number;
  parent: Flame | null;
  inside: Flame[];
}

/** Of deeper stacks (a recursion that went wild) the middle is left out. */
const DEEPEST = 400;

export const flame = (bar: Bar, parent: Flame | null): Flame => ({
  ...bar,
  weight: 0,
  example: -1,
  most: -1,
  depth: parent ? parent.depth + 1 : 0,
  parent,
  inside: [],
});

export function frameBar(track: Track, number: number): Bar {
  const frame = track.frame(number);
  return {
    id: String(number),
    frame: number,
    name: shortPlace(frame),
    long: `${longPlace(frame)} in ${frame.function}`,
    user: frame.user,
  };
}

const wordBar = (id: string, name: string, long: string, user: boolean): Bar => ({
  id,
  frame: -1,
  name,
  long,
  user,
});

/** A tree that grows from its root. */
export class FlameTree {
  private readonly insideOf = new Map<Flame, Map<string, Flame>>();

  constructor(
    private readonly track: Track,
    readonly root: Flame,
  ) {}

  /** Adds frames that lie inside of each other. */
  grow(frames: number[], sum: Sum): void {
    add(this.root, sum);
    const shown = frames.length > DEEPEST ? withoutMiddle(frames) : frames;
    let node = this.root;
    for (const frame of shown)
      node = this.into(node, String(frame), sum, () => frameBar(this.track, frame));
  }

  /** Adds what has no stack: some of it likely belongs to a line of the user's. */
  growLent(line: number, sum: Sum): void {
    add(this.root, sum);
    const lost = this.into(this.root, "n", sum, () =>
      wordBar("n", "no stack (PyTorch's own threads)", "no stack", false),
    );
    if (!line) return;
    const id = `l${line}`;
    this.into(lost, id, sum, () => {
      const { name, long } = named(this.track, "line", line);
      return wordBar(id, `likely for ${name}`, `likely for ${long}`, true);
    });
  }

  /** The heaviest first, at every level. */
  sort(node = this.root): void {
    node.inside.sort((a, b) => b.weight - a.weight);
    for (const inside of node.inside) this.sort(inside);
  }

  private into(node: Flame, id: string, sum: Sum, bar: () => Bar): Flame {
    let inside = this.insideOf.get(node);
    if (!inside) this.insideOf.set(node, (inside = new Map<string, Flame>()));
    let next = inside.get(id);
    if (!next) {
      next = flame(bar(), node);
      inside.set(id, next);
      node.inside.push(next);
    }
    add(next, sum);
    return next;
  }
}

const withoutMiddle = (frames: number[]): number[] => [
  ...frames.slice(0, DEEPEST / 2),
  ...frames.slice(-DEEPEST / 2),
];

/** The tree of all stacks, under a bar of a name. */
export function flameOf(
  track: Track,
  weighed: Weighed,
  name: string,
  kind: FrameKind = "all",
): Flame {
  const tree = new FlameTree(track, flame(wordBar("", name, name, true), null));
  for (const [stack, sum] of stackSums(track, weighed)) {
    if (stack > 0) tree.grow(framesOf(track, stack, kind), sum);
    else tree.growLent(-1 - stack, sum);
  }
  tree.sort();
  joinChains(tree.root);
  return tree.root;
}

/** Frames through which everything of the one above goes become one bar with it: launchers take many lines. */
function joinChains(root: Flame): void {
  for (const first of root.inside) {
    const names = [first.name];
    let last = first;
    while (
      last.inside.length === 1 &&
      last.inside[0].weight === last.weight &&
      last.inside[0].inside.length
    ) {
      last = last.inside[0];
      names.push(last.name);
    }
    if (names.length < 3) continue;
    first.name = `${names[0]} … ${names[names.length - 1]}`;
    first.long = names.join(" > ");
    first.user = last.user;
    first.frame = last.frame;
    first.inside = last.inside;
    for (const inside of first.inside) raise(inside, first);
  }
}

function raise(node: Flame, parent: Flame): void {
  node.parent = parent;
  node.depth = parent.depth + 1;
  for (const inside of node.inside) raise(inside, node);
}

/** The way from the root to a frame. */
export function pathOf(flame: Flame): string {
  const ids: string[] = [];
  for (let node = flame; node.parent; node = node.parent) ids.unshift(node.id);
  return ids.join(".");
}

/** The frame that a way leads to, or as far as it leads. */
export function flameAt(root: Flame, path: string): Flame {
  let flame = root;
  for (const id of path ? path.split(".") : []) {
    const next = flame.inside.find((inside) => inside.id === id);
    if (!next) break;
    flame = next;
  }
  return flame;
}

/** How many levels lie inside of a frame. */
export const levelsIn = (flame: Flame): number =>
  flame.inside.reduce((levels, inside) => Math.max(levels, 1 + levelsIn(inside)), 0);

/** The frame that an arrow key leads to from another: down is into the largest, up is out, sideways are its neighbors. */
export function neighbor(flame: Flame, key: string): Flame | null {
  const { parent, inside } = flame;
  if (key === "ArrowDown") return inside[0] ?? null;
  if (key === "ArrowUp") return parent;
  return beside(flame, parent?.inside ?? [], key);
}

/** The one before or after among those beside each other. */
export function beside(flame: Flame, siblings: Flame[], key: string): Flame | null {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
  return (by && siblings[siblings.indexOf(flame) + by]) || null;
}
