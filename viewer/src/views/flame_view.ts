// The flame graph of the view "Who", and a frame between its callers and callees: with the pointer and the keyboard.

import { count, counted, share } from "../base/format";
import { CanvasSurface, type Surface } from "../draw/surface";
import { fill, h, sharp } from "../draw/dom";
import { type Flame, flameAt, flameOf, levelsIn, neighbor, pathOf } from "../layout/flame_tree";
import {
  isCaller,
  type Sandwich,
  sandwichNeighbor,
  sandwichOf,
  siblingsOf,
} from "../layout/sandwich";
import { heaviestFrame, stackSums } from "../layout/stack_sums";
import type { Weighed } from "../layout/tally";
import type { Host } from "../state/pane";
import { parse, pattern } from "../state/query";
import { drawFlame, frameAt, LINE, type Shown } from "./flame";
import { MOMENT_WORDS } from "./moment_words";
import { centerTop, drawSandwich, sandwichHeight } from "./sandwich";

const FLAME_WORDS =
  "Bytes by stack, the outermost frame on top: arrow keys go from frame to frame, Enter zooms in, Escape out, V shows callers and callees";
const SANDWICH_WORDS =
  "Bytes through one frame, its callers above it and its callees below: arrow keys go from frame to frame, Enter puts another one into the middle, Escape leads back to the flame graph";

/** What is measured: which allocations, and how their bytes are written. */
export interface Measured {
  weighed: Weighed;
  /** Of all of them, those too that the search leaves out. */
  total: number;
  amount: (weight: number) => string;
}

export class FlameView {
  readonly path = h("nav", { class: "path", "aria-label": "Frames above", hidden: true });
  readonly words = h("p", { class: "merged" });
  private readonly canvas = h("canvas", {
    class: "flame",
    tabIndex: 0,
    role: "application",
    "aria-roledescription": "flame graph",
  });
  readonly scroll = h("div", { class: "canvas flames" }, h("div", { class: "inner" }, this.canvas));
  private measured: Measured | null = null;
  private root: Flame | null = null;
  private focus: Flame | null = null;
  private sandwich: Sandwich | null = null;
  /** The frame that the keyboard is at. */
  private chosen: Flame | null = null;
  private shown: Shown[] = [];
  private made = "";

  constructor(private readonly host: Host) {
    this.canvas.addEventListener("pointermove", (event) => this.over(event));
    this.canvas.addEventListener("pointerleave", () => host.inspect(null));
    this.canvas.addEventListener("click", (event) => {
      const flame = frameAt(this.shown, event.offsetX, event.offsetY);
      if (flame) this.open(flame);
    });
    this.canvas.addEventListener("focus", () => {
      // A click has chosen its frame by itself.
      if (!this.chosen && this.canvas.matches(":focus-visible")) this.choose(this.middle());
    });
  }

  draw(measured: Measured): void {
    const { state } = this.host.store;
    const isNew = measured !== this.measured;
    const made = `${state.frames},${state.around}`;
    this.measured = measured;
    if (isNew || made !== this.made) this.make();
    this.made = made;
    this.focus = flameAt(this.root!, state.zoom);
    this.drawPicture();
    this.drawPath();
  }

  picture(surface: Surface): void {
    if (!this.measured || !this.focus) return;
    const { state } = this.host.store;
    const { text } = parse(state.search);
    const look = {
      theme: this.host.theme(),
      wanted: text ? pattern(text) : null,
      chosen: this.chosen,
      value: this.measured.amount,
    };
    const bars = this.sandwich
      ? drawSandwich(surface, this.sandwich, look)
      : drawFlame(surface, this.focus, look);
    this.shown = bars.shown;
    this.words.textContent = this.sentence(bars.hidden);
  }

  extent(): { width: number; height: number } {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  key(event: KeyboardEvent): boolean {
    if (event.key.toLowerCase() === "v" && this.root) {
      this.turn(!this.sandwich);
      return true;
    }
    if (this.sandwich && event.key === "Escape") {
      this.turn(false);
      return true;
    }
    const at = this.chosen ?? this.middle();
    return document.activeElement === this.canvas && at ? this.keyAt(at, event.key) : false;
  }

  /** A key while the keyboard is at a frame. */
  private keyAt(flame: Flame, key: string): boolean {
    if (key === "Escape") return this.goOut();
    if (key === "Enter") {
      this.open(flame);
      if (!this.sandwich) this.choose(flame);
      return true;
    }
    if (!key.startsWith("Arrow")) return false;
    const next = this.chosen ? this.next(flame, key) : null;
    this.choose(next ?? flame);
    return true;
  }

  /** Shows the callers and callees of the frame that is chosen, or zoomed in on, or holds most; or the flame graph again. */
  turn(isSandwich: boolean): void {
    const { store } = this.host;
    if (!isSandwich) return store.set({ around: -1 });
    const { track } = this.host.scene();
    const asked = [this.chosen, this.focus].find((flame) => flame && flame.frame >= 0)?.frame;
    const frame = asked ?? heaviestFrame(track, stackSums(track, this.measured!.weighed));
    if (frame < 0) return this.host.say("No frame: these allocations have no stack.");
    this.center(frame);
  }

  private make(): void {
    const { host } = this;
    const { state } = host.store;
    const { track } = host.scene();
    const { weighed } = this.measured!;
    const before = this.sandwich?.center.frame;
    this.root = flameOf(track, weighed, MOMENT_WORDS[state.of], state.frames);
    this.sandwich =
      state.around < 0 ? null : sandwichOf(track, weighed, state.around, state.frames);
    const isFocused = document.activeElement === this.canvas;
    this.chosen = (isFocused && this.sandwich?.center) || null;
    this.canvas.setAttribute("aria-label", this.sandwich ? SANDWICH_WORDS : FLAME_WORDS);
    if (this.sandwich?.center.frame !== before) this.begin();
  }

  /** Brings the middle of another picture into view, and says it. */
  private begin(): void {
    this.resize();
    const top = this.sandwich ? centerTop(this.sandwich) : 0;
    this.scroll.scrollTop = top - this.scroll.clientHeight / 3;
    if (this.sandwich) this.saySandwich(this.sandwich);
  }

  private saySandwich({ center, callers }: Sandwich): void {
    this.host.say(
      `Callers and callees of ${this.nameWords(center)}: ${counted(callers.length, "caller")}, ${counted(center.inside.length, "callee")}`,
    );
  }

  private sentence(hidden: number): string {
    const { weighed, total, amount } = this.measured!;
    const { state } = this.host.store;
    const unit = weighed.unit === "bytes" ? "" : ` (${weighed.unit})`;
    const of = `${amount(total)}${unit} ${MOMENT_WORDS[state.of]}`;
    const matching = this.root!.weight;
    const lead = state.search.trim() ? `${amount(matching)} of ${of} match the search` : of;
    const frames = counted(hidden, "frame");
    const left = hidden ? `${frames} under half a pixel` : "";
    const { sandwich } = this;
    const lent = sandwich?.lent
      ? `, ${amount(sandwich.lent)} more likely for it, asked for with no stack through it`
      : "";
    if (sandwich)
      return `${lead}; amber is your code; ${amount(sandwich.center.weight)} of it through ${sandwich.center.name}${lent}; click a frame to put it into the middle${left && `; ${left}`}.`;
    const way = left ? `${left}: click one to zoom in` : "click a frame to zoom in";
    return `${lead}; amber is your code; ${way}.`;
  }

  /** Where the keyboard begins. */
  private middle(): Flame | null {
    return this.sandwich?.center ?? this.focus;
  }

  private next(flame: Flame, key: string): Flame | null {
    return this.sandwich ? sandwichNeighbor(this.sandwich, flame, key) : neighbor(flame, key);
  }

  /** What a click on a frame does: it is zoomed in on, or stands in the middle. */
  private open(flame: Flame): void {
    if (this.sandwich) return this.center(flame.frame);
    this.chosen = flame;
    this.zoomTo(flame === this.focus ? this.root! : flame);
  }

  private center(frame: number): void {
    this.host.store.set({ around: frame });
  }

  private goOut(): boolean {
    if (this.focus === this.root) return false;
    this.zoomTo(this.focus!.parent ?? this.root!);
    this.choose(this.focus);
    return true;
  }

  /** Goes to a frame: it is outlined, brought into view, shown in the drawer and said. */
  private choose(flame: Flame | null): void {
    if (!flame) return;
    this.chosen = flame;
    this.drawPicture();
    const isShown = (): boolean => this.shown.some((bar) => bar.flame === flame);
    if (!isShown() && !this.sandwich) {
      this.zoomTo(flame.parent ?? this.root!); // under half a pixel, or beside what is zoomed in on
      this.drawPicture();
    }
    this.reveal(flame);
    this.host.say(this.said(flame));
    this.inspectFlame(flame);
  }

  private reveal(flame: Flame): void {
    const place = this.shown.find((bar) => bar.flame === flame);
    if (!place) return;
    const { scrollTop, clientHeight } = this.scroll;
    if (place.y < scrollTop) this.scroll.scrollTop = place.y;
    else if (place.y + LINE > scrollTop + clientHeight)
      this.scroll.scrollTop = place.y + LINE - clientHeight;
  }

  private nameWords(flame: Flame): string {
    const { amount, total } = this.measured!;
    const own = flame.user && flame !== this.root ? ", your code" : "";
    return `${flame.name}, ${amount(flame.weight)}, ${share(flame.weight, total)}${own}`;
  }

  private said(flame: Flame): string {
    const { sandwich } = this;
    const siblings = sandwich ? siblingsOf(sandwich, flame) : (flame.parent?.inside ?? [flame]);
    const number = `${count(siblings.indexOf(flame) + 1)} of ${count(siblings.length)}`;
    const where = siblings.length > 1 ? `, ${number} beside each other` : "";
    return `${this.nameWords(flame)}${this.placeWords(flame)}${where}${this.insideWords(flame)}`;
  }

  private placeWords(flame: Flame): string {
    if (!this.sandwich) return `, level ${flame.depth}`;
    if (flame === this.sandwich.center) return ", the frame in the middle";
    const side = isCaller(this.sandwich, flame) ? "a caller" : "a callee";
    return `, ${side}, level ${flame.depth}`;
  }

  private insideWords(flame: Flame): string {
    const inside = count(flame.inside.length);
    if (this.sandwich && flame === this.sandwich.center)
      return `, ${counted(this.sandwich.callers.length, "caller")}, ${counted(flame.inside.length, "callee")}`;
    if (this.sandwich && isCaller(this.sandwich, flame))
      return flame.inside.length ? `, ${inside} above` : ", the outermost";
    const zoomed = flame === this.focus && flame !== this.root ? ", zoomed in" : "";
    return `, ${flame.inside.length ? `${inside} inside` : "nothing inside"}${zoomed}`;
  }

  /** Zooms in on a frame; the way there is part of the page's address. */
  private zoomTo(flame: Flame): void {
    this.focus = flame;
    this.host.store.set({ zoom: pathOf(flame) });
  }

  /** The frames above the one that is looked at: a click leads back to each. */
  private drawPath(): void {
    const frames: Flame[] = [];
    if (this.sandwich) frames.push(this.root!, this.sandwich.center);
    else for (let flame = this.focus; flame; flame = flame.parent) frames.unshift(flame);
    this.path.hidden = frames.length < 2;
    const links = frames.map((flame, i) =>
      h(
        "button",
        {
          class: "link",
          title: flame.long,
          "aria-current": i === frames.length - 1 ? "true" : undefined,
          onclick: () => this.goTo(flame),
        },
        flame.name,
      ),
    );
    fill(this.path, ...links);
  }

  private goTo(flame: Flame): void {
    if (!this.sandwich) this.zoomTo(flame);
    else if (flame === this.root) this.turn(false);
  }

  private inspectFlame(flame: Flame | null): void {
    this.host.inspect(
      flame && flame.example >= 0 ? flame.example : null,
      flame && flame.weight > flame.most ? "The largest of what this frame asked for." : "",
    );
  }

  private resize(): void {
    const levels = this.sandwich
      ? sandwichHeight(this.sandwich)
      : (levelsIn(this.root!) + 1) * LINE;
    const inner = this.canvas.parentElement!;
    inner.style.height = `${Math.max(levels, this.scroll.clientHeight - 1)}px`;
  }

  private drawPicture(): void {
    if (!this.root) return;
    this.resize();
    const box = sharp(this.canvas);
    this.picture(
      new CanvasSurface(this.canvas, box.width, box.height, box.ratio, this.host.theme().font),
    );
  }

  private over(event: PointerEvent): void {
    const flame = frameAt(this.shown, event.offsetX, event.offsetY);
    const { amount, total } = this.measured!;
    this.canvas.title = flame
      ? `${flame.long}\n${amount(flame.weight)}, ${share(flame.weight, total)}`
      : "";
    this.inspectFlame(flame);
  }
}
