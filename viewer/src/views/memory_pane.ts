// The memory view: the overview strip, the picture, and what the pointer does in them.

import { count, counted, size } from "../base/format";
import { css } from "../base/palette";
import { CanvasSurface, type Surface } from "../draw/surface";
import type { Hit } from "../layout/stacked";
import { h, sharp } from "../draw/dom";
import { listen, setWindow, type Target } from "./input";
import { callLine, callsWords } from "./call_words";
import type { Host, Pane } from "../state/pane";
import { callUnder, stretchUnder } from "./strips";
import { askBetween, flushUnder, flushWords, rangeWords } from "./ruler";
import { swatch } from "./swatch";
import { Tip } from "./tip";
import { Memory } from "./memory";
import { Overview } from "./overview";
import { ReservedTable, whatIfWords } from "./what_if_lines";

export class MemoryPane implements Pane, Target {
  readonly element: HTMLElement;
  readonly canvas = h("canvas", {
    class: "picture",
    tabIndex: 0,
    role: "img",
    "aria-label": "Memory over time, as a stack of allocations",
  });
  private readonly tip = new Tip(this.canvas);
  private readonly strip = h("canvas", { class: "overview", "aria-hidden": "true" });
  private readonly merged = h("p", { class: "merged", "aria-live": "off" });
  private readonly calls = h("p", { class: "merged calls", hidden: true });
  private readonly whatIf = h("div", { class: "what-if", hidden: true });
  private reserved: ReservedTable | null = null;
  private readonly memory = new Memory();
  private readonly overview = new Overview();

  constructor(private readonly host: Host) {
    this.element = h(
      "section",
      { class: "pane memory" },
      h("div", { class: "strip" }, this.strip),
      h("div", { class: "canvas" }, this.canvas, this.tip.element),
      this.merged,
      this.calls,
      this.whatIf,
    );
    listen(this, host.store);
    this.listenToStrip();
  }

  draw(): void {
    const { host } = this;
    const theme = host.theme();
    const state = host.store.state;
    const scene = host.scene();
    const strip = sharp(this.strip);
    this.overview.draw(
      new CanvasSurface(this.strip, strip.width, strip.height, strip.ratio, theme.font),
      scene,
      state,
      theme,
    );
    const box = sharp(this.canvas);
    this.picture(new CanvasSurface(this.canvas, box.width, box.height, box.ratio, theme.font));
    this.sayMerged();
    this.calls.hidden = !scene.track.calls;
    if (scene.track.calls)
      this.calls.textContent = this.calls.title = callsWords(scene.track.calls);
    this.sayWhatIf();
    const plot = this.memory.plot!;
    const [low, high] = this.bytes()!;
    this.canvas.dataset.plot = [plot.left, plot.top, plot.width, plot.height, low, high].join();
  }

  picture(surface: Surface): void {
    const { host } = this;
    this.memory.draw(
      surface,
      host.scene(),
      host.store.state,
      host.theme(),
      host.marked()?.flags ?? null,
    );
  }

  extent(): { width: number; height: number } {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  scene() {
    return this.host.scene();
  }

  plot() {
    return this.memory.plot;
  }

  bytes(): [number, number] | null {
    const window = this.memory.stacked?.window;
    return window ? [window.low, window.high] : null;
  }

  hover(x: number, y: number): void {
    const { host } = this;
    const scene = host.scene();
    const found = this.memory.hit(scene, host.store.state, x, y);
    const call = this.callAt(x, y);
    this.canvas.dataset.call = String(call);
    if (call >= 0) return this.hoverCall(call, x, y);
    const words = this.wordsAt(x, y);
    if (words) return this.tip.show(x, y, [h("div", {}, words)]);
    const reserved = this.reservedAt(x, y);
    if (!found && !reserved) return this.leave();
    if (!found) {
      this.tip.show(x, y, [
        reserved!,
        h("div", { class: "soft" }, `after event ${count(this.eventAt(x))}`),
      ]);
      return host.inspect(null);
    }
    const { track } = scene;
    const group = scene.groups(host.store.state.by).groups[found.group];
    const total = track.requested.at(found.event);
    const name = found.row >= 0 ? size(track.row.bytes[found.row]) : size(found.to - found.from);
    const line = found.row >= 0 ? track.line(found.row) : null;
    this.tip.show(x, y, [
      h("div", {}, swatch(css(group.colour)), h("b", {}, name), ` ${group.name}`),
      line
        ? h("div", {}, `${line.file.split(/[/\\]/).pop()}:${line.line} in ${line.function}`)
        : "",
      h(
        "div",
        { class: "soft" },
        `of ${size(total)} requested at event ${count(found.event)}${found.merged ? "; drawn merged" : ""}`,
      ),
      reserved ?? "",
    ]);
    if (found.row >= 0) host.inspect(found.row, note(found));
  }

  /** What a mark or a strip is about; "" where there is none. */
  private wordsAt(x: number, y: number): string {
    const { plot } = this.memory;
    const { state } = this.host.store;
    const scene = this.host.scene();
    if (!plot) return "";
    const flush = flushUnder(scene, state, plot, x, y);
    if (flush) return flushWords(flush);
    const stretch = stretchUnder(scene, state, plot, x, y);
    if (!stretch) return "";
    const { name, first, last } = stretch;
    return `${name}: ${rangeWords(scene.track, [first, last])}; click to ask what happens in it`;
  }

  ask(from: number, to: number): void {
    askBetween(this.host, from, to);
  }

  /** What is reserved there, as recorded and under each setting; null outside of the picture, and where none is replayed. */
  private reservedAt(x: number, y: number): HTMLElement | null {
    const { plot } = this.memory;
    if (
      !this.reserved ||
      !plot ||
      x < plot.left ||
      x >= plot.left + plot.width ||
      y < plot.top ||
      y >= plot.top + plot.height
    )
      return null;
    return this.reserved.at(this.eventAt(x));
  }

  private eventAt(x: number): number {
    return this.memory.stacked!.moments.event[Math.floor(x - this.memory.plot!.left)];
  }

  private callAt(x: number, y: number): number {
    const plot = this.memory.plot;
    return plot ? callUnder(this.host.scene(), this.host.store.state, plot, x, y) : -1;
  }

  private hoverCall(call: number, x: number, y: number): void {
    const { track } = this.host.scene();
    const calls = track.calls!;
    const problem = calls.column.problem[call];
    this.tip.show(x, y, [
      h("div", {}, callLine(track, calls, call)),
      problem ? h("div", { class: "wrong" }, track.text(problem - 1)) : "",
    ]);
    this.host.inspectCall(call);
  }

  leave(): void {
    this.tip.hide();
    this.host.inspect(null);
  }

  click(x: number, y: number, twice: boolean): void {
    const { host } = this;
    const scene = host.scene();
    const found = this.memory.hit(scene, host.store.state, x, y);
    const plot = this.memory.plot;
    if (!plot) return;
    const axis = scene.axis(host.store.state.axis);
    const call = this.callAt(x, y);
    if (call >= 0)
      return host.store.set({ call, cursor: scene.track.calls!.event(scene.track, call) });
    const stretch = stretchUnder(scene, host.store.state, plot, x, y);
    if (stretch) return host.store.set({ range: [stretch.first, stretch.last], selected: -1 });
    const event =
      found?.event ??
      axis.event(plot.from + ((x - plot.left) / plot.width) * (plot.to - plot.from));
    host.store.set({ cursor: event, selected: found?.row ?? -1, call: -1 });
    if (twice && found && found.row >= 0) this.show(found.row);
  }

  /** Moves to an allocation: its whole life, with some room around. */
  show(row: number): void {
    const scene = this.host.scene();
    const axis = scene.axis(this.host.store.state.axis);
    const from = axis.place(scene.track.born[row]);
    const to = Math.min(axis.end, axis.place(scene.track.died[row]));
    const room = Math.max((to - from) * 0.4, axis.shortest);
    setWindow(this, this.host.store, from - room, to + room);
  }

  private sayMerged(): void {
    const { stacked } = this.memory;
    if (!stacked) return;
    const { track } = this.host.scene();
    const first = Math.max(0, stacked.moments.first[0]);
    const events = stacked.moments.last[stacked.window.width - 1] - first + 1;
    const perColumn = events / stacked.window.width;
    const drawn = `${count(stacked.drawn)} of ${counted(track.n, "allocation")} drawn one by one`;
    const merged = stacked.cut
      ? "the smaller are merged"
      : "what is under a pixel is merged on top of its color";
    const columns =
      perColumn > 1.01
        ? `; each column is the highest of ${perColumn < 10 ? perColumn.toFixed(1) : count(Math.round(perColumn))} events`
        : "";
    const all = stacked.drawn === track.n && !columns;
    this.merged.textContent = all
      ? `${drawn}.`
      : `${drawn}; ${merged}${columns}. Zoom in for the rest.`;
    this.merged.title = this.merged.textContent;
  }

  /** What each replayed setting comes to, once for each track and theme. */
  private sayWhatIf(): void {
    const { track } = this.host.scene();
    const theme = this.host.theme();
    const key = `${this.host.store.state.track},${theme.dark}`;
    if (this.whatIf.dataset.of === key) return;
    this.whatIf.dataset.of = key;
    this.whatIf.hidden = !track.whatIf.length;
    this.whatIf.replaceChildren(...whatIfWords(track, theme));
    this.reserved = track.whatIf.length ? new ReservedTable(track, theme) : null;
  }

  private listenToStrip(): void {
    let grip: { kind: "move" | "from" | "to"; offset: number } | null = null;
    const { store } = this.host;
    const place = (event: PointerEvent) =>
      this.overview.place(this.scene(), store.state, this.strip.clientWidth, event.offsetX);
    this.strip.addEventListener("pointerdown", (event) => {
      const [a, b] = this.overview.handles(this.scene(), store.state, this.strip.clientWidth);
      const [from, to] = this.scene().window(store.state);
      const at = place(event);
      this.strip.setPointerCapture(event.pointerId);
      if (Math.abs(event.offsetX - a) < 6) grip = { kind: "from", offset: 0 };
      else if (Math.abs(event.offsetX - b) < 6) grip = { kind: "to", offset: 0 };
      else {
        if (at < from || at > to)
          setWindow(this, store, at - (to - from) / 2, at + (to - from) / 2);
        grip = { kind: "move", offset: at - this.scene().window(store.state)[0] };
      }
    });
    this.strip.addEventListener("pointermove", (event) => {
      if (!grip) return;
      const [from, to] = this.scene().window(store.state);
      const at = place(event);
      if (grip.kind === "from") setWindow(this, store, Math.min(at, to - 4), to);
      else if (grip.kind === "to") setWindow(this, store, from, Math.max(at, from + 4));
      else {
        const start = Math.max(
          0,
          Math.min(at - grip.offset, this.scene().axis(store.state.axis).end - (to - from)),
        );
        setWindow(this, store, start, start + (to - from));
      }
    });
    this.strip.addEventListener("pointerup", () => (grip = null));
  }
}

function note(found: Hit): string {
  return found.merged ? "Too small or too short here to be drawn by itself." : "";
}
