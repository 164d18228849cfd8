// Compare: two recordings, or a rank against a peer: their memory over each other, and who accounts for the difference.

import { shortSize, size } from "../base/format";
import { knownOf } from "../data/groups";
import type { Difference as DiffAnswer } from "../data/header";
import { changedLines, type Difference, heldRows } from "../layout/differences";
import { CanvasSurface, type Surface } from "../draw/surface";
import { byteTicks } from "../draw/ticks";
import { type Highest, highestOf } from "../layout/highest";
import { TABLES, type TableKind } from "../layout/tally";
import { fill, h, sharp } from "../draw/dom";
import { trackName } from "../state/names";
import { pattern } from "../state/query";
import type { Host, Pane } from "../state/pane";
import type { Scene } from "../state/scene";
import type { Plot } from "./frame";
import { Table } from "./table";
import {
  drawAxis,
  haveSteps,
  placeWords,
  plotIn,
  sharedAxis,
  type SharedAxis,
} from "./shared_axis";
import { swatch } from "./swatch";
import { Tip } from "./tip";

export const BEFORE = "#2b5c9e";
export const BEFORE_DARK = "#6fa3e8";
export const AFTER = "#cf5a3c";

export class ComparePane implements Pane {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", {
    tabIndex: 0,
    role: "img",
    "aria-label": "Both recordings over time",
  });
  private readonly bar = h("div", { class: "bar" });
  private readonly words = h("p", { class: "answer", role: "status" });
  private readonly filter = h("input", {
    type: "search",
    placeholder: "filter (regular expression)",
    "aria-label": "Filter the table",
    spellcheck: false,
  });
  private readonly table: Table<Difference>;
  private readonly tip = new Tip(this.canvas);
  private drawn = "";
  private plot: Plot | null = null;
  private shown: Highest[] = [];
  /** The column that the pointer is at; -1 for none. */
  private at = -1;

  constructor(private readonly host: Host) {
    this.table = new Table<Difference>(
      [
        {
          name: "change",
          class: "number",
          cell: (row) => signed(row.after - row.before),
          value: (row) => Math.abs(row.after - row.before),
        },
        {
          name: "first",
          class: "number",
          cell: (row) => (row.before ? size(row.before) : ""),
          value: (row) => row.before,
        },
        {
          name: "second",
          class: "number",
          cell: (row) => (row.after ? size(row.after) : ""),
          value: (row) => row.after,
        },
        {
          name: "who",
          class: "who",
          cell: (row) => h("span", { title: row.long }, row.name),
          value: (row) => row.long,
        },
      ],
      () => undefined,
      ({ example: [track, selected] }) => {
        if (selected >= 0) host.store.set({ track, selected });
      },
      (sort) => host.store.set({ sort }),
    );
    this.element = h(
      "section",
      { class: "pane compare" },
      this.bar,
      this.words,
      h("div", { class: "canvas" }, this.canvas, this.tip.element),
      h("div", { class: "rows" }, this.table.element),
    );
    this.filter.addEventListener("input", () => this.drawTable());
    this.listenToCanvas();
  }

  private get before(): number {
    return this.host.store.state.pair[0];
  }

  private get after(): number {
    return this.host.store.state.pair[1];
  }

  draw(): void {
    const { host } = this;
    const { table, sort, align } = host.store.state;
    const key = [this.before, this.after, table, sort, align, host.theme().dark].join();
    if (key !== this.drawn) {
      this.drawn = key;
      this.drawBar();
      this.drawTable();
    }
    const box = sharp(this.canvas);
    this.picture(
      new CanvasSurface(this.canvas, box.width, box.height, box.ratio, host.theme().font),
    );
  }

  extent(): { width: number; height: number } {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  picture(surface: Surface): void {
    const theme = this.host.theme();
    const shared = this.sharedAxis();
    const plot = plotIn(surface, this.host.store.state.both ?? [0, shared.end]);
    this.plot = plot;
    const both = shared.axes.map((axis, i) =>
      highestOf(axis, plot.width, shared.starts[i] + plot.from, shared.starts[i] + plot.to),
    );
    const most =
      1.06 * Math.max(1, ...both.map((one) => Math.max(...one.requested, ...one.reserved)));
    const y = (bytes: number) => plot.top + plot.height * (1 - bytes / most);
    for (const bytes of byteTicks(0, most, plot.height / 44)) {
      surface.rect(plot.left, Math.round(y(bytes)), plot.width, 1, theme.grid);
      surface.text(shortSize(bytes), plot.left - 8, y(bytes), theme.soft, "right");
    }
    both.forEach((run, i) => {
      const end = shared.axes[i].end - shared.starts[i];
      const share = (end - plot.from) / (plot.to - plot.from);
      const stretch = Math.min(plot.width, Math.ceil(share * plot.width));
      if (stretch > 0) this.drawRun(surface, plot, run, stretch, y, i);
    });
    this.shown = both;
    drawAxis(surface, plot, shared.kind, theme);
    if (this.at >= 0) surface.line([plot.left + this.at, plot.top, plot.left + this.at, plot.top + plot.height], theme.accent, 1); // prettier-ignore
  }

  private drawRun(
    surface: Surface,
    plot: Plot,
    run: Highest,
    stretch: number,
    y: (bytes: number) => number,
    number: number,
  ): void {
    const colour = number ? AFTER : this.host.theme().dark ? BEFORE_DARK : BEFORE;
    const points: number[] = [];
    const reserved: number[] = [];
    for (let column = 0; column < stretch; column++) {
      const height = y(run.requested[column]);
      points.push(plot.left + column, height, plot.left + column + 1, height);
      reserved.push(plot.left + column, y(run.reserved[column]));
    }
    if (number === 0)
      surface.area([plot.left, y(0), ...points, plot.left + stretch, y(0)], `${colour}33`);
    surface.line(points, colour, 1.5);
    surface.line(reserved, colour, 1, [3, 3]);
  }

  private sharedAxis(): SharedAxis {
    const { align, axis } = this.host.store.state;
    return sharedAxis(this.scenes(), align, axis);
  }

  private listenToCanvas(): void {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => {
      this.at = -1;
      this.tip.hide();
      this.draw();
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const { plot } = this;
        if (!plot) return;
        const length = plot.to - plot.from;
        const isAcross = Math.abs(event.deltaX) > Math.abs(event.deltaY);
        const factor = isAcross ? 1 : Math.exp(event.deltaY * 0.0022);
        const share = (event.offsetX - plot.left) / plot.width;
        const moved = isAcross ? (event.deltaX / plot.width) * length : 0;
        this.look(plot.from + moved + share * length * (1 - factor), length * factor);
      },
      { passive: false },
    );
    let drag: { x: number; from: number } | null = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      drag = this.plot && { x: event.offsetX, from: this.plot.from };
    });
    canvas.addEventListener("pointerup", () => (drag = null));
    canvas.addEventListener("pointermove", (event) => {
      if (!drag || !this.plot) return;
      const { from, to, width } = this.plot;
      this.look(drag.from - ((event.offsetX - drag.x) / width) * (to - from), to - from);
    });
  }

  /** Shows a part of the shared axis. */
  private look(from: number, length: number): void {
    const { end } = this.sharedAxis();
    const long = Math.max(end / 5000, Math.min(end, length));
    const start = Math.max(0, Math.min(from, end - long));
    this.host.store.set({ both: long >= end ? null : [start, start + long] });
  }

  key(event: KeyboardEvent): boolean {
    const { plot } = this;
    if (!plot) return false;
    const length = plot.to - plot.from;
    const factor = { w: 0.7, s: 1 / 0.7 }[event.key.toLowerCase()];
    const by = { a: -0.15, d: 0.15 }[event.key.toLowerCase()];
    if (factor) this.look(plot.from + (length * (1 - factor)) / 2, length * factor);
    else if (by) this.look(plot.from + by * length, length);
    else if (event.key === "0") this.host.store.set({ both: null });
    else return false;
    return true;
  }

  /** What both hold where the pointer is. */
  private hover(event: PointerEvent): void {
    const { plot, shown } = this;
    if (!plot) return;
    const column = Math.floor(event.offsetX - plot.left);
    this.at = column >= 0 && column < plot.width ? column : -1;
    this.draw();
    if (this.at < 0) return this.tip.hide();
    const place = plot.from + ((column + 0.5) / plot.width) * (plot.to - plot.from);
    const names = this.scenes().map((scene) => trackName(scene, this.host.scenes));
    const dark = this.host.theme().dark;
    const rows = shown.map((run, i) =>
      h(
        "div",
        {},
        swatch(i ? AFTER : dark ? BEFORE_DARK : BEFORE),
        h("b", {}, size(run.requested[column])),
        ` of ${size(run.reserved[column])} reserved, ${names[i]}`,
      ),
    );
    const change = shown[1].requested[column] - shown[0].requested[column];
    const words = `${placeWords(this.sharedAxis().kind, place)}: ${signed(change)}`;
    this.tip.show(event.offsetX, event.offsetY, [...rows, h("div", { class: "soft" }, words)]);
  }

  private scenes(): [Scene, Scene] {
    return [this.host.scenes[this.before], this.host.scenes[this.after]];
  }

  private drawBar(): void {
    const { host } = this;
    const { scenes, store } = host;
    const choice = (now: number, set: (track: number) => void, label: string, colour: string) => {
      const select = h(
        "select",
        {
          "aria-label": label,
          onchange: (event: Event) => set(Number((event.target as HTMLSelectElement).value)),
        },
        ...scenes.map((scene, i) =>
          h("option", { value: String(i), selected: i === now }, trackName(scene, scenes)),
        ),
      );
      return h("label", {}, swatch(colour), `${label} `, select);
    };
    const dark = host.theme().dark;
    fill(
      this.bar,
      choice(
        this.before,
        (track) => store.set({ pair: [track, this.after] }),
        "first",
        dark ? BEFORE_DARK : BEFORE,
      ),
      choice(this.after, (track) => store.set({ pair: [this.before, track] }), "second", AFTER),
      h(
        "span",
        { class: "switch", role: "group", "aria-label": "difference by" },
        ...knownOf(host.scene().track, TABLES).map((table) =>
          h(
            "button",
            {
              "aria-pressed": String(table === store.state.table),
              onclick: () => store.set({ table }),
            },
            table,
          ),
        ),
      ),
      haveSteps(this.scenes()) &&
        h(
          "span",
          { class: "switch", role: "group", "aria-label": "aligned by" },
          ...(["steps", "start"] as const).map((align) =>
            h(
              "button",
              {
                "aria-pressed": String(align === store.state.align),
                onclick: () => store.set({ align, both: null }),
              },
              align === "steps" ? "step by step" : "from the start",
            ),
          ),
        ),
      this.filter,
      h("span", { class: "soft" }, "solid: requested, dashed: reserved"),
    );
  }

  private drawTable(): void {
    const { store } = this.host;
    const difference = this.knownDifference();
    const rows =
      difference && store.state.table === "line"
        ? changedLines(difference, this.host.scenes, store.state.pair)
        : heldRows(this.host.scenes, store.state.pair, store.state.table as TableKind);
    const text = this.filter.value.trim();
    const wanted = text ? pattern(text) : null;
    this.table.show(
      rows
        .filter((row) => !wanted || wanted.test(row.long))
        .sort(
          (p, q) =>
            Math.abs(q.after - q.before) - Math.abs(p.after - p.before) || q.after - p.after,
        ),
      store.state.sort,
    );
    const words = difference ? [difference.headline, ...difference.sentences] : [this.peakWords()];
    this.words.textContent = words.join(" ");
    this.words.title = difference ? difference.notes.join("\n") : "";
  }

  /** What is said of these two recordings in this order. */
  private knownDifference(): DiffAnswer | null {
    return this.before === 0 && this.after === 1 ? this.host.difference : null;
  }

  private peakWords(): string {
    const peaks = this.scenes().map((scene) => scene.track.header.counters.requested[1]);
    const change = peaks[1] - peaks[0];
    const words = change
      ? `The second peaks ${size(Math.abs(change))} ${change < 0 ? "lower" : "higher"}`
      : "Both peak at the same";
    return `${words}: ${size(peaks[0])} and ${size(peaks[1])} requested. Below, who held it at the two peaks.`;
  }
}

export const signed = (bytes: number): string =>
  bytes ? `${bytes < 0 ? "−" : "+"}${size(Math.abs(bytes))}` : "0";
