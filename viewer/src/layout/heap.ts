// One moment's heap: the reserved segments, one after the other in lines, at a scale at which all of them fit.

import type { Track } from "../data/track";
import type { Space } from "./space";

export interface Piece {
  x: number;
  line: number;
  width: number;
  /** The bytes after the lowest segment that the piece begins at. */
  from: number;
  bytes: number;
  segment: number;
}

export interface Heap {
  pieces: Piece[];
  lines: number;
  bytesPerPixel: number;
  event: number;
}

const GAP = 5;

/** The segments alive after an event as pieces of lines; a segment longer than a line goes on in the next. */
export function heapOf(track: Track, event: number, width: number, mostLines: number): Heap {
  const segments = track
    .segmentsAlive(event)
    .sort((a, b) => track.segment.address[a] - track.segment.address[b]);
  const total = segments.reduce((sum, i) => sum + track.segment.bytes[i], 0);
  let scale = Math.max(1, total / (width * mostLines));
  let placed = place(track, segments, width, scale);
  for (let tries = 0; placed.lines > mostLines && tries < 40; tries++)
    placed = place(track, segments, width, (scale *= 1.12));
  return { ...placed, bytesPerPixel: scale, event };
}

function place(
  track: Track,
  segments: number[],
  width: number,
  scale: number,
): { pieces: Piece[]; lines: number } {
  const pieces: Piece[] = [];
  let x = 0;
  let line = 0;
  for (const segment of segments) {
    let from = track.segment.address[segment];
    let left = track.segment.bytes[segment];
    if (x > 0 && x + left / scale > width && (left / scale < width * 0.5 || x > width * 0.75)) {
      x = 0;
      line++;
    }
    while (left > 0) {
      const wide = Math.max(2, Math.min(width - x, left / scale));
      const bytes = Math.min(left, wide * scale);
      pieces.push({ x, line, width: wide, from, bytes, segment });
      from += bytes;
      left -= bytes;
      x += wide;
      if (left > 0) {
        x = 0;
        line++;
      }
    }
    x += GAP;
    if (x >= width - 2) {
      x = 0;
      line++;
    }
  }
  return { pieces, lines: line + 1 };
}

export interface Block {
  row: number;
  from: number;
  bytes: number;
}

export interface Hole {
  bytes: number;
  segmentBytes: number;
  /** How many blocks keep the segment, and the oldest of them; -1 for none. */
  blocks: number;
  oldest: number;
}

/** The free stretch at an address of a segment, among the blocks alive; null where a block lies there. */
export function holeAt(
  track: Track,
  blocks: Block[],
  segment: number,
  address: number,
): Hole | null {
  const start = track.segment.address[segment];
  const end = start + track.segment.bytes[segment];
  let from = start;
  let to = end;
  let oldest = -1;
  let count = 0;
  for (const block of blocks) {
    if (block.from >= end || block.from + block.bytes <= start) continue;
    if (address >= block.from && address < block.from + block.bytes) return null;
    if (block.from + block.bytes <= address) from = Math.max(from, block.from + block.bytes);
    else to = Math.min(to, block.from);
    if (oldest < 0 || track.born[block.row] < track.born[oldest]) oldest = block.row;
    count++;
  }
  return { bytes: to - from, segmentBytes: end - start, blocks: count, oldest };
}

/** The allocations alive after an event, by address. */
export function blocksOf(track: Track, space: Space, event: number): Block[] {
  return track
    .alive(event)
    .map((row) => ({ row, from: space.address(row), bytes: track.taken[row] }))
    .sort((a, b) => a.from - b.from);
}
