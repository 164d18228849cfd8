// Which bytes are marked: those of a finding, of a group of the legend, or those that a query matches.

import type { Finding } from "../data/header";
import type { Groups } from "../data/groups";
import { type Holes, holesOf } from "../data/holes";
import type { Track } from "../data/track";
import { counted, size } from "../base/format";
import { matches, parse } from "./query";

export interface Marked {
  /** By allocation, whether it is marked; null where what is marked is holes alone. */
  flags: Uint8Array | null;
  count: number;
  holes: Holes | null;
  /** Bytes of the marked allocations that are alive at an event. */
  bytesAt(event: number): number;
}

function markedRows(track: Track, flags: Uint8Array): Marked {
  let count = 0;
  for (let i = 0; i < track.n; i++) count += flags[i];
  return {
    flags,
    count,
    holes: null,
    bytesAt(event) {
      let bytes = 0;
      for (let i = 0; i < track.n; i++) {
        if (flags[i] && track.born[i] <= event && track.died[i] > event)
          bytes += track.row.bytes[i];
      }
      return bytes;
    },
  };
}

/** The blocks and the holes that a finding is about; null where it is about none in particular. */
export function markedByFinding(track: Track, finding: Finding, number: number): Marked | null {
  const mark = track.marks[number];
  if (!mark || !(mark.rows.length || mark.addresses.length)) return null;
  const flags = new Uint8Array(track.n);
  for (const row of mark.rows) flags[row] = 1;
  const blocks = markedRows(track, flags);
  if (!mark.addresses.length) return blocks;
  const holes = holesOf(track, mark.addresses, mark.bytes, finding.event);
  return { ...blocks, flags: mark.rows.length ? flags : null, holes };
}

/** The allocations of one group of the legend. */
export function markedByGroup(track: Track, groups: Groups, group: number): Marked {
  return markedRows(
    track,
    Uint8Array.from(groups.of, (of) => Number(of === group)),
  );
}

/** The allocations that a query matches. */
export function markedBySearch(track: Track, text: string, cursor: number): Marked {
  return markedRows(track, matches(track, parse(text), cursor));
}

/** What is marked, in words. */
export function markedWords(marked: Marked, event: number): string {
  const blocks = `${counted(marked.count, "allocation")} marked, ${size(marked.bytesAt(event))} at the cursor`;
  if (!marked.holes) return blocks;
  const { addresses, total } = marked.holes;
  const holes = `${counted(addresses.length, "free block")} marked, ${size(total)}`;
  return marked.count ? `${blocks}; ${holes}` : holes;
}
