// The keys, in one place: the help shows what is bound here.

import { h } from "../draw/dom";

const KEYS: [string, string][] = [
  ["W S, wheel", "zoom in and out in time, around the pointer or else the cursor"],
  ["A D, drag", "move in time"],
  ["Q E, Shift + wheel", "zoom in and out in bytes, or in addresses"],
  ["0, F", "the whole run; fit the height to what is shown"],
  ["Shift + drag, a click on a step", "ask a range: what is born, freed and kept in it"],
  ["Z", "zoom into the range that is asked about"],
  ["← →", "the event before, after; with Shift: 100 at once"],
  ["↑ ↓", "the allocation above, below at the cursor"],
  ["Enter, double click", "the whole life of the chosen allocation"],
  ["P, O, End", "the peak, the failed request, the last event"],
  ["N, K; with Shift: back", "the next finding, the next collective"],
  ["/, then ] and [", "search; the next match, the one before"],
  ["U, Shift + U, Back", "undo, redo a change of the view; the place before"],
  ["C, Shift + C", "color by the next kind, the one before"],
  ["a click on the legend", "marks a group; a double click shows it alone"],
  ["X", "axis: time or events"],
  ["1 … 6", "memory, addresses, who, list, compare, ranks"],
  ["← → ↑ ↓ Enter Esc", "in a flame graph: from frame to frame, zoom in, out"],
  ["V", "callers and callees of the frame, and back to the flame graph"],
  ["L", "light, dark"],
  ["Esc", "close, or mark nothing"],
];

const WORDS: [string, string][] = [
  [">64MiB, <1KiB", "at least, at most so large"],
  ["step:3, step:3-5", "born in these steps"],
  ["line:model.py:12", "asked for by this file or line"],
  ["alive, unfreed", "alive at the cursor; never freed in the recording"],
  ["0x7f00a000", "the block at an address"],
  ["anything else", "a regular expression for files, functions, modules and names"],
];

const rows = (pairs: [string, string][]): HTMLElement =>
  h(
    "table",
    {},
    h(
      "tbody",
      {},
      ...pairs.map(([keys, what]) =>
        h("tr", {}, h("th", { scope: "row" }, keys), h("td", {}, what)),
      ),
    ),
  );

export function helpDialog(): HTMLDialogElement {
  const dialog = h(
    "dialog",
    { class: "help", "aria-label": "Keys and mouse" },
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")),
    h("h2", {}, "Keys and mouse"),
    rows(KEYS),
    h("h2", {}, "Search"),
    rows(WORDS),
    h(
      "p",
      { class: "soft" },
      "The address holds what is shown: copy it to share the place. Nothing leaves this page.",
    ),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}
