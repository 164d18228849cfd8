// Who: a flame graph of bytes, and the same bytes as a table, by line, module, category, phase or stack.

import { count, share, size } from "../base/format";
import { knownOf } from "../data/groups";
import type { Surface } from "../draw/surface";
import {
  among,
  moduleTree,
  TABLES,
  type TableKind,
  tally,
  totalOf,
  type Weighed,
  weighAt,
  weighLifetimes,
} from "../layout/tally";
import { fill, h } from "../draw/dom";
import type { Host, Pane } from "../state/pane";
import { FRAMES, MOMENTS, type State } from "../state/store";
import { FlameView, type Measured } from "./flame_view";
import { MOMENT_WORDS } from "./moment_words";
import { Table } from "./table";

const FRAME_WORDS = { own: "your code", code: "code", all: "all frames" } as const;

interface Line {
  name: string;
  long: string;
  depth: number;
  weight: number;
  count: number;
  example: number;
}

export class WhoPane implements Pane {
  readonly element: HTMLElement;
  private readonly flames: FlameView;
  private readonly bar = h("div", { class: "bar" });
  private readonly table: Table<Line>;
  private weighedFor = "";
  private weighed: Weighed | null = null;
  /** What the search leaves of it. */
  private measured: Measured | null = null;
  private filter: Uint8Array | null = null;
  private tableKey = "";

  constructor(private readonly host: Host) {
    this.flames = new FlameView(host);
    this.table = new Table<Line>(
      [
        {
          name: "bytes",
          class: "number",
          cell: (line) => this.amount(line.weight),
          value: (line) => line.weight,
        },
        {
          name: "share",
          class: "number",
          cell: (line) => share(line.weight, this.measured!.total),
          value: (line) => line.weight,
        },
        {
          name: "allocations",
          class: "number",
          cell: (line) => count(line.count),
          value: (line) => line.count,
        },
        { name: "who", class: "who", cell: (line) => this.name(line), value: (line) => line.long },
      ],
      (line) => host.inspect(line ? line.example : null),
      (line) => host.store.set({ selected: line.example, finding: -1 }),
      (sort) => host.store.set({ sort }),
    );
    this.element = h(
      "section",
      { class: "pane who" },
      this.bar,
      this.flames.path,
      this.flames.scroll,
      this.flames.words,
      h("div", { class: "rows" }, this.table.element),
    );
  }

  draw(): void {
    const { state } = this.host.store;
    this.drawBar();
    this.measure(state);
    this.flames.draw(this.measured!);
    const tableKey = `${state.table}\n${state.sort}`;
    if (this.tableKey !== tableKey) this.drawTable();
    this.tableKey = tableKey;
  }

  picture(surface: Surface): void {
    this.flames.picture(surface);
  }

  extent(): { width: number; height: number } {
    return this.flames.extent();
  }

  key(event: KeyboardEvent): boolean {
    return this.flames.key(event);
  }

  /** The allocations that are asked about, and of them those that the search matches. */
  private measure(state: State): void {
    const scene = this.host.scene();
    const [from, to] = scene.window(state);
    const { kind } = scene.axis(state.axis);
    const key = [
      state.track,
      state.of,
      state.of === "cursor" ? state.cursor : "",
      state.of === "lifetime" ? [from, to, kind] : "",
    ].join();
    const filter = (state.search.trim() && this.host.marked()?.flags) || null;
    if (key === this.weighedFor && filter === this.filter) return;
    if (key !== this.weighedFor) this.weighed = this.weigh(state);
    this.weighedFor = key;
    this.filter = filter;
    this.tableKey = "";
    const weighed = this.weighed!;
    this.measured = {
      weighed: filter ? among(weighed, filter) : weighed,
      total: totalOf(weighed),
      amount: (weight) => this.amount(weight),
    };
  }

  private weigh(state: State): Weighed {
    const scene = this.host.scene();
    const { track } = scene;
    if (state.of === "peak") return weighAt(track, track.header.counters.requested[2]);
    if (state.of === "cursor") return weighAt(track, state.cursor);
    const axis = scene.axis(state.axis);
    const [from, to] = scene.window(state);
    return weighLifetimes(track, axis.event(from), Math.min(track.events, axis.event(to) + 1));
  }

  private drawTable(): void {
    const { state } = this.host.store;
    const kind = state.table as TableKind;
    const entries = tally(this.host.scene().track, this.measured!.weighed, kind);
    let lines: Line[] = entries
      .sort((a, b) => b.weight - a.weight)
      .map((entry) => ({ ...entry, depth: 0 }));
    if (kind === "module" && !this.filter) {
      lines = moduleTree(entries).map((branch) => ({
        ...branch,
        name: branch.path.split(".").pop()!,
        long: branch.path,
      }));
    }
    this.table.show(lines, state.sort);
  }

  private drawBar(): void {
    const { store } = this.host;
    const { state } = store;
    const set = (change: Partial<State>) => () => store.set(change);
    fill(
      this.bar,
      choice(
        "bytes of which moment",
        MOMENTS.map((of) => [MOMENT_WORDS[of], of === state.of, set({ of })]),
      ),
      choice("picture", [
        ["flame graph", state.around < 0, () => this.flames.turn(false)],
        ["callers and callees", state.around >= 0, () => this.flames.turn(true)],
      ]),
      choice(
        "frames",
        FRAMES.map((frames) => [FRAME_WORDS[frames], frames === state.frames, set({ frames })]),
      ),
      choice(
        "table by",
        knownOf(this.host.scene().track, TABLES).map((table) => [
          table,
          table === state.table,
          set({ table }),
        ]),
      ),
    );
  }

  private name(line: Line): HTMLElement {
    const element = h("span", { title: line.long }, line.name);
    element.style.paddingLeft = `${line.depth * 16}px`;
    return element;
  }

  private amount(weight: number): string {
    return this.weighed?.unit === "byte-events" ? count(Math.round(weight)) : size(weight);
  }
}

/** Buttons beside each other, one of which is pressed. */
function choice(name: string, options: [string, boolean, () => void][]): HTMLElement {
  return h(
    "span",
    { class: "switch", role: "group", "aria-label": name },
    ...options.map(([word, isPressed, onclick]) =>
      h("button", { "aria-pressed": String(isPressed), onclick }, word),
    ),
  );
}
