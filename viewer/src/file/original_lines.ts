// The lines that the user wrote, in stacks of compiled programs (src/vramlens/read/tables/original_lines.py).

import type { Snapshot } from "./snapshot";
import type { Wide } from "./wide";

const FIELD = "fx_original_trace";
const LINE = /^[^\S\n]*File "([^"\n]{1,4096})", line (\d{1,9}), in (.{1,1000})$/gm;
const LONGEST = 1 << 16;
const MOST_LINES = 64;
/** Lines that are added in all, and for each frame of a stack: a file can name one frame a million times. */
const ADDED_ALWAYS = 1 << 16;
const ADDED_PER_FRAME = 8;
/** A cell of text (native/value.h): its kind in four bits, then the text's id. */
const TEXT = 6n;
const KIND_BITS = 4n;

export interface FrameTables {
  file: Wide;
  name: Wide;
  line: Wide;
  /** The frames of all stacks, and where each stack begins. */
  frames: Wide;
  starts: Wide;
}

/** The tables with the user's lines behind each frame of code that torch.compile wrote. */
export function withOriginalLines(snapshot: Snapshot, tables: FrameTables): FrameTables {
  const file = [...tables.file];
  const name = [...tables.name];
  const line = [...tables.line];
  const numbers = new Map<string, number>();
  const linesOfFrame = new Map<number, number[]>();
  const linesOfText = new Map<string, number[]>();
  for (const [frame, text] of tracesOf(snapshot)) {
    let ids = linesOfText.get(text);
    if (!ids) linesOfText.set(text, (ids = idsOf(text)));
    if (ids.length) linesOfFrame.set(frame, ids);
  }
  if (!linesOfFrame.size) return tables;
  return { ...inserted(tables, linesOfFrame), ...columnsOf({ file, name, line }) };

  /** The numbers of the lines that a text names, innermost first. */
  function idsOf(text: string): number[] {
    const lines = [...text.slice(0, LONGEST).matchAll(LINE)].slice(-MOST_LINES).reverse();
    return lines.map((match) => {
      let number = numbers.get(match[0].trim());
      if (number === undefined) {
        numbers.set(match[0].trim(), (number = file.length));
        file.push(snapshot.addText(match[1]));
        line.push(Number(match[2]));
        name.push(snapshot.addText(match[3]));
      }
      return number;
    });
  }
}

/** By frame of compiled code, the text that names its lines. */
function* tracesOf(snapshot: Snapshot): Generator<[number, string]> {
  const keys = snapshot.numbers("frames.extra_key");
  if (!keys.length) return;
  const rows = snapshot.numbers("frames.extra_row");
  const cells = snapshot.raw("frames.extra_value") as BigUint64Array;
  for (let i = 0; i < keys.length; i++)
    if (snapshot.text(keys[i]) === FIELD && (cells[i] & 15n) === TEXT)
      yield [rows[i], snapshot.text(Number(cells[i] >> KIND_BITS))];
}

function inserted(
  { frames, starts }: FrameTables,
  linesOfFrame: Map<number, number[]>,
): Pick<FrameTables, "frames" | "starts"> {
  const most = ADDED_ALWAYS + ADDED_PER_FRAME * frames.length;
  const added = new Uint8Array(frames.length);
  let count = 0;
  for (let at = 0; at < frames.length; at++) {
    const lines = linesOfFrame.get(frames[at])?.length ?? 0;
    if (count + lines > most) break;
    added[at] = lines;
    count += lines;
  }
  const all = new Float64Array(frames.length + count);
  const begins = new Float64Array(starts.length);
  let end = 0;
  for (let stack = 0; stack + 1 < starts.length; stack++) {
    for (let at = starts[stack]; at < starts[stack + 1]; at++) {
      all[end++] = frames[at];
      if (added[at]) all.set(linesOfFrame.get(frames[at])!, end);
      end += added[at];
    }
    begins[stack + 1] = end;
  }
  return { frames: all, starts: begins };
}

const columnsOf = <Name extends string>(columns: Record<Name, number[]>): Record<Name, Wide> =>
  Object.fromEntries(
    Object.entries<number[]>(columns).map(([name, values]) => [name, Float64Array.from(values)]),
  ) as unknown as Record<Name, Wide>;
