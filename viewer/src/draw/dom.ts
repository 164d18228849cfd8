// Elements from code. Text is always text: nothing here or anywhere in the viewer reads markup.

type Child = Node | string | null | false | undefined;
type Property = string | number | boolean | ((event: never) => unknown);
type Properties = Record<string, Property | null | undefined>;

export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value !== undefined && value !== null && value !== false) put(element, name, value);
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

function put(element: HTMLElement, name: string, value: Property): void {
  if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
  else if (name === "class") element.className = String(value);
  else if (name in element && !name.includes("-") && name !== "role" && name !== "list")
    (element as unknown as Properties)[name] = value;
  else element.setAttribute(name, value === true ? "" : String(value));
}

export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren(...children.filter((child): child is Node | string => Boolean(child)));
}

/** Calls at most once a frame, however often it is asked. */
export function eachFrame(call: () => void): () => void {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      call();
    });
  };
}

/** Sizes of what canvases fill: asked for once, then told by the browser, which need not lay out the page to be asked. */
const sizes = new WeakMap<Element, { width: number; height: number }>();
const observer = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) sizes.set(target, contentRect);
  window.dispatchEvent(new Event("resize"));
});

/** A canvas that fills its parent, sharp on any screen. */
export function sharp(canvas: HTMLCanvasElement): { width: number; height: number; ratio: number } {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const parent = canvas.parentElement!;
  let box = sizes.get(parent);
  if (!box?.width) {
    sizes.set(parent, (box = parent.getBoundingClientRect()));
    observer.observe(parent);
  }
  const width = Math.max(1, Math.floor(box.width));
  const height = Math.max(1, Math.floor(box.height));
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  return { width, height, ratio };
}
