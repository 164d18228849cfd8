// The address view: addresses over time, and below it the heap at the cursor, event by event.

import { count, counted, shortSize, size } from "../base/format";
import { CanvasSurface, type Surface } from "../draw/surface";
import { blocksOf, holeAt } from "../layout/heap";
import { Space } from "../layout/space";
import { h, sharp } from "../draw/dom";
import { eventWords } from "./event_words";
import { listen, setWindow, type Target } from "./input";
import type { Host, Pane } from "../state/pane";
import { type AddressMap, addressMap } from "./address_map";
import { drawMarkers, drawTimeAxis, type Plot, plotOf } from "./frame";
import { type Found, HeapBlocks, holeWords } from "./heap_blocks";

export class AddressesPane implements Pane, Target {
  readonly element: HTMLElement;
  readonly canvas = h("canvas", {
    class: "picture",
    tabIndex: 0,
    role: "img",
    "aria-label": "Addresses over time: what is in use, and the holes between",
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
  private readonly spaces = new Map<number, Space>();
  private map: AddressMap | null = null;
  private shown: Plot | null = null;
  private drawnAs = "";
  /** What part of the space is looked at; null is all. */
  private range: [number, number] | null = null;

  constructor(private readonly host: Host) {
    this.element = h(
      "section",
      { class: "pane addresses" },
      h("div", { class: "canvas" }, this.canvas),
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
      h("div", { class: "blocks" }, this.heapCanvas),
    );
    listen(this, host.store);
    this.heapCanvas.addEventListener("pointermove", (event) =>
      this.overHeap(event.offsetX, event.offsetY, false),
    );
    this.heapCanvas.addEventListener("click", (event) =>
      this.overHeap(event.offsetX, event.offsetY, true),
    );
    this.heapCanvas.addEventListener("pointerleave", () => host.inspect(null));
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
      this.host.marked()?.flags ?? null,
    );
    this.sayWhatIsShown();
  }

  picture(surface: Surface): void {
    const { host } = this;
    const scene = host.scene();
    const state = host.store.state;
    const theme = host.theme();
    const plot = plotOf(scene, state, surface.width, surface.height, false);
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
    this.drawSegmentLabels(surface, plot, range);
    drawTimeAxis(surface, plot, scene, state, theme);
    drawMarkers(surface, plot, scene, state, theme);
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
    return this.range ?? [0, this.space().total];
  }

  hover(x: number, y: number): void {
    const found = this.at(x, y);
    this.host.inspect(found && found.row >= 0 ? found.row : null, found?.words ?? "");
  }

  leave(): void {
    this.host.inspect(null);
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
    if (factor) this.zoomSpace(factor, 0.5);
    else if (event.key === "0") this.range = null;
    else return false;
    return factor !== undefined;
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
    this.range = length >= total ? null : [start, start + length];
    this.draw();
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
    if (block) return { row: block.row, words: "" };
    const { segment } = track;
    const around = track
      .segmentsAlive(event)
      .find(
        (one) =>
          segment.address[one] <= address && address < segment.address[one] + segment.bytes[one],
      );
    const hole = around === undefined ? null : holeAt(track, blocks, around, address);
    return hole ? { row: hole.oldest, words: holeWords(hole) } : null;
  }

  private space(): Space {
    const { track } = this.host.store.state;
    let found = this.spaces.get(track);
    if (!found) this.spaces.set(track, (found = new Space(this.scene().track)));
    return found;
  }

  private overHeap(x: number, y: number, chosen: boolean): void {
    const found = this.heap.at(this.scene(), x, y);
    if (chosen) this.host.store.set({ selected: found?.row ?? -1 });
    this.host.inspect(found && found.row >= 0 ? found.row : null, found?.words ?? "");
  }

  private move(by: number): void {
    const { store } = this.host;
    const { track } = this.scene();
    store.set({ cursor: Math.max(-1, Math.min(track.events - 1, store.state.cursor + by)) });
  }

  private drawSegmentLabels(surface: Surface, plot: Plot, [low, high]: [number, number]): void {
    const space = this.space();
    const theme = this.host.theme();
    let last = Infinity;
    space.below.forEach((below, i) => {
      const y =
        plot.top + plot.height - ((below + space.sizes[i] / 2 - low) / (high - low)) * plot.height;
      if (y < plot.top || y > plot.top + plot.height || last - y < 15) return;
      last = y;
      surface.text(shortSize(space.sizes[i]), plot.left - 8, y, theme.soft, "right");
    });
  }

  private sayWhatIsShown(): void {
    const { map } = this;
    const { track } = this.scene();
    const { state } = this.host.store;
    if (!map) return;
    const small = map.small
      ? `; ${count(map.small)} are under a pixel and drawn as one${map.every > 1 ? `, one of ${map.every} drawn` : ""}`
      : "";
    this.words.textContent = `Faintest grey: reserved and free. ${counted(map.drawn, "block")} of ${count(track.n)} drawn${small}. Zoom in for the rest.`;
    const active = track.active.at(state.cursor);
    const reserved = track.reserved.at(state.cursor);
    this.step.textContent = `${eventWords(track, state.cursor)}.  ${size(active)} of ${size(reserved)} reserved in use, ${size(Math.max(0, reserved - active))} free.`;
  }
}
