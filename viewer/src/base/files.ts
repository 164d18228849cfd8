// Names of files as people read them: without the folders that all packages have in common.

const PACKAGES = /^.*[/\\](?:site|dist)-packages[/\\]/;
const LIBRARY = /^.*[/\\](?:lib|Lib|lib64)[/\\]python3?(?:\.\d+)?t?[/\\]/;

/** `torch/nn/modules/linear.py` for a file of an installed package or of the standard library. */
export const shortFile = (file: string): string => file.replace(PACKAGES, "").replace(LIBRARY, "");

/** A file's folder with its last separator, and its name. */
export function split(file: string): [folder: string, name: string] {
  const end = Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1;
  return [file.slice(0, end), file.slice(end)];
}
