// Compare: two recordings, or a rank against a peer: their memory over each other, and who accounts for the difference.

import { shortSize, size, time, count } from "../base/format";
import { CanvasSurface, type Surface } from "../draw/surface";
import { byteTicks, ticks } from "../draw/ticks";
import { highestOf } from "../layout/highest";
import { tally, TABLES, type TableKind, weighAt } from "../layout/tally";
import { fill, h, sharp } from "../draw/dom";
import { trackName } from "../state/names";
import { pattern } from "../state/query";
import type { Host, Pane } from "../state/pane";
import { type Scene, startOf } from "../state/scene";
import { Table } from "./table";
import { swatch } from "./swatch";

interface Difference {
  long: string;
  name: string;
  before: number;
  after: number;
  example: [track: number, row: number];
}

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
  private before: number;
  private after: number;
  private drawn = "";

  constructor(private readonly host: Host) {
    this.before = 0;
    this.after = Math.min(1, host.scenes.length - 1);
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
      (row) => host.store.set({ track: row.example[0], selected: row.example[1] }),
      (sort) => host.store.set({ sort }),
    );
    this.element = h(
      "section",
      { class: "pane compare" },
      this.bar,
      this.words,
      h("div", { class: "canvas" }, this.canvas),
      h("div", { class: "rows" }, this.table.element),
    );
    this.filter.addEventListener("input", () => this.drawTable());
  }

  draw(): void {
    const { host } = this;
    const key = [this.before, this.after, host.store.state.table, host.theme().dark].join();
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
    const kind = this.host.store.state.axis;
    const axes = this.scenes().map((scene) => scene.axis(kind));
    const timed = axes.every((axis) => axis.kind === "time");
    const starts = this.scenes().map((scene) => startOf(scene, kind));
    const end = Math.max(...axes.map((axis, i) => axis.end - starts[i]));
    const plot = {
      left: 74,
      top: 12,
      width: Math.max(20, Math.floor(surface.width - 88)),
      height: surface.height - 36,
    };
    const both = axes.map((axis, i) => highestOf(axis, plot.width, starts[i], starts[i] + end));
    const most =
      1.06 * Math.max(1, ...both.map((one) => Math.max(...one.requested, ...one.reserved)));
    const y = (bytes: number) => plot.top + plot.height * (1 - bytes / most);
    for (const bytes of byteTicks(0, most, plot.height / 44)) {
      surface.rect(plot.left, Math.round(y(bytes)), plot.width, 1, theme.grid);
      surface.text(shortSize(bytes), plot.left - 8, y(bytes), theme.soft, "right");
    }
    both.forEach((one, i) => {
      const colour = i ? AFTER : theme.dark ? BEFORE_DARK : BEFORE;
      const stretch = Math.max(
        1,
        Math.min(plot.width, Math.ceil(((axes[i].end - starts[i]) / end) * plot.width)),
      );
      const points: number[] = [];
      const reserved: number[] = [];
      for (let column = 0; column < stretch; column++) {
        points.push(
          plot.left + column,
          y(one.requested[column]),
          plot.left + column + 1,
          y(one.requested[column]),
        );
        reserved.push(plot.left + column, y(one.reserved[column]));
      }
      if (i === 0)
        surface.area([plot.left, y(0), ...points, plot.left + stretch, y(0)], `${colour}33`);
      surface.line(points, colour, 1.5);
      surface.line(reserved, colour, 1, [3, 3]);
    });
    const { step, at } = ticks(0, end, plot.width / 95);
    surface.rect(plot.left, plot.top + plot.height, plot.width, 1, theme.faint);
    for (const place of at)
      surface.text(
        timed ? time(place, step) : count(place),
        plot.left + (place / end) * plot.width,
        plot.top + plot.height + 12,
        theme.soft,
        "center",
      );
    surface.text(
      timed ? "time" : "event",
      plot.left - 8,
      plot.top + plot.height + 12,
      theme.soft,
      "right",
    );
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
          onchange: () => {
            set(Number(select.value));
            this.draw();
          },
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
      choice(this.before, (track) => (this.before = track), "first", dark ? BEFORE_DARK : BEFORE),
      choice(this.after, (track) => (this.after = track), "second", AFTER),
      h(
        "span",
        { class: "switch", role: "group", "aria-label": "difference by" },
        ...TABLES.map((table) =>
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
      this.filter,
      h("span", { class: "soft" }, "solid: requested, dashed: reserved"),
    );
  }

  private drawTable(): void {
    const kind = this.host.store.state.table as TableKind;
    const [a, b] = this.scenes();
    const found = new Map<string, Difference>();
    [a, b].forEach((scene, i) => {
      const { track } = scene;
      for (const entry of tally(track, weighAt(track, track.header.counters.requested[2]), kind)) {
        let row = found.get(entry.long);
        const example: [number, number] = [i ? this.after : this.before, entry.example];
        if (!row)
          found.set(
            entry.long,
            (row = { long: entry.long, name: entry.name, before: 0, after: 0, example }),
          );
        if (i) row.after += entry.weight;
        else row.before += entry.weight;
      }
    });
    const text = this.filter.value.trim();
    const wanted = text ? pattern(text) : null;
    const rows = [...found.values()].filter((row) => !wanted || wanted.test(row.long));
    this.table.show(
      rows.sort(
        (p, q) => Math.abs(q.after - q.before) - Math.abs(p.after - p.before) || q.after - p.after,
      ),
    );
    const peaks = [a, b].map((scene) => scene.track.header.counters.requested[1]);
    const change = peaks[1] - peaks[0];
    const words = change
      ? `The second peaks ${size(Math.abs(change))} ${change < 0 ? "lower" : "higher"}`
      : "Both peak at the same";
    this.words.textContent = `${words}: ${size(peaks[0])} and ${size(peaks[1])} requested. Below, who held it at the two peaks.`;
  }
}

export const signed = (bytes: number): string =>
  bytes ? `${bytes < 0 ? "−" : "+"}${size(Math.abs(bytes))}` : "0";
