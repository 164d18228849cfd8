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
import type { Holes } from "../data/holes";
import type { Marked } from "../state/marks";
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
  /** The segment that it lies in; -1 where that is not known. */
  segment: number;
}

/** Holes that a finding is about, in the light and in the dark. */
export const HOLE = ["rgb(179 38 30 / 0.62)", "rgb(255 138 128 / 0.66)"] as const;

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
    marks: Marked | null,
  ): void {
    const marked = marks?.flags ?? null;
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
    const free = css(freeColour(theme.paper));
    surface.text("heap", LEFT - 8, TOP + LINE / 2 - 1, theme.soft, "right");
    for (const piece of heap.pieces) {
      surface.rect(LEFT + piece.x, TOP + piece.line * LINE, piece.width, LINE - 3, free);
      this.drawBlocks(surface, scene, state, theme, piece, marked);
    }
    const holes = marks?.holes;
    if (holes?.event === state.cursor) this.drawHoles(surface, heap, holes, theme);
    if (!heap.pieces.length)
      surface.text("nothing is reserved here", LEFT, TOP + LINE / 2, theme.soft);
  }

  /** The blocks of a piece of a segment; of several under a pixel, the first. */
  private drawBlocks(
    surface: Surface,
    scene: Scene,
    state: State,
    theme: Theme,
    piece: Piece,
    marked: Uint8Array | null,
  ): void {
    const { track } = scene;
    const groups = scene.groups(state.by);
    const scale = this.heap!.bytesPerPixel;
    const y = TOP + piece.line * LINE;
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
      const x = LEFT + piece.x + (from - piece.from) / scale;
      const wide = (to - from) / scale;
      if (to <= from || x + wide < painted + 0.5) continue;
      painted = x + wide;
      const colour = shade(groups.groups[groups.of[block.row]].colour, block.row);
      const isPending = track.freed[block.row] <= state.cursor;
      const isDim = marked !== null && !marked[block.row];
      const fill = css(isDim ? mix(colour, theme.paper, 0.75) : colour, isPending ? 0.45 : 1);
      surface.rect(x, y, Math.max(0.5, wide - (wide > 3 ? 0.6 : 0)), LINE - 3, fill);
      const outline = [x, y, x + wide, y, x + wide, y + LINE - 3, x, y + LINE - 3, x, y];
      if (block.row === state.selected) surface.line(outline, theme.ink, 1.5);
    }
  }

  private drawHoles(surface: Surface, heap: Heap, holes: Holes, theme: Theme): void {
    for (const piece of heap.pieces) {
      const end = piece.from + piece.bytes;
      holes.addresses.forEach((address: number, i: number) => {
        const from = Math.max(address, piece.from);
        const to = Math.min(address + holes.bytes[i], end);
        if (to <= from) return;
        const x = LEFT + piece.x + (from - piece.from) / heap.bytesPerPixel;
        const wide = Math.max(1, (to - from) / heap.bytesPerPixel);
        surface.rect(x, TOP + piece.line * LINE, wide, LINE - 3, HOLE[theme.dark ? 1 : 0]);
      });
    }
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
    const { segment } = piece;
    if (block && address < block.from + block.bytes) return { row: block.row, words: "", segment };
    const hole = holeAt(scene.track, this.blocks, segment, address);
    if (!hole) return { row: -1, words: "", segment };
    return { row: hole.oldest, words: holeWords(hole), segment };
  }
}

/** A hole in words; whatever is shown beside them is the oldest of the blocks that keep its segment. */
export function holeWords(hole: Hole): string {
  const what = `A free block of ${size(hole.bytes)} in a segment of ${size(hole.segmentBytes)}.`;
  if (!hole.blocks) return `${what} Nothing is in the segment.`;
  return `${what} ${hole.blocks === 1 ? "This block keeps" : `This is the oldest of ${hole.blocks} blocks that keep`} it.`;
}
