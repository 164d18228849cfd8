// The query language: `>64MiB step:3 line:model.py alive 0x7f00…`, and any other words as a regular expression.

import type { Track } from "../data/track";

export interface Query {
  /** Bytes: at least, and at most. */
  least: number;
  most: number;
  /** Born in these steps, the first and the last; null is any. */
  steps: [number, number] | null;
  /** Part of the line's place, as `file.py:12`. */
  line: string;
  /** Alive at the cursor. */
  alive: boolean;
  /** Never freed in the recording. */
  unfreed: boolean;
  /** An address inside of the block; null is any. */
  address: bigint | null;
  /** What its stack, module, name or category must match. */
  text: string;
}

const UNITS: Record<string, number> = { "": 1, b: 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3 };
const SIZE = /^([<>])=?(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b|bytes?)?$/i;
const STEPS = /^step:(\d+)(?:-(\d+))?$/i;
const LINE = /^line:(.+)$/i;
const ADDRESS = /^0x[\da-f]{4,16}$/i;

const EVERYTHING: Query = {
  least: 0,
  most: Infinity,
  steps: null,
  line: "",
  alive: false,
  unfreed: false,
  address: null,
  text: "",
};

/** A query of words that are each one of the language, or belong to the text. */
export function parse(text: string): Query {
  const query = { ...EVERYTHING };
  const others = text
    .trim()
    .split(/\s+/)
    .filter((word) => word && !read(word, query));
  query.text = others.join(" ");
  return query;
}

/** Takes a word of the language into the query; false where it is none. */
function read(word: string, query: Query): boolean {
  const size = SIZE.exec(word);
  const steps = STEPS.exec(word);
  const line = LINE.exec(word);
  if (size) {
    const bytes = Number(size[2]) * UNITS[size[3].toLowerCase()];
    if (size[1] === ">") query.least = bytes;
    else query.most = bytes;
  } else if (steps) query.steps = [Number(steps[1]), Number(steps[2] ?? steps[1])];
  else if (line) query.line = line[1];
  else if (word.toLowerCase() === "alive") query.alive = true;
  else if (word.toLowerCase() === "unfreed") query.unfreed = true;
  else if (ADDRESS.test(word)) query.address = BigInt(word);
  else return false;
  return true;
}

/** A regular expression where the text is one, else the text itself; case counts only where capitals are typed. */
export function pattern(text: string): RegExp {
  const flags = text === text.toLowerCase() ? "iu" : "u";
  try {
    return new RegExp(text, flags);
  } catch {
    return new RegExp(text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"), flags);
  }
}

/** The text of a query that finds one line again. */
export const lineQuery = (file: string, line: number): string =>
  `line:${(file.split(/[/\\]/).pop() ?? file).replace(/\s/g, "")}:${line}`;

/** By allocation, 1 where the query matches it. */
export function matches(track: Track, query: Query, cursor: number): Uint8Array {
  const flags = new Uint8Array(track.n).fill(1);
  const keep = (condition: (row: number) => boolean): void => {
    for (let i = 0; i < track.n; i++) if (flags[i] && !condition(i)) flags[i] = 0;
  };
  const { row, born, died } = track;
  if (query.least > 0 || query.most < Infinity)
    keep((i) => row.bytes[i] >= query.least && row.bytes[i] <= query.most);
  if (query.steps) {
    const [first, last] = query.steps;
    const from = track.stepStarts[first] ?? Infinity;
    const to = track.stepStarts[last + 1] ?? track.events;
    keep((i) => born[i] >= from && born[i] < to);
  }
  if (query.alive) keep((i) => born[i] <= cursor && died[i] > cursor);
  if (query.unfreed) keep((i) => died[i] >= track.events);
  if (query.address !== null) {
    const at = Number(query.address - BigInt(track.header.rows.base));
    keep((i) => row.address[i] <= at && at < row.address[i] + Math.max(1, track.taken[i]));
  }
  if (query.line) keep(ofLine(track, query.line));
  if (query.text) keep(ofText(track, query.text));
  return flags;
}

/** Whether a line of the user's, or of a library where the request was made, holds a text. */
function ofLine(track: Track, text: string): (row: number) => boolean {
  const wanted = text.toLowerCase();
  const ends = /:\d+$/.test(wanted);
  const has = (file: string, line: number): boolean => {
    const place = `${file.slice(-300)}:${line}`.toLowerCase();
    return ends ? place.endsWith(wanted) : place.includes(wanted);
  };
  const lines = track.header.lines.map(([file, line]) => has(track.text(file), line));
  const codes = track.codes.places.map((place) => place !== null && has(place.file, place.line));
  return (i) => Boolean(lines[track.row.line[i] - 1]) || codes[track.codes.of[i]];
}

/** Whether a stack, line, module, name or category matches a text. */
function ofText(track: Track, text: string): (row: number) => boolean {
  const wanted = pattern(text);
  const { frames, header, row } = track;
  const texts = header.texts.map((text) => wanted.test(text.slice(0, 400)));
  const frameHit = Uint8Array.from(frames.file, (file, i) => {
    if (texts[file] || texts[frames.function[i]]) return 1;
    return wanted.test(`${track.text(file).slice(-300)}:${frames.line[i]}`) ? 1 : 0;
  });
  const stacks = new Uint8Array(frames.starts.length + 1);
  for (let s = 0; s + 1 < frames.starts.length; s++) {
    for (let at = frames.starts[s]; at < frames.starts[s + 1]; at++)
      if (frameHit[frames.of_stacks[at]]) stacks[s + 1] = 1;
  }
  const lines = header.lines.map(
    ([file, number, name]) =>
      texts[file] || texts[name] || wanted.test(`${track.text(file).slice(-300)}:${number}`),
  );
  const modules = header.modules.map((module) => texts[module]);
  const names = header.rows.names.map((name) => texts[name]);
  const categories = header.categories.map((name) => wanted.test(name.replaceAll("_", " ")));
  return (i) =>
    stacks[row.stack[i]] === 1 ||
    Boolean(lines[row.line[i] - 1]) ||
    Boolean(modules[row.module[i] - 1]) ||
    Boolean(names[row.name[i] - 1]) ||
    Boolean(categories[row.category[i]]);
}
