// What the views draw with: a canvas, or an SVG that is written down call by call. Both take the same few calls.

export interface Surface {
  readonly width: number;
  readonly height: number;
  rect(x: number, y: number, width: number, height: number, fill: string): void;
  /** A line through points [x, y, x, y, ...]. */
  line(points: ArrayLike<number>, stroke: string, width: number, dash?: number[]): void;
  area(points: ArrayLike<number>, fill: string, stroke?: string): void;
  text(
    text: string,
    x: number,
    y: number,
    fill: string,
    align?: CanvasTextAlign,
    bold?: boolean,
  ): void;
  /** How wide a text will be. */
  measure(text: string, bold?: boolean): number;
  pixels(image: ImageData, x: number, y: number, width: number, height: number): void;
  clip(x: number, y: number, width: number, height: number, inside: () => void): void;
}

export class CanvasSurface implements Surface {
  private readonly context: CanvasRenderingContext2D;
  private scratch: HTMLCanvasElement | null = null;

  constructor(
    canvas: HTMLCanvasElement,
    readonly width: number,
    readonly height: number,
    ratio: number,
    private readonly font: string,
  ) {
    this.context = canvas.getContext("2d")!;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.textBaseline = "middle";
  }

  rect(x: number, y: number, width: number, height: number, fill: string): void {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, width, height);
  }

  line(points: ArrayLike<number>, stroke: string, width: number, dash: number[] = []): void {
    const { context } = this;
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.lineJoin = "round";
    this.path(points);
    context.stroke();
  }

  area(points: ArrayLike<number>, fill: string, stroke?: string): void {
    this.path(points);
    this.context.closePath();
    this.context.fillStyle = fill;
    this.context.fill();
    if (!stroke) return;
    this.context.strokeStyle = stroke;
    this.context.lineWidth = 1.25;
    this.context.setLineDash([]);
    this.context.stroke();
  }

  text(
    text: string,
    x: number,
    y: number,
    fill: string,
    align: CanvasTextAlign = "left",
    bold = false,
  ): void {
    this.context.font = bold ? `600 ${this.font}` : this.font;
    this.context.fillStyle = fill;
    this.context.textAlign = align;
    this.context.fillText(text, x, y);
  }

  measure(text: string, bold = false): number {
    this.context.font = bold ? `600 ${this.font}` : this.font;
    return this.context.measureText(text).width;
  }

  pixels(image: ImageData, x: number, y: number, width: number, height: number): void {
    this.scratch ??= document.createElement("canvas");
    if (this.scratch.width !== image.width || this.scratch.height !== image.height) {
      this.scratch.width = image.width;
      this.scratch.height = image.height;
    }
    this.scratch.getContext("2d")!.putImageData(image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.scratch, x, y, width, height);
  }

  clip(x: number, y: number, width: number, height: number, inside: () => void): void {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    inside();
    this.context.restore();
  }

  private path(points: ArrayLike<number>): void {
    this.context.beginPath();
    for (let i = 0; i < points.length; i += 2) this.context.lineTo(points[i], points[i + 1]);
  }
}
