// What is shown, as a file: PNG of the pixels, SVG of the shapes.

import { CanvasSurface } from "../draw/surface";
import { SvgSurface } from "../draw/svg";
import { css } from "../base/palette";
import { h } from "../draw/dom";
import type { Host, Pane } from "../state/pane";

export function saveButtons(host: Host, pane: () => Pane): HTMLElement {
  return h(
    "span",
    { class: "save" },
    h(
      "button",
      { title: "the picture as a PNG file", onclick: () => void png(host, pane()) },
      "PNG",
    ),
    h("button", { title: "the picture as an SVG file", onclick: () => svg(host, pane()) }, "SVG"),
  );
}

async function png(host: Host, pane: Pane): Promise<void> {
  if (!pane.picture || !pane.extent) return;
  const { width, height } = pane.extent();
  const canvas = document.createElement("canvas");
  const ratio = 2;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const surface = new CanvasSurface(canvas, width, height, ratio, host.theme().font);
  surface.rect(0, 0, width, height, css(host.theme().paper));
  pane.picture(surface);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (blob) save(blob, "png");
}

function svg(host: Host, pane: Pane): void {
  if (!pane.picture || !pane.extent) return;
  const { width, height } = pane.extent();
  const surface = new SvgSurface(width, height, host.theme().font);
  surface.rect(0, 0, width, height, css(host.theme().paper));
  pane.picture(surface);
  save(new Blob([surface.markup()], { type: "image/svg+xml" }), "svg");
}

function save(blob: Blob, ending: string): void {
  const address = URL.createObjectURL(blob);
  h("a", {
    href: address,
    download: `${document.title.replace(/[^\w.-]+/g, "-")}.${ending}`,
  }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
