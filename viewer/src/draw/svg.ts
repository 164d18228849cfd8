// An SVG, written call by call. Pixels become runs of rectangles, row by row, joined where they are alike.

import type { Surface } from "./surface";

const number = (value: number): string => String(Math.round(value * 100) / 100);
const escape = (text: string): string =>
  text
    .replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`)
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");

export class SvgSurface implements Surface {
  private readonly parts: string[] = [];
  private clips = 0;
  private readonly ruler = document.createElement("canvas").getContext("2d")!;

  constructor(
    readonly width: number,
    readonly height: number,
    private readonly font: string,
  ) {}

  rect(x: number, y: number, width: number, height: number, fill: string): void {
    if (width > 0 && height > 0)
      this.parts.push(
        `<rect x="${number(x)}" y="${number(y)}" width="${number(width)}" height="${number(height)}" fill="${fill}"/>`,
      );
  }

  line(points: ArrayLike<number>, stroke: string, width: number, dash: number[] = []): void {
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.parts.push(
      `<polyline points="${this.points(points)}" fill="none" stroke="${stroke}" stroke-width="${width}"${dashes}/>`,
    );
  }

  area(points: ArrayLike<number>, fill: string, stroke?: string): void {
    this.parts.push(
      `<polygon points="${this.points(points)}" fill="${fill}"${stroke ? ` stroke="${stroke}"` : ""}/>`,
    );
  }

  text(
    text: string,
    x: number,
    y: number,
    fill: string,
    align: CanvasTextAlign = "left",
    bold = false,
  ): void {
    const anchor = align === "right" ? "end" : align === "center" ? "middle" : "start";
    const weight = bold ? ' font-weight="600"' : "";
    this.parts.push(
      `<text x="${number(x)}" y="${number(y)}" fill="${fill}" text-anchor="${anchor}" dominant-baseline="central"${weight}>${escape(text)}</text>`,
    );
  }

  measure(text: string, bold = false): number {
    this.ruler.font = bold ? `600 ${this.font}` : this.font;
    return this.ruler.measureText(text).width;
  }

  pixels(image: ImageData, x: number, y: number, width: number, height: number): void {
    const words = new Uint32Array(image.data.buffer);
    const scaleX = width / image.width;
    const scaleY = height / image.height;
    const paths = new Map<number, string[]>();
    // Columns that are alike are one: the picture is made of runs along time.
    for (let first = 0; first < image.width;) {
      let next = first + 1;
      while (next < image.width && this.alike(words, image, first, next)) next++;
      for (let top = 0; top < image.height;) {
        const colour = words[top * image.width + first];
        let bottom = top + 1;
        while (bottom < image.height && words[bottom * image.width + first] === colour) bottom++;
        if (colour) {
          const path = paths.get(colour) ?? [];
          paths.set(colour, path);
          path.push(
            `M${number(x + first * scaleX)} ${number(y + top * scaleY)}h${number((next - first) * scaleX)}v${number((bottom - top) * scaleY)}h${number((first - next) * scaleX)}z`,
          );
        }
        top = bottom;
      }
      first = next;
    }
    for (const [colour, path] of paths) {
      const fill = `#${[colour & 255, (colour >> 8) & 255, (colour >> 16) & 255].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
      this.parts.push(`<path fill="${fill}" shape-rendering="crispEdges" d="${path.join("")}"/>`);
    }
  }

  clip(x: number, y: number, width: number, height: number, inside: () => void): void {
    const id = `clip${this.clips++}`;
    this.parts.push(
      `<clipPath id="${id}"><rect x="${x}" y="${y}" width="${width}" height="${height}"/></clipPath><g clip-path="url(#${id})">`,
    );
    inside();
    this.parts.push("</g>");
  }

  markup(): string {
    const family = escape(this.font.replace(/^\d+px /, ""));
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.width} ${this.height}" width="${this.width}" height="${this.height}" font-size="11" font-family="${family}">${this.parts.join("\n")}</svg>\n`;
  }

  private points(points: ArrayLike<number>): string {
    const found: string[] = [];
    for (let i = 0; i < points.length; i += 2)
      found.push(`${number(points[i])},${number(points[i + 1])}`);
    return found.join(" ");
  }

  private alike(words: Uint32Array, image: ImageData, a: number, b: number): boolean {
    for (let at = 0; at < words.length; at += image.width)
      if (words[at + a] !== words[at + b]) return false;
    return true;
  }
}
