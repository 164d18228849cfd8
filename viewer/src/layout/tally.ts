// Who holds it: bytes added up by line, module, category, phase or stack, and as a tree of frames.

import type { Frame, Track } from "../data/track";
import { longPlace, shortPlace } from "../base/format";

export const TABLES = ["line", "code", "module", "category", "phase", "stack"] as const;
export type TableKind = (typeof TABLES)[number];

/** Some allocations, and how much each counts: bytes, or bytes times how long they lived. */
export interface Weighed {
  rows: ArrayLike<number>;
  weight: (row: number) => number;
  /** What a weight is: bytes, or byte-seconds. */
  unit: "bytes" | "byte-seconds" | "byte-events";
}

export function weighAt(track: Track, event: number): Weighed {
  return { rows: track.alive(event), weight: (row) => track.row.bytes[row], unit: "bytes" };
}

/** Those of some allocations that are marked. */
export function among(weighed: Weighed, flags: Uint8Array): Weighed {
  return { ...weighed, rows: Array.from(weighed.rows).filter((row) => flags[row]) };
}

/** Every allocation that lives in [from, to], times how long of it. */
export function weighLifetimes(track: Track, from: number, to: number): Weighed {
  const rows: number[] = [];
  for (let row = 0; row < track.n && track.born[row] <= to; row++)
    if (track.died[row] > from) rows.push(row);
  const timed = track.header.timed;
  const length = (row: number): number => {
    const born = Math.max(track.born[row], from);
    const died = Math.min(track.died[row], to);
    return timed ? (track.timeOf(died) - track.timeOf(born)) / 1e6 : died - born;
  };
  return {
    rows,
    weight: (row) => track.row.bytes[row] * length(row),
    unit: timed ? "byte-seconds" : "byte-events",
  };
}

export interface Entry {
  key: number;
  name: string;
  /** The name in full. */
  long: string;
  weight: number;
  count: number;
  /** An allocation of the entry: the heaviest. */
  example: number;
}

export function tally(track: Track, weighed: Weighed, kind: TableKind): Entry[] {
  const ids = kind === "code" ? track.codes.of : track.row[kind];
  const found = new Map<number, Entry & { most: number }>();
  for (let i = 0; i < weighed.rows.length; i++) {
    const row = weighed.rows[i];
    const key = ids[row];
    const weight = weighed.weight(row);
    let entry = found.get(key);
    if (!entry)
      found.set(
        key,
        (entry = { key, name: "", long: "", weight: 0, count: 0, example: row, most: -1 }),
      );
    entry.weight += weight;
    entry.count++;
    if (weight > entry.most) [entry.most, entry.example] = [weight, row];
  }
  return [...found.values()].map(({ key, weight, count, example }) => ({
    key,
    weight,
    count,
    example,
    ...named(track, kind, key),
  }));
}

function named(track: Track, kind: TableKind, key: number): { name: string; long: string } {
  const same = (name: string) => ({ name, long: name });
  switch (kind) {
    case "line": {
      const place = track.header.lines[key - 1];
      if (!place) return same("no line of yours");
      const at = { file: track.text(place[0]), line: place[1], function: track.text(place[2]) };
      return { name: shortPlace(at), long: `${longPlace(at)} in ${at.function}` };
    }
    case "code": {
      const place = track.codes.places[key];
      if (!place) return same("no line of code");
      return { name: shortPlace(place), long: `${longPlace(place)} in ${place.function}` };
    }
    case "module":
      return same(key ? track.text(track.header.modules[key - 1]) : "outside modules");
    case "category":
      return same((track.header.categories[key] ?? "").replaceAll("_", " "));
    case "phase":
      return same(track.header.phases[key] ?? "");
    case "stack": {
      const frames = track.stack(key);
      const first = frames.find((frame) => frame.user) ?? frames[0];
      return first
        ? { name: shortPlace(first), long: frames.map(shortPlace).join(" < ") }
        : same("no stack");
    }
  }
}

/** A module with what is inside it. */
export interface Branch {
  path: string;
  depth: number;
  weight: number;
  count: number;
  example: number;
  leaf: boolean;
}

/** Modules as a tree, in the order in which it is printed: each before what is inside it, the heaviest first. */
export function moduleTree(entries: Entry[]): Branch[] {
  interface Node extends Branch {
    inside: Map<string, Node>;
  }
  const root: Node = {
    path: "",
    depth: -1,
    weight: 0,
    count: 0,
    example: -1,
    leaf: false,
    inside: new Map(),
  };
  for (const entry of entries) {
    let node = root;
    const parts = entry.key ? entry.name.split(".") : [entry.name];
    parts.forEach((part, depth) => {
      let next = node.inside.get(part);
      const path = node.path ? `${node.path}.${part}` : part;
      if (!next)
        node.inside.set(
          part,
          (next = {
            path,
            depth,
            weight: 0,
            count: 0,
            example: entry.example,
            leaf: true,
            inside: new Map(),
          }),
        );
      node.leaf = false;
      next.weight += entry.weight;
      next.count += entry.count;
      node = next;
    });
  }
  const found: Branch[] = [];
  const walk = (node: Node): void => {
    for (const next of [...node.inside.values()].sort((a, b) => b.weight - a.weight)) {
      found.push(next);
      walk(next);
    }
  };
  walk(root);
  return found;
}

/** A frame in a tree of stacks, outermost first. */
export interface Flame {
  name: string;
  long: string;
  user: boolean;
  weight: number;
  depth: number;
  parent: Flame | null;
  inside: Flame[];
  example: number;
}

/** Of deeper stacks (a recursion that went wild) the middle is left out. */
const DEEPEST = 400;

/** Whose frames: the user's alone, a library's code as well, or every one. */
export type FrameKind = "own" | "code" | "all";

/** Of those that are left out, the innermost frame stays: what of PyTorch was called. */
export function flameOf(
  track: Track,
  weighed: Weighed,
  total: string,
  kind: FrameKind = "all",
): Flame {
  const isShown = (frame: Frame): boolean =>
    kind === "all" || frame.user || (kind === "code" && !frame.plumbing);
  const sums = new Map<number, [number, number]>();
  for (let i = 0; i < weighed.rows.length; i++) {
    const row = weighed.rows[i];
    const stack = track.row.stack[row];
    const { starts } = track.frames;
    // Without a stack of its own, or with an empty one, an allocation belongs to the line that it was lent.
    const key =
      (stack && starts[stack] > starts[stack - 1] ? stack : 0) || -1 - track.row.line[row];
    const sum = sums.get(key);
    if (sum) sum[0] += weighed.weight(row);
    else sums.set(key, [weighed.weight(row), row]);
  }
  const root: Flame = {
    name: total,
    long: total,
    user: true,
    weight: 0,
    depth: 0,
    parent: null,
    inside: [],
    example: -1,
  };
  const known = new Map<Flame, Map<string, Flame>>();
  const into = (
    node: Flame,
    name: string,
    long: string,
    user: boolean,
    weight: number,
    example: number,
  ): Flame => {
    let names = known.get(node);
    if (!names) known.set(node, (names = new Map<string, Flame>()));
    let next = names.get(long);
    if (!next) {
      next = {
        name,
        long,
        user,
        weight: 0,
        depth: node.depth + 1,
        parent: node,
        inside: [],
        example,
      };
      names.set(long, next);
      node.inside.push(next);
    }
    next.weight += weight;
    return next;
  };
  for (const [key, [weight, example]] of sums) {
    root.weight += weight;
    if (key > 0) {
      let node = root;
      const stack = track.stack(key);
      const shown = stack.filter((frame, i) => i === 0 || isShown(frame)).reverse();
      if (shown.length > DEEPEST) shown.splice(DEEPEST / 2, shown.length - DEEPEST);
      for (const frame of shown) {
        node = into(
          node,
          shortPlace(frame),
          `${longPlace(frame)} in ${frame.function}`,
          frame.user,
          weight,
          example,
        );
      }
      continue;
    }
    const lost = into(root, "no stack (PyTorch's own threads)", "no stack", false, weight, example);
    const line = named(track, "line", -1 - key);
    if (key < -1)
      into(lost, `likely for ${line.name}`, `likely for ${line.long}`, true, weight, example);
  }
  const sort = (node: Flame): void => {
    node.inside.sort((a, b) => b.weight - a.weight);
    node.inside.forEach(sort);
  };
  sort(root);
  joinChains(root);
  return root;
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
      last = last.inside[0]!;
      names.push(last.name);
    }
    if (names.length < 3) continue;
    first.name = `${names[0]} … ${names[names.length - 1]}`;
    first.long = names.join(" > ");
    first.user = last.user;
    first.inside = last.inside;
    const raise = (node: Flame, parent: Flame): void => {
      node.parent = parent;
      node.depth = parent.depth + 1;
      for (const inside of node.inside) raise(inside, node);
    };
    for (const inside of first.inside) raise(inside, first);
  }
}
