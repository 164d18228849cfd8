// Free stretches of reserved memory at one event, and how long each was free around it.

import type { Numbers } from "./container";
import { upperBound } from "./search";
import type { Track } from "./track";

export interface Holes {
  /** In order of address, bytes after the lowest segment. */
  addresses: Numbers;
  bytes: Numbers;
  total: number;
  event: number;
  /** The event since which each is free, and the one at which it is taken or given back. */
  since: Int32Array;
  until: Int32Array;
}

/** What is known of holes that are free right after an event. */
export function holesOf(track: Track, addresses: Numbers, bytes: Numbers, event: number): Holes {
  const since = new Int32Array(addresses.length).fill(-1);
  const until = new Int32Array(addresses.length).fill(track.events);
  const shift = track.addressShift;
  const overlaps = (from: number, length: number, call: (hole: number) => void): void => {
    let hole = Math.max(0, upperBound(addresses, from) - 1);
    for (; hole < addresses.length && addresses[hole] < from + length; hole++)
      if (addresses[hole] + bytes[hole] > from) call(hole);
  };
  const bound = (born: number, died: number) => (hole: number) => {
    if (died <= event) since[hole] = Math.max(since[hole], died);
    else if (born > event) until[hole] = Math.min(until[hole], born);
  };
  for (let row = 0; row < track.n; row++) {
    const { born, died } = track;
    overlaps(track.row.address[row] + shift, track.taken[row], bound(born[row], died[row]));
  }
  for (let i = 0; i < track.header.segments.n; i++) {
    const [born, died] = [track.segmentBorn[i], track.segment.died[i]];
    if (born > event || died <= event) continue;
    overlaps(track.segment.address[i], track.segment.bytes[i], (hole) => {
      since[hole] = Math.max(since[hole], born);
      until[hole] = Math.min(until[hole], died);
    });
  }
  let total = 0;
  for (const length of bytes) total += length;
  return { addresses, bytes, total, event, since, until };
}
