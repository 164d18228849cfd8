// The address space that a run used: its ranges one upon the other, in order of address, without the empty stretches between.

import { upperBound } from "../data/search";
import type { Track } from "../data/track";

export class Space {
  /** By range: where it begins (bytes after the lowest segment), and how many bytes lie below it in the picture. */
  readonly starts: Float64Array;
  readonly below: Float64Array;
  readonly sizes: Float64Array;
  /** Bytes of all ranges, and of the thin gaps that keep them apart. */
  readonly total: number;
  /** What to add to an allocation's address to make it one of a segment's. */
  private readonly shift: number;

  constructor(private readonly track: Track) {
    const { header, segment, row } = track;
    this.shift = track.addressShift;
    const ranges: [number, number][] = [];
    for (let i = 0; i < header.segments.n; i++)
      ranges.push([segment.address[i], segment.address[i] + segment.bytes[i]]);
    for (let i = 0; i < track.n; i++)
      if (!row.segment[i]) ranges.push([this.address(i), this.address(i) + track.taken[i]]);
    ranges.sort((a, b) => a[0] - b[0]);
    const joined: [number, number][] = [];
    for (const [from, to] of ranges) {
      const last = joined[joined.length - 1];
      if (last && from <= last[1]) last[1] = Math.max(last[1], to);
      else joined.push([from, to]);
    }
    const bytes = joined.reduce((sum, [from, to]) => sum + to - from, 0);
    const gap = (bytes * 0.05) / Math.max(24, joined.length);
    this.starts = Float64Array.from(joined, ([from]) => from);
    this.sizes = Float64Array.from(joined, ([from, to]) => to - from);
    this.below = new Float64Array(joined.length);
    let at = 0;
    joined.forEach((_, i) => {
      this.below[i] = at;
      at += this.sizes[i] + gap;
    });
    this.total = Math.max(1, at - (joined.length ? gap : 0));
  }

  /** An allocation's address, in bytes after the lowest segment. */
  address(row: number): number {
    return this.track.row.address[row] + this.shift;
  }

  /** How far up the picture an address is; -1 where nothing was ever reserved. */
  height(address: number): number {
    const range = upperBound(this.starts, address) - 1;
    if (range < 0 || address > this.starts[range] + this.sizes[range]) return -1;
    return this.below[range] + address - this.starts[range];
  }

  /** The address at a height; -1 in a gap. */
  addressAt(height: number): number {
    const range = upperBound(this.below, height) - 1;
    if (range < 0 || height - this.below[range] >= this.sizes[range]) return -1;
    return this.starts[range] + height - this.below[range];
  }
}
