// A part of a surface: what is drawn on it lies further down, and it is less high.

import type { Surface } from "./surface";

export class ShiftedSurface implements Surface {
  readonly width: number;

  constructor(
    private readonly surface: Surface,
    private readonly down: number,
    readonly height: number,
  ) {
    this.width = surface.width;
  }

  rect(x: number, y: number, width: number, height: number, fill: string): void {
    this.surface.rect(x, y + this.down, width, height, fill);
  }

  line(points: ArrayLike<number>, stroke: string, width: number, dash?: number[]): void {
    this.surface.line(this.moved(points), stroke, width, dash);
  }

  area(points: ArrayLike<number>, fill: string, stroke?: string): void {
    this.surface.area(this.moved(points), fill, stroke);
  }

  text(
    text: string,
    x: number,
    y: number,
    fill: string,
    align?: CanvasTextAlign,
    bold?: boolean,
  ): void {
    this.surface.text(text, x, y + this.down, fill, align, bold);
  }

  measure(text: string, bold?: boolean): number {
    return this.surface.measure(text, bold);
  }

  pixels(image: ImageData, x: number, y: number, width: number, height: number): void {
    this.surface.pixels(image, x, y + this.down, width, height);
  }

  clip(x: number, y: number, width: number, height: number, inside: () => void): void {
    this.surface.clip(x, y + this.down, width, height, inside);
  }

  private moved(points: ArrayLike<number>): number[] {
    return Array.from(points, (at, i) => (i % 2 ? at + this.down : at));
  }
}
