// One moment's heap as blocks, and what is under a point of it.

import { upperBound } from "../data/search";
import { size } from "../base/format";
import { css, freeColour, mix, shade } from "../base/palette";
import type { Surface } from "../draw/surface";
import {
  type Block,
  blocksOf,
  type Heap,
  heapOf,
  type Hole,
  holeAt,
  type Piece,
} from "../layout/heap";
import type { Space } from "../layout/space";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import type { Theme } from "../state/theme";

const LEFT = 74;
const RIGHT = 14;
const TOP = 4;
const LINE = 16;

export interface Found {
  row: number;
  words: string;
}

export class HeapBlocks {
  private heap: Heap | null = null;
  private blocks: Block[] = [];
  private starts: number[] = [];
  private key = "";

  draw(
    surface: Surface,
    scene: Scene,
    state: State,
    space: Space,
    theme: Theme,
    marked: Uint8Array | null,
  ): void {
    const { track } = scene;
    const width = Math.max(20, surface.width - LEFT - RIGHT);
    const lines = Math.max(1, Math.floor((surface.height - TOP - 2) / LINE));
    const key = [state.track, state.cursor, width, lines].join();
    if (key !== this.key) {
      this.key = key;
      this.heap = heapOf(track, state.cursor, width, lines);
      this.blocks = blocksOf(track, space, state.cursor);
      this.starts = this.blocks.map((block) => block.from);
    }
    const heap = this.heap!;
    const groups = scene.groups(state.by);
    const free = css(freeColour(theme.paper));
    surface.text("heap", LEFT - 8, TOP + LINE / 2 - 1, theme.soft, "right");
    for (const piece of heap.pieces) {
      const y = TOP + piece.line * LINE;
      surface.rect(LEFT + piece.x, y, piece.width, LINE - 3, free);
      const end = piece.from + piece.bytes;
      let painted = -1;
      for (
        let i = Math.max(0, upperBound(this.starts, piece.from) - 1);
        i < this.blocks.length;
        i++
      ) {
        const block = this.blocks[i];
        if (block.from >= end) break;
        const from = Math.max(block.from, piece.from);
        const to = Math.min(block.from + block.bytes, end);
        if (to <= from) continue;
        const x = LEFT + piece.x + (from - piece.from) / heap.bytesPerPixel;
        const wide = (to - from) / heap.bytesPerPixel;
        if (x + wide < painted + 0.5) continue;
        painted = x + wide;
        const group = groups.groups[groups.of[block.row]];
        const colour = shade(group.colour, block.row);
        const pending = track.freed[block.row] <= state.cursor;
        const dim = marked && !marked[block.row];
        const gap = wide > 3 ? 0.6 : 0;
        surface.rect(
          x,
          y,
          Math.max(0.5, wide - gap),
          LINE - 3,
          css(dim ? mix(colour, theme.paper, 0.75) : colour, pending ? 0.45 : 1),
        );
        if (block.row === state.selected)
          surface.line(
            [x, y, x + wide, y, x + wide, y + LINE - 3, x, y + LINE - 3, x, y],
            theme.ink,
            1.5,
          );
      }
    }
    if (!heap.pieces.length)
      surface.text("nothing is reserved here", LEFT, TOP + LINE / 2, theme.soft);
  }

  at(scene: Scene, x: number, y: number): Found | null {
    const { heap } = this;
    if (!heap) return null;
    const line = Math.floor((y - TOP) / LINE);
    const piece = heap.pieces.find(
      (one) => one.line === line && x - LEFT >= one.x && x - LEFT < one.x + one.width,
    );
    if (!piece) return null;
    return this.under(scene, piece, piece.from + (x - LEFT - piece.x) * heap.bytesPerPixel);
  }

  private under(scene: Scene, piece: Piece, address: number): Found {
    const place = upperBound(this.starts, address) - 1;
    const block = this.blocks[place];
    if (block && address < block.from + block.bytes) return { row: block.row, words: "" };
    const hole = holeAt(scene.track, this.blocks, piece.segment, address);
    return hole ? { row: hole.oldest, words: holeWords(hole) } : { row: -1, words: "" };
  }
}

/** A hole in words; whatever is shown beside them is the oldest of the blocks that keep its segment. */
export function holeWords(hole: Hole): string {
  const what = `A hole of ${size(hole.bytes)} in a segment of ${size(hole.segmentBytes)}.`;
  if (!hole.blocks) return `${what} Nothing is in the segment.`;
  return `${what} ${hole.blocks === 1 ? "This block keeps" : `This is the oldest of ${hole.blocks} blocks that keep`} it.`;
}
