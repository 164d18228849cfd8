// Blocks and segments in words: what a block takes, whether it waits, which pool a segment is of and who made it.

import { css } from "../base/palette";
import { shortPlace, size } from "../base/format";
import type { GroupingName } from "../data/groups";
import type { Track } from "../data/track";
import { h } from "../draw/dom";
import type { Scene } from "../state/scene";
import { swatch } from "./swatch";

/** A segment of the small pool is of this size (c10/cuda/CUDACachingAllocator.cpp: kSmallBuffer). */
const SMALL_SEGMENT = 2 << 20;

/** A block: its size, its group, its line, what rounding adds, and what it waits for. */
export function blockWords(
  scene: Scene,
  by: GroupingName,
  row: number,
  cursor: number,
): HTMLElement[] {
  const { track } = scene;
  const groups = scene.groups(by);
  const group = groups.groups[groups.of[row]];
  const line = track.line(row);
  const slack = track.taken[row] - track.row.bytes[row];
  const isPending = track.freed[row] <= cursor && track.died[row] > cursor;
  const parts = [
    h(
      "div",
      {},
      swatch(css(group.colour)),
      h("b", {}, size(track.row.bytes[row])),
      ` ${group.name}`,
    ),
  ];
  if (line) parts.push(h("div", {}, shortPlace(line)));
  if (slack > 0) parts.push(h("div", { class: "soft" }, `rounded up by ${size(slack)}`));
  if (isPending)
    parts.push(h("div", { class: "soft" }, "freed by the program, and waiting for a stream"));
  return parts;
}

function poolOf(track: Track, segment: number): string {
  const pool = track.header.pools[track.segment.pool[segment] - 1];
  if (pool && (pool[0] || pool[1])) return `private pool (${pool[0]}, ${pool[1]})`;
  if (track.segment.expandable[segment]) return "expandable segment";
  return track.segment.bytes[segment] === SMALL_SEGMENT ? "small pool" : "large pool";
}

/** What stands beside the first segment at an address. */
export function segmentLabel(track: Track, address: number): string {
  const at = track.segment.address.findIndex((start: number) => start === address);
  if (at < 0) return "";
  const stream = track.header.segments.streams[at] ?? "0";
  return `${poolOf(track, at)}${stream === "0" ? "" : `, stream ${stream}`}`;
}

/** A segment: its size and pool, and the line whose request made it. */
export function segmentWords(track: Track, segment: number): string {
  const frames = track.stack(track.segment.stack[segment]);
  const asked = frames.find((frame) => frame.user) ?? frames.find((frame) => !frame.plumbing);
  const made = asked ? `, made for ${shortPlace(asked)}` : "";
  return `in a segment of ${size(track.segment.bytes[segment])} (${poolOf(track, segment)})${made}`;
}
