// The edges between the parts of the page: drag them, or move them with the arrow keys; the browser remembers.

import { h } from "../draw/dom";

const KEY = "vramlens.sizes";
const STEP = 24;

interface Sizes {
  aside?: number;
  drawer?: number;
}

/** What the browser remembers; nothing where it remembers nothing for pages of files. */
function remembered(): Sizes {
  try {
    const sizes: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return sizes && typeof sizes === "object" ? sizes : {};
  } catch {
    return {};
  }
}

function remember(sizes: Sizes): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(sizes));
  } catch {
    // A browser that keeps nothing: the sizes hold for this page.
  }
}

export class Splitters {
  private readonly sizes = remembered();

  constructor(
    private readonly aside: HTMLElement,
    private readonly drawer: HTMLElement,
  ) {
    const upright = this.edge("vertical", "Width of the verdict", (event) => event.clientX);
    const across = this.edge(
      "horizontal",
      "Height of the details",
      (event) => window.innerHeight - event.clientY,
    );
    drawer.parentElement!.prepend(upright);
    drawer.before(across);
    new MutationObserver(() => (across.hidden = drawer.hidden)).observe(drawer, {
      attributeFilter: ["hidden"],
    });
    this.apply();
  }

  private edge(
    orientation: "vertical" | "horizontal",
    name: string,
    place: (event: PointerEvent) => number,
  ): HTMLElement {
    const part = orientation === "vertical" ? "aside" : "drawer";
    const bigger = orientation === "vertical" ? "ArrowRight" : "ArrowUp";
    const smaller = orientation === "vertical" ? "ArrowLeft" : "ArrowDown";
    const edge = h("div", {
      class: `splitter ${orientation}`,
      role: "separator",
      tabIndex: 0,
      "aria-orientation": orientation,
      "aria-label": name,
      "aria-valuemin": "0",
      "aria-valuemax": "100",
      "aria-valuenow": "50",
    });
    edge.addEventListener("pointerdown", (event) => {
      edge.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    edge.addEventListener("pointermove", (event) => {
      if (edge.hasPointerCapture(event.pointerId)) this.set(part, place(event));
    });
    edge.addEventListener("pointerup", () => remember(this.sizes));
    edge.addEventListener("dblclick", () => {
      delete this.sizes[part];
      this.apply();
      remember(this.sizes);
    });
    edge.addEventListener("keydown", (event) => {
      const by = event.key === bigger ? STEP : event.key === smaller ? -STEP : 0;
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      const box = this[part].getBoundingClientRect();
      this.set(part, (part === "aside" ? box.width : box.height) + by);
      remember(this.sizes);
    });
    return edge;
  }

  private set(part: "aside" | "drawer", pixels: number): void {
    const most = part === "aside" ? window.innerWidth * 0.6 : window.innerHeight * 0.6;
    this.sizes[part] = Math.round(Math.min(most, Math.max(80, pixels)));
    this.apply();
  }

  private apply(): void {
    const { aside, drawer } = this.sizes;
    const pixels = (size: unknown): string =>
      typeof size === "number" && size >= 80 && size <= 4000 ? `${size}px` : "";
    this.aside.style.width = pixels(aside);
    this.drawer.style.height = pixels(drawer);
    window.dispatchEvent(new Event("resize"));
  }
}
