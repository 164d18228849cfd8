// Mouse, wheel and keys over a picture of time: pan, zoom, hover, choose.

import type { Plot } from "./frame";
import { clamp, type Scene } from "../state/scene";
import type { State, Store } from "../state/store";

export interface Target {
  canvas: HTMLCanvasElement;
  scene(): Scene;
  plot(): Plot | null;
  /** The bytes shown, from and to; null where the picture cannot be zoomed that way. */
  bytes(): [number, number] | null;
  /** Zooms bytes of its own, which other pictures do not share, around a share of the height. */
  zoomSpace?(factor: number, share: number): void;
  /** Moves those bytes by a share of the height, since a drag began. */
  dragSpace?(share: number, from: [number, number]): void;
  hover(x: number, y: number): void;
  leave(): void;
  click(x: number, y: number, twice: boolean): void;
  /** Asks about what lies between two places across the picture. */
  ask?(from: number, to: number): void;
}

/** Where the pointer is over a picture, as a share of its width. */
const pointers = new WeakMap<object, number>();

/** What a key zooms around: the pointer where it is over the picture, else the cursor where that is shown, else the middle. */
export function pivot(pane: object, scene: Scene, state: State): number {
  const pointer = pointers.get(pane);
  if (pointer !== undefined && pointer >= 0 && pointer <= 1) return pointer;
  const [from, to] = scene.window(state);
  const share = (scene.axis(state.axis).place(state.cursor) - from) / (to - from);
  return share >= 0 && share <= 1 ? share : 0.5;
}

export function listen(target: Target, store: Store): void {
  const { canvas } = target;
  let drag: {
    x: number;
    y: number;
    window: [number, number];
    bytes: [number, number] | null;
    moved: boolean;
    select: boolean;
  } | null = null;

  const place = (event: MouseEvent): [number, number] => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener(
    "wheel",
    (event) => {
      const plot = target.plot();
      if (!plot) return;
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
      const [x, y] = place(event);
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) {
        pan(target, store, (event.deltaX * unit) / plot.width);
      } else if (event.shiftKey || event.altKey) {
        const factor = Math.exp((event.deltaY || event.deltaX) * unit * 0.0022);
        const share = (plot.top + plot.height - y) / plot.height;
        if (target.zoomSpace) target.zoomSpace(factor, share);
        else zoomBytes(target, store, factor, share);
      } else {
        zoom(target, store, Math.exp(event.deltaY * unit * 0.0022), (x - plot.left) / plot.width);
      }
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    const plot = target.plot();
    if (event.button || !plot) return;
    const [x, y] = place(event);
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    drag = {
      x,
      y,
      window: target.scene().window(store.state),
      bytes: target.dragSpace ? target.bytes() : store.state.bytes,
      moved: false,
      select: event.shiftKey,
    };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    const plot = target.plot();
    if (plot) pointers.set(target, (x - plot.left) / plot.width);
    if (!drag || !plot) return target.hover(x, y);
    if (!drag.moved && Math.hypot(x - drag.x, y - drag.y) < 4) return;
    drag.moved = true;
    if (drag.select) return ask(target, plot, drag.x, x);
    const [from, to] = drag.window;
    move(target, store, from - ((x - drag.x) / plot.width) * (to - from), to - from);
    if (drag.bytes && target.dragSpace) {
      target.dragSpace((y - drag.y) / plot.height, drag.bytes);
    } else if (drag.bytes) {
      const [low, high] = drag.bytes;
      const by = Math.max(-low, ((y - drag.y) / plot.height) * (high - low));
      store.set({ bytes: [low + by, high + by] });
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = place(event);
    const plot = target.plot();
    if (drag?.select && drag.moved && plot) ask(target, plot, drag.x, x);
    else if (drag && !drag.moved) target.click(x, y, false);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("dblclick", (event) => target.click(...place(event), true));
  canvas.addEventListener("pointerleave", () => {
    pointers.delete(target);
    target.leave();
  });
}

function ask(target: Target, plot: Plot, from: number, to: number): void {
  const at = (x: number) => plot.from + ((x - plot.left) / plot.width) * (plot.to - plot.from);
  target.ask?.(at(Math.min(from, to)), at(Math.max(from, to)));
}

export function zoom(
  target: Pick<Target, "scene">,
  store: Store,
  factor: number,
  share = 0.5,
): void {
  const [from, to] = target.scene().window(store.state);
  const { end, shortest } = target.scene().axis(store.state.axis);
  const length = Math.min(end, Math.max(Math.min(shortest, end), (to - from) * factor));
  const pivot = from + Math.min(1, Math.max(0, share)) * (to - from);
  const start = pivot - ((pivot - from) / (to - from)) * length;
  setWindow(target, store, start, start + length);
}

export function pan(target: Pick<Target, "scene">, store: Store, share: number): void {
  const [from, to] = target.scene().window(store.state);
  move(target, store, from + share * (to - from), to - from);
}

function move(target: Pick<Target, "scene">, store: Store, from: number, length: number): void {
  const { end } = target.scene().axis(store.state.axis);
  const start = Math.max(0, Math.min(from, end - length));
  setWindow(target, store, start, start + length);
}

export function setWindow(
  target: Pick<Target, "scene">,
  store: Store,
  from: number,
  to: number,
): void {
  const axis = target.scene().axis(store.state.axis);
  const window = clamp(from, to, axis.end, axis.shortest);
  store.set({ window: window[1] - window[0] >= axis.end ? null : window });
}

export function zoomBytes(
  target: Pick<Target, "scene" | "bytes">,
  store: Store,
  factor: number,
  share = 0.5,
): void {
  const shown = target.bytes();
  if (!shown) return;
  const [low, high] = shown;
  const most = Math.max(high, 1);
  const length = Math.max(1024, (high - low) * factor);
  const pivot = low + Math.min(1, Math.max(0, share)) * (high - low);
  const start = Math.max(0, pivot - ((pivot - low) / (high - low)) * length);
  const whole = factor > 1 && start === 0 && length >= most;
  store.set({
    bytes: whole && store.state.bytes === null ? null : wholeOr(start, length, target, store),
  });
}

function wholeOr(
  start: number,
  length: number,
  target: Pick<Target, "scene">,
  store: Store,
): State["bytes"] {
  if (length >= target.scene().ceiling(store.state)) return null;
  return [start, start + length];
}
