// Who: a flame graph of bytes, and the same bytes as a table, by line, module, category, phase or stack.

import { count, counted, share, size } from "../base/format";
import { knownOf } from "../data/groups";
import { CanvasSurface, type Surface } from "../draw/surface";
import {
  among,
  flameOf,
  type Flame,
  moduleTree,
  TABLES,
  type TableKind,
  tally,
  type Weighed,
  weighAt,
  weighLifetimes,
} from "../layout/tally";
import { fill, h, sharp } from "../draw/dom";
import { pattern } from "../state/query";
import type { Host, Pane } from "../state/pane";
import { FRAMES, MOMENTS, type Moment } from "../state/store";
import { Table } from "./table";
import {
  drawFlame,
  flameAt,
  frameAt,
  heightOf,
  LINE,
  neighbour,
  pathOf,
  type Shown,
} from "./flame";

const OF: Record<Moment, string> = {
  cursor: "at the cursor",
  peak: "at the peak",
  lifetime: "bytes × lifetime, in the window",
};

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
  private readonly canvas = h("canvas", {
    class: "flame",
    tabIndex: 0,
    role: "application",
    "aria-roledescription": "flame graph",
    "aria-label":
      "Bytes by stack, the outermost frame on top: arrow keys go from frame to frame, Enter zooms in, Escape out",
  });
  private readonly scroll = h(
    "div",
    { class: "canvas flames" },
    h("div", { class: "inner" }, this.canvas),
  );
  private readonly bar = h("div", { class: "bar" });
  private readonly words = h("p", { class: "merged" });
  private readonly path = h("nav", { class: "path", "aria-label": "Frames above", hidden: true });
  private readonly table: Table<Line>;
  private measured = "";
  private tableKey = "";
  private weighed: Weighed | null = null;
  private root: Flame | null = null;
  private focus: Flame | null = null;
  /** The frame that the keyboard is at. */
  private chosen: Flame | null = null;
  private shown: Shown[] = [];
  private total = 0;

  constructor(private readonly host: Host) {
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
          cell: (line) => share(line.weight, this.total),
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
      this.path,
      this.scroll,
      this.words,
      h("div", { class: "rows" }, this.table.element),
    );
    this.canvas.addEventListener("pointermove", (event) => this.over(event));
    this.canvas.addEventListener("pointerleave", () => host.inspect(null));
    this.canvas.addEventListener("click", (event) => {
      const found = frameAt(this.shown, event.offsetX, event.offsetY);
      if (!found) return;
      this.chosen = found;
      this.zoomTo(found === this.focus ? this.root! : found);
    });
    this.canvas.addEventListener("focus", () => {
      // A click has chosen its frame by itself.
      if (!this.chosen && this.canvas.matches(":focus-visible")) this.choose(this.focus);
    });
  }

  draw(): void {
    this.drawBar();
    const { host } = this;
    const { state } = host.store;
    const scene = host.scene();
    const [from, to] = scene.window(state);
    const axis = scene.axis(state.axis);
    const key = [
      state.track,
      state.of,
      state.of === "cursor" ? state.cursor : "",
      state.of === "lifetime" ? [from, to, axis.kind] : "",
      state.frames,
    ].join();
    if (key !== this.measured) {
      this.measured = key;
      this.tableKey = "";
      const { track } = scene;
      if (state.of === "lifetime")
        this.weighed = weighLifetimes(
          track,
          axis.event(from),
          Math.min(track.events, axis.event(to) + 1),
        );
      else
        this.weighed = weighAt(
          track,
          state.of === "peak" ? track.header.counters.requested[2] : state.cursor,
        );
      this.chosen = null;
      this.root = flameOf(track, this.weighed, OF[state.of], state.frames);
      this.total = this.root.weight;
    }
    this.focus = flameAt(this.root!, state.zoom);
    this.drawFlame();
    this.drawPath();
    const tableKey = [state.table, state.sort, state.search, this.host.marked()?.count].join("\n");
    if (this.tableKey !== tableKey) this.drawTable();
    this.tableKey = tableKey;
  }

  picture(surface: Surface): void {
    if (!this.root || !this.focus) return;
    const { state } = this.host.store;
    const wanted = state.search.trim() ? pattern(state.search.trim()) : null;
    const { shown, hidden } = drawFlame(
      surface,
      this.root,
      this.focus,
      this.host.theme(),
      wanted,
      (weight) => this.amount(weight),
      this.chosen,
    );
    this.shown = shown;
    const unit = this.weighed!.unit === "bytes" ? "" : ` (${this.weighed!.unit})`;
    this.words.textContent = `${this.amount(this.total)}${unit} ${OF[state.of]}; amber is your code${hidden ? `; ${counted(hidden, "frame")} under half a pixel: click one to zoom in` : "; click a frame to zoom in"}.`;
  }

  extent(): { width: number; height: number } {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  key(event: KeyboardEvent): boolean {
    if (document.activeElement !== this.canvas || !this.focus) return false;
    const at = this.chosen ?? this.focus;
    if (event.key === "Enter") {
      this.zoomTo(at === this.focus ? this.root! : at);
      this.choose(at);
      return true;
    }
    if (event.key === "Escape") {
      if (this.focus === this.root) return false;
      this.zoomTo(this.focus.parent ?? this.root!);
      this.choose(this.focus);
      return true;
    }
    if (!event.key.startsWith("Arrow")) return false;
    this.choose(this.chosen ? (neighbour(at, event.key) ?? at) : at);
    return true;
  }

  /** Goes to a frame: it is outlined, brought into view, shown in the drawer and said. */
  private choose(flame: Flame | null): void {
    if (!flame) return;
    this.chosen = flame;
    this.drawFlame();
    if (!this.shown.some((one) => one.flame === flame)) {
      this.zoomTo(flame.parent ?? this.root!); // under half a pixel, or beside what is zoomed in on
      this.drawFlame();
    }
    const place = this.shown.find((one) => one.flame === flame);
    if (place) {
      const { scrollTop, clientHeight } = this.scroll;
      if (place.y < scrollTop) this.scroll.scrollTop = place.y;
      else if (place.y + LINE > scrollTop + clientHeight)
        this.scroll.scrollTop = place.y + LINE - clientHeight;
    }
    const siblings = flame.parent?.inside ?? [flame];
    const where =
      siblings.length > 1
        ? `, ${count(siblings.indexOf(flame) + 1)} of ${count(siblings.length)} beside each other`
        : "";
    const zoomed = flame === this.focus && flame !== this.root ? ", zoomed in" : "";
    this.host.say(
      `${flame.name}, ${this.amount(flame.weight)}, ${share(flame.weight, this.total)}${flame.user && flame !== this.root ? ", your code" : ""}, level ${flame.depth}${where}, ${flame.inside.length ? `${count(flame.inside.length)} inside` : "nothing inside"}${zoomed}`,
    );
    this.inspectFlame(flame);
  }

  /** Zooms in on a frame; the way there is part of the page's address. */
  private zoomTo(flame: Flame): void {
    this.focus = flame;
    this.host.store.set({ zoom: pathOf(flame) });
  }

  /** The frames above the one that is zoomed in on: a click leads back to each. */
  private drawPath(): void {
    const frames: Flame[] = [];
    for (let flame = this.focus; flame; flame = flame.parent) frames.unshift(flame);
    this.path.hidden = frames.length < 2;
    const links = frames.map((flame, i) =>
      h(
        "button",
        {
          class: "link",
          title: flame.long,
          "aria-current": i === frames.length - 1 ? "true" : undefined,
          onclick: () => this.zoomTo(flame),
        },
        flame.name,
      ),
    );
    fill(this.path, ...links);
  }

  private inspectFlame(flame: Flame | null): void {
    this.host.inspect(
      flame && flame.example >= 0 ? flame.example : null,
      flame && flame.inside.length ? "The largest of what this frame asked for." : "",
    );
  }

  private drawFlame(): void {
    if (!this.root) return;
    const inner = this.canvas.parentElement!;
    inner.style.height = `${Math.max(heightOf(this.root), this.scroll.clientHeight - 1)}px`;
    const box = sharp(this.canvas);
    this.picture(
      new CanvasSurface(this.canvas, box.width, box.height, box.ratio, this.host.theme().font),
    );
  }

  private drawTable(): void {
    const { host } = this;
    const kind = host.store.state.table as TableKind;
    const { track } = host.scene();
    const marked = host.store.state.search.trim() ? host.marked()?.flags : null;
    const weighed = marked ? among(this.weighed!, marked) : this.weighed!;
    const entries = tally(track, weighed, kind);
    let lines: Line[] = entries
      .sort((a, b) => b.weight - a.weight)
      .map((entry) => ({ ...entry, depth: 0 }));
    if (kind === "module" && !marked) {
      lines = moduleTree(entries).map((branch) => ({
        ...branch,
        name: branch.path.split(".").pop()!,
        long: branch.path,
      }));
    }
    this.table.show(lines, host.store.state.sort);
  }

  private drawBar(): void {
    const { store } = this.host;
    fill(
      this.bar,
      h(
        "span",
        { class: "switch", role: "group", "aria-label": "bytes of which moment" },
        ...MOMENTS.map((of) =>
          h(
            "button",
            {
              "aria-pressed": String(of === store.state.of),
              onclick: () => store.set({ of, zoom: "" }),
            },
            OF[of],
          ),
        ),
      ),
      h(
        "span",
        { class: "switch", role: "group", "aria-label": "frames" },
        ...FRAMES.map((frames) =>
          h(
            "button",
            {
              "aria-pressed": String(frames === store.state.frames),
              onclick: () => store.set({ frames, zoom: "" }),
            },
            FRAME_WORDS[frames],
          ),
        ),
      ),
      h(
        "span",
        { class: "switch", role: "group", "aria-label": "table by" },
        ...knownOf(this.host.scene().track, TABLES).map((table) =>
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

  private over(event: PointerEvent): void {
    const found = frameAt(this.shown, event.offsetX, event.offsetY);
    this.canvas.title = found
      ? `${found.long}\n${this.amount(found.weight)}, ${share(found.weight, this.total)}`
      : "";
    this.inspectFlame(found);
  }
}
