// What tells tracks apart: the rank, else the file, and the device where a file has several.

import type { Scene } from "./scene";

export function trackName(scene: Scene, scenes: Scene[]): string {
  const { header } = scene.track;
  const alike = scenes.filter((other) => other.track.header.source === header.source);
  const device = alike.length > 1 ? `, device ${header.device}` : "";
  const ranks = scenes.filter(
    (other) => other.track.header.rank === header.rank && !alike.includes(other),
  );
  const ranked = header.rank !== null && scenes.length > 1 && !ranks.length;
  return `${ranked ? `rank ${header.rank}` : sameNames(scenes) ? header.source : header.name}${device}`;
}

/** Whether files of one name lie in several folders. */
function sameNames(scenes: Scene[]): boolean {
  const folders = new Map<string, string>();
  return scenes.some(({ track: { header } }) => {
    const known = folders.get(header.name);
    folders.set(header.name, header.source);
    return known !== undefined && known !== header.source;
  });
}
