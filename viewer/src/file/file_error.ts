// What keeps a file from being shown, in one line.

/** The words stand for themselves: no cause in them comes from a file without having been made visible. */
export class FileError extends Error {}

/** A name or a sentence on one line, with whatever would not show as an escape. */
export const visible = (text: string): string =>
  text.replace(/[\p{C}\p{Z}]/gu, (character) =>
    character === " " ? " " : `\\u{${character.codePointAt(0)!.toString(16)}}`,
  );
