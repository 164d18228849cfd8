// A stack as a list, innermost frame first: the user's own frames marked, runs of plumbing folded.

import { counted } from "../base/format";
import { shortFile, split } from "../base/files";
import type { Place } from "../base/place";
import type { Frame } from "../data/track";
import { fill, h } from "../draw/dom";

const LONGEST = 200;
/** So many frames of plumbing beside each other are folded. */
const FOLDED = 2;

export function stackList(stack: Frame[]): HTMLElement | null {
  if (!stack.length) return null;
  const list = h("ol", { class: "frames" });
  const shown = stack.slice(0, LONGEST);
  const items: HTMLElement[] = [];
  for (let at = 0; at < shown.length;) {
    let next = at;
    while (next < shown.length && shown[next].plumbing) next++;
    const run = shown.slice(at, next);
    // The innermost frame always shows: it is the operation that asked.
    const folded = at === 0 ? run.slice(1) : run;
    if (at === 0 && run.length) items.push(frameItem(run[0]));
    if (folded.length >= FOLDED) items.push(foldedItem(folded));
    else items.push(...folded.map(frameItem));
    if (next < shown.length) items.push(frameItem(shown[next]));
    at = next + 1;
  }
  fill(
    list,
    ...items,
    stack.length > LONGEST && h("li", {}, `… ${counted(stack.length - LONGEST, "more frame")}`),
  );
  return list;
}

function frameItem(frame: Frame): HTMLElement {
  return h(
    "li",
    { class: frame.user ? "user" : "", title: `${frame.file}:${frame.line} in ${frame.function}` },
    h("span", { class: "function" }, frame.function),
    " ",
    placeSpan(frame),
  );
}

/** A file and its line, never cut; where there is no room, its folder is, from its start. */
export function placeSpan({ file, line }: Place): HTMLElement {
  const [folder, name] = split(shortFile(file));
  return h(
    "span",
    { class: "place" },
    h("span", { class: "folder" }, h("bdi", {}, folder)),
    h("span", { class: "file" }, `${name}${line > 0 ? `:${line}` : ""}`),
  );
}

function foldedItem(frames: Frame[]): HTMLElement {
  const names = [...new Set(frames.map((frame) => frame.function))].slice(0, 3).join(", ");
  const item = h("li", { class: "folded" });
  const unfold = (): void => item.replaceWith(...frames.map(frameItem));
  const words = `${counted(frames.length, "frame")} of PyTorch: ${names}`;
  item.append(h("button", { title: "show them", onclick: unfold }, `+ ${words}`));
  return item;
}

/** A stack as text, as Python writes one line a frame. */
export const stackText = (stack: Frame[]): string =>
  stack.map((frame) => `${frame.file}:${frame.line} in ${frame.function}`).join("\n");

/** A button that puts a text on the clipboard. */
export function copyButton(name: string, text: string): HTMLElement {
  const button = h("button", { class: "copy", title: `copy ${name}` }, `copy ${name}`);
  button.addEventListener("click", () => {
    void copy(text).then((done) => {
      button.textContent = done ? "copied" : "not allowed here";
      setTimeout(() => (button.textContent = `copy ${name}`), 1200);
    });
  });
  return button;
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { value: text, "aria-hidden": "true" });
    document.body.append(area);
    area.select();
    // The way of pages of files, which have no other: it is deprecated, and works.
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
