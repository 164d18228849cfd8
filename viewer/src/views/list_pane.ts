// The list: every allocation, or those that the search matches; sorted by any column, and only what is seen is in the page.

import { knownOf } from "../data/groups";
import { count, counted, longPlace, shortPlace, size, time } from "../base/format";
import type { Track } from "../data/track";
import { fill, h } from "../draw/dom";
import type { Host, Pane } from "../state/pane";

const ROW = 22;
const BEYOND = 12;

interface Column {
  name: string;
  number?: boolean;
  cell: (track: Track, row: number) => string;
  /** What it is sorted by: numbers from the largest on, texts from A on. */
  value: (track: Track, row: number) => number | string;
  /** Of texts: a number that is the same where the text is, so that each is looked at once. */
  id?: (track: Track, row: number) => number;
}

const lifeOf = (track: Track, row: number): number =>
  track.header.timed
    ? track.timeOf(track.died[row]) - track.timeOf(track.born[row])
    : track.died[row] - track.born[row];

const lineName = (track: Track, row: number): string => {
  const place = track.line(row);
  return place ? shortPlace(place) : "";
};

const moduleName = (track: Track, row: number): string => {
  const module = track.row.module[row];
  return module ? track.text(track.header.modules[module - 1]) : "";
};

/** The first ones are seen without scrolling on a narrow screen. */
const COLUMNS: Column[] = [
  {
    name: "bytes",
    number: true,
    cell: (track, row) => size(track.row.bytes[row]),
    value: (track, row) => track.row.bytes[row],
  },
  { name: "line", cell: lineName, value: lineName, id: (track, row) => track.row.line[row] },
  {
    name: "module",
    cell: moduleName,
    value: moduleName,
    id: (track, row) => track.row.module[row],
  },
  {
    name: "category",
    cell: (track, row) =>
      (track.header.categories[track.row.category[row]] ?? "").replaceAll("_", " "),
    value: (track, row) => track.header.categories[track.row.category[row]] ?? "",
    id: (track, row) => track.row.category[row],
  },
  {
    name: "step",
    number: true,
    cell: (track, row) => {
      const step = track.stepOf(track.born[row]);
      return step < 0 ? "" : count(step);
    },
    value: (track, row) => -track.stepOf(track.born[row]),
  },
  {
    name: "born",
    number: true,
    cell: (track, row) => (track.born[row] < 0 ? "before" : count(track.born[row])),
    value: (track, row) => -track.born[row],
  },
  {
    name: "freed",
    number: true,
    cell: (track, row) => (track.freed[row] >= track.events ? "never" : count(track.freed[row])),
    value: (track, row) => track.freed[row],
  },
  {
    name: "lived",
    number: true,
    cell: (track, row) => {
      const open = track.died[row] >= track.events || track.born[row] < 0 ? "≥ " : "";
      const life = lifeOf(track, row);
      return open + (track.header.timed ? time(life) : counted(life, "event"));
    },
    value: lifeOf,
  },
  {
    name: "address",
    cell: (track, row) => track.address(row),
    value: (track, row) => -track.row.address[row],
  },
];

/** Those that a recording has something for. */
const columnsOf = (track: Track): Column[] =>
  COLUMNS.filter(({ name }) => knownOf(track, [name]).length > 0);

export class ListPane implements Pane {
  readonly element: HTMLElement;
  private readonly words = h("p", { class: "answer small", role: "status" });
  private readonly head = h("div", { class: "list-head", role: "row" });
  private readonly inner = h("div", { class: "list-inner" });
  private readonly scroll = h(
    "div",
    { class: "list-scroll", tabIndex: 0, role: "rowgroup", "aria-label": "Allocations" },
    this.head,
    this.inner,
  );
  private rows: Int32Array = new Int32Array(0);
  private shownAs = "";
  private headKey = "";
  private selected = -1;

  constructor(private readonly host: Host) {
    this.element = h(
      "section",
      { class: "pane list" },
      this.words,
      h("div", { class: "list-table", role: "table", "aria-label": "Allocations" }, this.scroll),
    );
    this.scroll.addEventListener("scroll", () => this.drawRows());
  }

  draw(): void {
    const { state } = this.host.store;
    const { track } = this.host.scene();
    const alive = /\balive\b/i.test(state.search) ? state.cursor : "";
    const marks = [state.search, state.finding, state.group, state.group >= 0 ? state.by : ""];
    const key = [state.track, state.sort, alive, ...marks].join("\n");
    if (key !== this.shownAs) {
      this.shownAs = key;
      this.rows = sorted(track, this.host.marked()?.flags ?? null, state.sort);
      this.inner.style.height = `${this.rows.length * ROW}px`;
      this.scroll.scrollTop = 0;
      this.sayHowMany(track);
    }
    if (state.sort !== this.headKey || !this.head.firstChild) this.drawHead(state.sort);
    if (state.selected !== this.selected) this.reveal(state.selected);
    this.selected = state.selected;
    this.drawRows();
  }

  private sayHowMany(track: Track): void {
    let bytes = 0;
    for (const row of this.rows) bytes += track.row.bytes[row];
    const all = this.rows.length === track.n ? "" : ` of ${count(track.n)}`;
    this.words.textContent = `${count(this.rows.length)}${all} allocations, ${size(bytes)} asked for in all. Search above: >64MiB, step:3, line:model.py, alive, unfreed, 0x7f…, or any words.`;
  }

  private drawHead(sort: string): void {
    this.headKey = sort;
    const [name, turned] = sort.startsWith("-") ? [sort.slice(1), true] : [sort, false];
    fill(
      this.head,
      ...columnsOf(this.host.scene().track).map((column) => {
        const isSorted = column.name === name;
        const direction = turned ? "ascending" : "descending";
        return h(
          "span",
          {
            class: `cell ${column.name}${column.number ? " number" : ""}`,
            role: "columnheader",
            "aria-sort": isSorted ? direction : undefined,
          },
          h(
            "button",
            { onclick: () => this.sort(column.name) },
            column.name,
            isSorted ? (turned ? " ▴" : " ▾") : "",
          ),
        );
      }),
    );
  }

  private sort(name: string): void {
    const { store } = this.host;
    store.set({ sort: store.state.sort === name ? `-${name}` : name });
  }

  /** Scrolls to an allocation that is chosen. */
  private reveal(row: number): void {
    const place = row < 0 ? -1 : this.rows.indexOf(row);
    if (place < 0) return;
    const { scrollTop } = this.scroll;
    const clientHeight = this.scroll.clientHeight - this.head.offsetHeight;
    const top = place * ROW;
    if (top < scrollTop || top + ROW > scrollTop + clientHeight)
      this.scroll.scrollTop = Math.max(0, top - clientHeight / 3);
  }

  private drawRows(): void {
    const { scrollTop, clientHeight } = this.scroll;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - BEYOND);
    const last = Math.min(
      this.rows.length,
      Math.ceil((scrollTop + Math.max(clientHeight, 200)) / ROW) + BEYOND,
    );
    const { track } = this.host.scene();
    const items: HTMLElement[] = [];
    for (let place = first; place < last; place++)
      items.push(this.item(track, this.rows[place], place));
    fill(this.inner, ...items);
  }

  private item(track: Track, row: number, place: number): HTMLElement {
    const { host } = this;
    const line = track.line(row);
    const item = h(
      "div",
      {
        class: `list-row${row === host.store.state.selected ? " chosen" : ""}`,
        role: "row",
        "aria-rowindex": String(place + 2),
        title: line ? longPlace(line) : "",
        onclick: () => host.store.set({ selected: row }),
        ondblclick: () => host.show(row, "memory"),
      },
      ...columnsOf(this.host.scene().track).map((column) =>
        h(
          "span",
          { class: `cell ${column.name}${column.number ? " number" : ""}`, role: "cell" },
          column.cell(track, row),
        ),
      ),
    );
    item.style.top = `${place * ROW}px`;
    return item;
  }
}

/** The rows that are listed, in order of birth or of a column. */
function sorted(track: Track, flags: Uint8Array | null, sort: string): Int32Array {
  const rows: number[] = [];
  for (let row = 0; row < track.n; row++) if (!flags || flags[row]) rows.push(row);
  const name = sort.replace(/^-/, "");
  const column = COLUMNS.find(({ name: other }) => other === name);
  if (!column) return Int32Array.from(rows);
  const turned = sort.startsWith("-") ? -1 : 1;
  const values = column.id
    ? textRanks(track, rows, column, column.id)
    : numbers(track, rows, column);
  return Int32Array.from(rows).sort((a, b) => (values[b] - values[a]) * turned || a - b);
}

/** By row, the number that it is sorted by, the largest first. */
function numbers(track: Track, rows: number[], column: Column): Float64Array {
  const values = new Float64Array(track.n);
  for (const row of rows) values[row] = column.value(track, row) as number;
  return values;
}

/** By row, minus the place of its text among all texts. */
function textRanks(
  track: Track,
  rows: number[],
  column: Column,
  id: (track: Track, row: number) => number,
): Float64Array {
  const texts = new Map<number, string>();
  for (const row of rows) {
    const number = id(track, row);
    if (!texts.has(number)) texts.set(number, String(column.value(track, row)));
  }
  const ordered = [...texts].sort((a, b) => a[1].localeCompare(b[1], "en"));
  const ranks = new Map(ordered.map(([number], rank) => [number, -rank]));
  const values = new Float64Array(track.n);
  for (const row of rows) values[row] = ranks.get(id(track, row))!;
  return values;
}
