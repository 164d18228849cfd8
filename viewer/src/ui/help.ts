// The keys, in one place: the help shows what is bound here.

import { h } from "../draw/dom";

const KEYS: [string, string][] = [
  ["W S, wheel", "zoom in and out in time"],
  ["A D, drag", "move in time"],
  ["Q E, Shift + wheel", "zoom in and out in bytes"],
  ["Shift + drag", "zoom into a range"],
  ["← →", "the event before, after; with Shift: 100 at once"],
  ["↑ ↓", "the allocation above, below at the cursor"],
  ["Enter, double click", "the whole life of the chosen allocation"],
  ["P", "the peak"],
  ["O", "the failed request"],
  ["N, Shift + N", "the next finding, the one before"],
  ["K, Shift + K", "the next collective, the one before"],
  ["0", "the whole run"],
  ["C, Shift + C", "colour by the next kind, the one before"],
  ["X", "axis: time or events"],
  ["1 … 5", "memory, addresses, who, compare, ranks"],
  ["← → ↑ ↓ Enter Esc", "in a flame graph: from frame to frame, zoom in, out"],
  ["/", "search files, functions, modules, names: matches stay bright"],
  ["L", "light, dark"],
  ["?", "these keys"],
  ["Esc", "close, or mark nothing"],
];

export function helpDialog(): HTMLDialogElement {
  const dialog = h(
    "dialog",
    { class: "help", "aria-label": "Keys and mouse" },
    h("h2", {}, "Keys and mouse"),
    h(
      "table",
      {},
      h(
        "tbody",
        {},
        ...KEYS.map(([keys, what]) => h("tr", {}, h("th", {}, keys), h("td", {}, what))),
      ),
    ),
    h(
      "p",
      { class: "soft" },
      "The address holds what is shown: copy it to share the place. Nothing leaves this page.",
    ),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}
