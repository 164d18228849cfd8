// The whole run in one strip, with the part that is looked at: drag it, or its edges; click to go there.

import { highestOf } from "../layout/highest";
import { css } from "../base/palette";
import type { Surface } from "../draw/surface";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import type { Theme } from "../state/theme";

export const LEFT = 74;
export const RIGHT = 14;

export class Overview {
  private key = "";
  private requested: Float64Array = new Float64Array(0);
  private reserved: Float64Array = new Float64Array(0);

  draw(surface: Surface, scene: Scene, state: State, theme: Theme): void {
    const width = Math.max(10, Math.floor(surface.width - LEFT - RIGHT));
    const height = surface.height - 6;
    const axis = scene.axis(state.axis);
    const key = `${state.track},${axis.kind},${width}`;
    if (key !== this.key)
      ({ requested: this.requested, reserved: this.reserved } = highestOf(axis, width));
    this.key = key;
    const most = Math.max(
      1,
      scene.track.header.counters.requested[1],
      scene.track.header.counters.reserved[1],
    );
    const points: number[] = [LEFT, height + 2];
    const line: number[] = [];
    this.requested.forEach((bytes, i) =>
      points.push(
        LEFT + i,
        height + 2 - (bytes / most) * height,
        LEFT + i + 1,
        height + 2 - (bytes / most) * height,
      ),
    );
    this.reserved.forEach((bytes, i) => line.push(LEFT + i, height + 2 - (bytes / most) * height));
    points.push(LEFT + width, height + 2);
    surface.area(points, theme.dark ? "#46566a" : "#c3cedb");
    surface.line(line, theme.soft, 1);
    const [a, b] = this.handles(scene, state, surface.width);
    const veil = css(theme.paper, 0.66);
    surface.rect(LEFT, 0, a - LEFT, surface.height, veil);
    surface.rect(b, 0, LEFT + width - b, surface.height, veil);
    surface.line(
      [a, 1, b, 1, b, surface.height - 1, a, surface.height - 1, a, 1],
      theme.accent,
      1.25,
    );
    surface.text("whole run", LEFT - 8, surface.height / 2, theme.soft, "right");
    for (const failure of scene.track.header.failures) {
      const x = LEFT + (axis.place(failure.event) / axis.end) * width;
      surface.rect(x - 0.75, 0, 1.5, surface.height, theme.alarm);
    }
  }

  /** Where the window's edges are. */
  handles(scene: Scene, state: State, width: number): [number, number] {
    const room = Math.max(10, Math.floor(width - LEFT - RIGHT));
    const [from, to] = scene.window(state);
    const end = scene.axis(state.axis).end;
    const a = LEFT + (from / end) * room;
    return [a, Math.max(a + 2, LEFT + (to / end) * room)];
  }

  place(scene: Scene, state: State, width: number, x: number): number {
    const room = Math.max(10, Math.floor(width - LEFT - RIGHT));
    return ((x - LEFT) / room) * scene.axis(state.axis).end;
  }
}
