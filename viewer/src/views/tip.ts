// What is under the pointer, in words beside it.

import { h } from "../draw/dom";

export class Tip {
  readonly element = h("div", { class: "tip", hidden: true });

  constructor(private readonly canvas: HTMLCanvasElement) {}

  hide(): void {
    this.element.hidden = true;
  }

  /** Beside the pointer, on the side and up or down to where there is more room; hidden where there is nothing to say. */
  show(x: number, y: number, parts: (Node | string)[] | null): void {
    if (!parts?.length) return this.hide();
    this.element.replaceChildren(...parts);
    const { style } = this.element;
    // As they were last set: to ask the page for them would lay it out once more.
    const [wide, high] = [
      parseFloat(this.canvas.style.width),
      parseFloat(this.canvas.style.height),
    ];
    const [left, upper] = [x <= wide * 0.62, y <= high * 0.6];
    this.element.hidden = false;
    style.left = left ? `${x + 14}px` : "auto";
    style.right = left ? "auto" : `${wide - x + 14}px`;
    style.top = upper ? `${Math.max(0, y - 64)}px` : "auto";
    style.bottom = upper ? "auto" : `${Math.max(4, high - y - 64)}px`;
  }
}
