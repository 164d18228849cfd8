// Stacks and frames of a snapshot as a page has them, and which frame of each is the user's (src/vramlens/trace/stacks.py).

import type { TrackHeader } from "../data/header";
import { withOriginalLines } from "./original_lines";
import type { PreparedColumns } from "./prepared";
import type { Rules } from "./rules";
import type { Snapshot } from "./snapshot";
import type { Texts } from "./texts";
import type { Wide } from "./wide";

export const NO_FRAME = -1;

/** Kinds of frames, as a page numbers them: PyTorch's plumbing, a library's code, the user's own. */
const PLUMBING = 0;
const LIBRARY = 1;
const USER = 2;

export class Stacks {
  private readonly file: Wide;
  private readonly name: Wide;
  private readonly line: Wide;
  private readonly frames: Wide;
  private readonly starts: Wide;
  private readonly kind: Uint8Array;
  /** By stack, whether an optimizer asked, and not what it called back into. */
  readonly optimizers: Uint8Array;
  /** By stack, its innermost frame of the user's; -1 where it has none. */
  readonly userFrame: Int32Array;

  constructor(
    private readonly snapshot: Snapshot,
    rules: Rules,
  ) {
    const tables = withOriginalLines(snapshot, {
      file: snapshot.numbers("frames.file"),
      name: snapshot.numbers("frames.name"),
      line: snapshot.numbers("frames.line"),
      frames: snapshot.numbers("stacks.frames"),
      starts: snapshot.numbers("stacks.starts"),
    });
    this.file = tables.file;
    this.name = tables.name;
    this.line = tables.line;
    this.frames = tables.frames;
    this.starts = tables.starts;
    const kinds = new Map<number, number>();
    this.kind = Uint8Array.from(this.file, (file) => {
      let kind = kinds.get(file);
      if (kind === undefined) kinds.set(file, (kind = kindOf(snapshot.text(file), rules)));
      return kind;
    });
    this.userFrame = this.innermost(this.isAtLeast(USER));
    const isOptimizers = this.matching(rules.optimizerFrame, rules.longestName);
    const isCalledBack = this.matching(rules.calledBack, rules.longestName);
    const deciding = this.innermost((frame) => isOptimizers(frame) || isCalledBack(frame));
    this.optimizers = Uint8Array.from(deciding, (frame) =>
      Number(frame !== NO_FRAME && isOptimizers(frame)),
    );
  }

  get count(): number {
    return Math.max(0, this.starts.length - 1);
  }

  /** The frames as columns of a page. */
  header(columns: PreparedColumns, texts: Texts): TrackHeader["frames"] {
    const numbered = (ids: Wide) => Uint32Array.from(ids, (id) => texts.number(this.snapshot, id));
    return {
      file: columns.add(numbered(this.file)),
      function: columns.add(numbered(this.name)),
      line: columns.add(this.line),
      kind: columns.add(this.kind),
      code: columns.add(this.innermost(this.isAtLeast(LIBRARY)).map((frame) => frame + 1)),
      of_stacks: columns.add(this.frames),
      starts: columns.add(this.starts),
    };
  }

  /** A frame as a page names a line: file, line, function. */
  place(frame: number, texts: Texts): [number, number, number] {
    return [
      texts.number(this.snapshot, this.file[frame]),
      Math.max(0, this.line[frame]),
      texts.number(this.snapshot, this.name[frame]),
    ];
  }

  private isAtLeast(kind: number): (frame: number) => boolean {
    return (frame) => this.kind[frame] >= kind;
  }

  /** Whether a frame's file:function matches; each frame is looked at once. */
  private matching(pattern: RegExp, longestName: number): (frame: number) => boolean {
    const end = (id: number): string => this.snapshot.text(id).slice(-longestName);
    const flags = Uint8Array.from(this.file, (file, frame) =>
      Number(pattern.test(`${end(file)}:${end(this.name[frame])}`)),
    );
    return (frame) => flags[frame] > 0;
  }

  /** By stack, its innermost frame of some. */
  private innermost(isWanted: (frame: number) => boolean): Int32Array {
    const found = new Int32Array(this.count).fill(NO_FRAME);
    for (let stack = 0; stack < found.length; stack++) {
      let at = this.starts[stack];
      const end = this.starts[stack + 1];
      while (at < end && !isWanted(this.frames[at])) at++;
      if (at < end) found[stack] = this.frames[at];
    }
    return found;
  }
}

function kindOf(file: string, { notTheUsers, plumbing, longestName }: Rules): number {
  const end = file.slice(-longestName);
  if (!notTheUsers.test(end)) return USER;
  return plumbing.test(end) ? PLUMBING : LIBRARY;
}
