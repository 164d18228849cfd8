// Who holds it: bytes added up by line, module, category, phase or stack.

import type { Track } from "../data/track";
import { longPlace, shortPlace } from "../base/format";

export const TABLES = ["line", "code", "module", "category", "phase", "stack"] as const;
export type TableKind = (typeof TABLES)[number];

/** Some allocations, and how much each counts: bytes, or bytes times how long they lived. */
export interface Weighed {
  rows: ArrayLike<number>;
  weight: (row: number) => number;
  /** What a weight is: bytes, or bytes times seconds or events. */
  unit: "bytes" | "byte-seconds" | "byte-events";
}

export function weighAt(track: Track, event: number): Weighed {
  return { rows: track.alive(event), weight: (row) => track.row.bytes[row], unit: "bytes" };
}

/** Those of some allocations that are marked. */
export function among(weighed: Weighed, flags: Uint8Array): Weighed {
  return { ...weighed, rows: Array.from(weighed.rows).filter((row) => flags[row]) };
}

export function totalOf({ rows, weight }: Weighed): number {
  let total = 0;
  for (let i = 0; i < rows.length; i++) total += weight(rows[i]);
  return total;
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

export function named(track: Track, kind: TableKind, key: number): { name: string; long: string } {
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
