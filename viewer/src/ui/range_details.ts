// What happens in a range of events, in words and as a table: what is born in it, what goes, what stays.

import { count, counted, size } from "../base/format";
import { knownOf } from "../data/groups";
import type { Track } from "../data/track";
import { bytesOf, rangeOf, type RangeRow, rangeRows } from "../layout/range";
import { TABLES, type TableKind } from "../layout/tally";
import { fill, h } from "../draw/dom";
import type { Host } from "../state/pane";
import { rangeName, rangeWords } from "../views/ruler";

const MOST = 100;

export function rangeDetails(
  host: Host,
  range: [number, number],
  zoomIn: () => void,
): HTMLElement[] {
  const scene = host.scene();
  const { track } = scene;
  const asked = rangeOf(track, ...range);
  const figure = (rows: number[], words: string): HTMLElement =>
    h(
      "tr",
      {},
      h("td", { class: "number" }, size(bytesOf(track, rows))),
      h("td", {}, `${words} (${counted(rows.length, "allocation")})`),
    );
  const facts = h(
    "div",
    { class: "facts" },
    h("div", { class: "size" }, rangeName(scene, range)),
    h("div", { class: "soft" }, rangeWords(track, range)),
    h(
      "table",
      { class: "figures" },
      h(
        "tbody",
        {},
        figure(asked.born, "born in it"),
        figure(asked.freed, "freed in it"),
        figure(asked.kept, "born in it and kept after it"),
        figure(asked.unfreed, "born in it and never freed"),
      ),
    ),
    h("div", { class: "soft" }, `${size(asked.before)} before it, ${size(asked.after)} after it`),
    h(
      "div",
      { class: "buttons" },
      h("button", { title: "Z", onclick: zoomIn }, "zoom to it"),
      h("button", { title: "Esc", onclick: () => host.store.set({ range: null }) }, "close"),
    ),
  );
  const table = h("div", { class: "range-rows" });
  const show = (kind: TableKind): void =>
    fill(table, kinds(track, kind, show), rowsTable(host, rangeRows(track, asked, kind)));
  show("line");
  return [facts, table];
}

function kinds(track: Track, shown: TableKind, show: (kind: TableKind) => void): HTMLElement {
  return h(
    "span",
    { class: "switch", role: "group", "aria-label": "the range by" },
    ...knownOf(track, TABLES).map((kind) =>
      h("button", { "aria-pressed": String(kind === shown), onclick: () => show(kind) }, kind),
    ),
  );
}

function rowsTable(host: Host, rows: RangeRow[]): HTMLElement {
  const number = (bytes: number): HTMLElement =>
    h("td", { class: "number" }, bytes ? size(bytes) : "");
  return h(
    "table",
    { class: "plain" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...["kept", "born", "freed"].map((name) =>
          h("th", { class: "number", scope: "col" }, name),
        ),
        h("th", { scope: "col" }, "by"),
      ),
    ),
    h(
      "tbody",
      {},
      ...rows.slice(0, MOST).map((row) =>
        h(
          "tr",
          {},
          number(row.kept),
          number(row.born),
          number(row.freed),
          h(
            "td",
            { class: "who" },
            h(
              "button",
              {
                class: "link",
                title: row.long,
                onclick: () => host.store.set({ selected: row.example }),
              },
              row.name,
            ),
          ),
        ),
      ),
      rows.length > MOST &&
        h("tr", {}, h("td", { colSpan: 4 }, `and ${count(rows.length - MOST)} more`)),
    ),
  );
}
