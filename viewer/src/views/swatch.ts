// A small square of a group's colour.

import { h } from "../draw/dom";

export function swatch(colour: string): HTMLElement {
  const element = h("i", { class: "swatch" });
  element.style.background = colour;
  return element;
}
