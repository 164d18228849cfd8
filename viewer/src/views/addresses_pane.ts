// The address view: addresses over time, and below it the heap at the cursor, event by event.

import { count, counted, shortSize, size } from "../base/format";
import { css } from "../base/palette";
import type { Holes } from "../data/holes";
import { CanvasSurface, type Surface } from "../draw/surface";
import { blocksOf, holeAt } from "../layout/heap";
import { Space } from "../layout/space";
import { h, sharp } from "../draw/dom";
import { eventWords } from "./event_words";
import { listen, setWindow, type Target } from "./input";
import type { Host, Pane } from "../state/pane";
import { type AddressMap, addressMap } from "./address_map";
import { blockWords, segmentLabel, segmentWords } from "./block_words";
import { EventLog } from "./event_log";
import { drawMarkers, drawTimeAxis, type Plot, plotOf, xOf } from "./frame";
import { type Found, HeapBlocks, HOLE, holeWords } from "./heap_blocks";
import { askBetween } from "./ruler";
import { Tip } from "./tip";

export class AddressesPane implements Pane, Target {
  readonly element: HTMLElement;
  readonly canvas = h("canvas", {
    class: "picture",
    tabIndex: 0,
    role: "img",
    "aria-label": "Addresses over time: what is in use, and what is free between",
  });
  private readonly heapCanvas = h("canvas", {
    class: "heap",
    tabIndex: 0,
    role: "img",
    "aria-label": "The heap at the cursor, block by block",
  });
  private readonly words = h("p", { class: "merged" });
  private readonly step = h("p", { class: "event", role: "status" });
  private readonly heap = new HeapBlocks();
  private readonly tip = new Tip(this.canvas);
  private readonly heapTip = new Tip(this.heapCanvas);
  private readonly log: EventLog;
  private readonly spaces = new Map<number, Space>();
  private map: AddressMap | null = null;
  private shown: Plot | null = null;
  private drawnAs = "";

  constructor(private readonly host: Host) {
    this.log = new EventLog(host);
    this.element = h(
      "section",
      { class: "pane addresses" },
      h("div", { class: "canvas" }, this.canvas, this.tip.element),
      this.words,
      h(
        "div",
        { class: "stepper" },
        h(
          "button",
          {
            title: "the event before (←)",
            "aria-label": "The event before",
            onclick: () => this.move(-1),
          },
          "‹",
        ),
        h(
          "button",
          {
            title: "the event after (→)",
            "aria-label": "The event after",
            onclick: () => this.move(1),
          },
          "›",
        ),
        this.step,
      ),
      h(
        "div",
        { class: "below" },
        h("div", { class: "blocks" }, this.heapCanvas, this.heapTip.element),
        this.log.element,
      ),
    );
    listen(this, host.store);
    this.heapCanvas.addEventListener("pointermove", (event) =>
      this.overHeap(event.offsetX, event.offsetY, false),
    );
    this.heapCanvas.addEventListener("click", (event) =>
      this.overHeap(event.offsetX, event.offsetY, true),
    );
    this.heapCanvas.addEventListener("pointerleave", () => {
      this.heapTip.hide();
      host.inspect(null);
    });
  }

  draw(): void {
    const theme = this.host.theme();
    const box = sharp(this.canvas);
    this.picture(new CanvasSurface(this.canvas, box.width, box.height, box.ratio, theme.font));
    const below = sharp(this.heapCanvas);
    const surface = new CanvasSurface(
      this.heapCanvas,
      below.width,
      below.height,
      below.ratio,
      theme.font,
    );
    this.heap.draw(
      surface,
      this.host.scene(),
      this.host.store.state,
      this.space(),
      theme,
      this.host.marked() ?? null,
    );
    this.log.draw();
    this.sayWhatIsShown();
  }

  picture(surface: Surface): void {
    const { host } = this;
    const scene = host.scene();
    const state = host.store.state;
    const theme = host.theme();
    const plot = plotOf(scene, state, surface.width, surface.height);
    const range = this.bytes();
    const marked = host.marked()?.flags ?? null;
    const key = [
      state.track,
      state.by,
      scene.axis(state.axis).kind,
      plot.from,
      plot.to,
      plot.width,
      plot.height,
      range,
      theme.dark,
      state.finding,
      state.search,
      state.group,
      /\balive\b/i.test(state.search) ? state.cursor : "",
    ].join();
    if (key !== this.drawnAs || !this.map)
      this.map = addressMap(
        scene,
        state,
        this.space(),
        scene.groups(state.by),
        plot,
        range,
        marked,
        theme.paper,
      );
    this.drawnAs = key;
    this.shown = plot;
    surface.pixels(this.map.image, plot.left, plot.top, plot.width, plot.height);
    const holes = host.marked()?.holes;
    if (holes) this.drawHoles(surface, plot, holes);
    this.drawSegmentLabels(surface, plot, range);
    const drawing = { surface, plot, scene, state, theme };
    drawTimeAxis(drawing);
    drawMarkers(drawing);
  }

  extent(): { width: number; height: number } {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  scene() {
    return this.host.scene();
  }

  plot() {
    return this.shown;
  }

  bytes(): [number, number] {
    const { total } = this.space();
    const [low, high] = this.host.store.state.space ?? [0, total];
    return low < total ? [low, Math.min(high, total)] : [0, total];
  }

  hover(x: number, y: number): void {
    const under = this.at(x, y);
    this.host.inspect(under && under.row >= 0 ? under.row : null, under?.words ?? "");
    this.tip.show(x, y, under ? this.tipOf(under) : null);
  }

  leave(): void {
    this.tip.hide();
    this.host.inspect(null);
  }

  /** Asks about the events between two places. */
  ask(from: number, to: number): void {
    askBetween(this.host, from, to);
  }

  /** What is under the pointer: a block with what it takes, or a hole and its segment. */
  private tipOf({ row, words, segment }: Found): (Node | string)[] {
    const { track } = this.scene();
    const { cursor, by } = this.host.store.state;
    const parts: (Node | string)[] = [];
    if (words) parts.push(h("div", {}, h("b", {}, words)));
    else parts.push(...blockWords(this.scene(), by, row, cursor));
    if (segment >= 0) parts.push(h("div", { class: "soft" }, segmentWords(track, segment)));
    return parts;
  }

  private drawHoles(surface: Surface, plot: Plot, holes: Holes): void {
    const [low, high] = this.bytes();
    const scene = this.scene();
    const axis = scene.axis(this.host.store.state.axis);
    const space = this.space();
    const theme = this.host.theme();
    const y = (at: number) => plot.top + plot.height * (1 - (at - low) / (high - low));
    surface.clip(plot.left, plot.top, plot.width, plot.height, () => {
      holes.addresses.forEach((address: number, i: number) => {
        const at = space.height(address);
        const from = Math.max(plot.left, xOf(plot, axis.place(Math.max(0, holes.since[i]))));
        const end = xOf(plot, axis.place(holes.until[i]));
        const to = Math.min(plot.left + plot.width, Math.max(end, from + 3));
        const top = y(at + holes.bytes[i]);
        surface.rect(from, top, to - from, Math.max(1.5, y(at) - top), HOLE[theme.dark ? 1 : 0]);
      });
    });
  }

  click(x: number, y: number, twice: boolean): void {
    const plot = this.shown;
    if (!plot || !this.map) return;
    const column = Math.min(plot.width - 1, Math.max(0, Math.floor(x - plot.left)));
    const found = this.at(x, y);
    const row = found && !found.words ? found.row : -1;
    this.host.store.set({ cursor: this.map.moments.event[column], selected: row });
    if (twice) this.show(row);
  }

  show(row: number): void {
    if (row < 0) return;
    const { track } = this.scene();
    const axis = this.scene().axis(this.host.store.state.axis);
    const from = axis.place(track.born[row]);
    const to = Math.min(axis.end, axis.place(track.died[row]));
    const room = Math.max((to - from) * 0.4, axis.shortest);
    setWindow(this, this.host.store, from - room, to + room);
  }

  key(event: KeyboardEvent): boolean {
    const factor = { e: 0.7, q: 1 / 0.7 }[event.key.toLowerCase()];
    if (factor === undefined) return false;
    this.zoomSpace(factor, 0.5);
    return true;
  }

  zoomSpace(factor: number, share: number): void {
    const [low, high] = this.bytes();
    const { total } = this.space();
    const length = Math.min(total, Math.max(4096, (high - low) * factor));
    const pivot = low + Math.min(1, Math.max(0, share)) * (high - low);
    this.look(pivot - ((pivot - low) / (high - low)) * length, length);
  }

  dragSpace(share: number, [low, high]: [number, number]): void {
    this.look(low + share * (high - low), high - low);
  }

  private look(from: number, length: number): void {
    const { total } = this.space();
    const start = Math.max(0, Math.min(from, total - length));
    this.host.store.set({ space: length >= total ? null : [start, start + length] });
  }

  /** The allocation under a point, or the hole and what keeps its segment. */
  at(x: number, y: number): Found | null {
    const plot = this.shown;
    if (
      !plot ||
      !this.map ||
      x < plot.left ||
      x >= plot.left + plot.width ||
      y < plot.top ||
      y >= plot.top + plot.height
    )
      return null;
    const event = this.map.moments.event[Math.floor(x - plot.left)];
    const [low, high] = this.bytes();
    const space = this.space();
    const address = space.addressAt(
      low + ((plot.top + plot.height - y) / plot.height) * (high - low),
    );
    if (address < 0) return null;
    const { track } = this.scene();
    const blocks = blocksOf(track, space, event);
    const block = blocks.find((one) => one.from <= address && address < one.from + one.bytes);
    const { segment } = track;
    const around =
      track
        .segmentsAlive(event)
        .find(
          (one) =>
            segment.address[one] <= address && address < segment.address[one] + segment.bytes[one],
        ) ?? -1;
    if (block) return { row: block.row, words: "", segment: around };
    const hole = around < 0 ? null : holeAt(track, blocks, around, address);
    return hole ? { row: hole.oldest, words: holeWords(hole), segment: around } : null;
  }

  private space(): Space {
    const { track } = this.host.store.state;
    let found = this.spaces.get(track);
    if (!found) this.spaces.set(track, (found = new Space(this.scene().track)));
    return found;
  }

  private overHeap(x: number, y: number, chosen: boolean): void {
    const under = this.heap.at(this.scene(), x, y);
    if (chosen) this.host.store.set({ selected: under?.row ?? -1 });
    this.host.inspect(under && under.row >= 0 ? under.row : null, under?.words ?? "");
    this.heapTip.show(x, y, under && (under.words || under.row >= 0) ? this.tipOf(under) : null);
  }

  private move(by: number): void {
    const { store } = this.host;
    const { track } = this.scene();
    store.set({ cursor: Math.max(-1, Math.min(track.events - 1, store.state.cursor + by)) });
  }

  /** Beside each range of addresses that has room: how large it is, of which pool and stream. */
  private drawSegmentLabels(surface: Surface, plot: Plot, [low, high]: [number, number]): void {
    const space = this.space();
    const theme = this.host.theme();
    const { track } = this.scene();
    const y = (at: number) => plot.top + plot.height * (1 - (at - low) / (high - low));
    let last = Infinity;
    space.below.forEach((below, i) => {
      const bottom = Math.min(plot.top + plot.height, y(below));
      const top = Math.max(plot.top, y(below + space.sizes[i]));
      const middle = (top + bottom) / 2;
      if (bottom <= top || last - middle < 15) return;
      last = middle;
      surface.text(shortSize(space.sizes[i]), plot.left - 8, middle, theme.soft, "right");
      if (bottom - top < 30) return;
      const label = segmentLabel(track, space.starts[i]);
      const wide = surface.measure(label);
      surface.rect(plot.left + 4, bottom - 15, wide + 8, 13, css(theme.paper, 0.75));
      surface.text(label, plot.left + 8, bottom - 8, theme.soft);
    });
  }

  said(): void {
    this.host.say(this.step.textContent ?? "");
  }

  private sayWhatIsShown(): void {
    const { map } = this;
    const { track } = this.scene();
    const { state } = this.host.store;
    if (!map) return;
    const small = map.small
      ? `, ${map.small === map.drawn ? "each" : `${count(map.small)} of them`} one pixel high${map.every > 1 ? ` (of those under a pixel, one in ${map.every})` : ""}`
      : "";
    this.words.textContent = `Faintest grey: reserved and free. ${counted(map.drawn, "block")} of ${count(track.n)} drawn${small}. Zoom in for the rest.`;
    const active = track.active.at(state.cursor);
    const reserved = track.reserved.at(state.cursor);
    this.step.textContent = `${eventWords(track, state.cursor)}.  ${size(active)} of ${size(reserved)} reserved in use, ${size(Math.max(0, reserved - active))} free.`;
  }
}
