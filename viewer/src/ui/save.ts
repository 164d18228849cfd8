// What is shown, as a file that stands for itself: PNG of the pixels, SVG of the shapes, with title, verdict and legend.

import { CanvasSurface, type Surface } from "../draw/surface";
import { ShiftedSurface } from "../draw/shifted";
import { SvgSurface } from "../draw/svg";
import { css } from "../base/palette";
import { h } from "../draw/dom";
import type { Host, Pane } from "../state/pane";
import { captionHeight, drawCaption, drawLegend, legendHeight } from "../views/caption";

const RATIO = 2;

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
  const canvas = document.createElement("canvas");
  const { width, height } = sizeOf(host, pane);
  canvas.width = width * RATIO;
  canvas.height = height * RATIO;
  compose(new CanvasSurface(canvas, width, height, RATIO, host.theme().font), host, pane);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (blob) save(blob, "png");
}

function svg(host: Host, pane: Pane): void {
  if (!pane.picture || !pane.extent) return;
  const { width, height } = sizeOf(host, pane);
  const surface = new SvgSurface(width, height, host.theme().font);
  compose(surface, host, pane);
  save(new Blob([surface.markup()], { type: "image/svg+xml" }), "svg");
}

/** How large the picture is with what stands around it. */
function sizeOf(host: Host, pane: Pane): { width: number; height: number } {
  const { width, height } = pane.extent!();
  const ruler = new SvgSurface(width, height, host.theme().font);
  return { width, height: height + captionHeight(host) + legendHeight(ruler, host) };
}

function compose(surface: Surface, host: Host, pane: Pane): void {
  const { height } = pane.extent!();
  const top = captionHeight(host);
  surface.rect(0, 0, surface.width, surface.height, css(host.theme().paper));
  drawCaption(surface, host);
  pane.picture!(new ShiftedSurface(surface, top, height));
  drawLegend(surface, host, top + height);
}

function save(blob: Blob, ending: string): void {
  const address = URL.createObjectURL(blob);
  h("a", {
    href: address,
    download: `${document.title.replace(/[^\w.-]+/g, "-")}.${ending}`,
  }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
