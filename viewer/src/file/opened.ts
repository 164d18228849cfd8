// A dropped file as a page: read, prepared, ready to be drawn by the same code as every other page.

import type { PageHeader, TrackHeader } from "../data/header";
import { Track } from "../data/track";
import { type Device, DeviceTables } from "./device";
import { missingParts } from "./facts";
import { FileError, visible } from "./file_error";
import { Meta } from "./meta";
import { Pauses, type Progress } from "./pauses";
import { PreparedColumns } from "./prepared";
import type { Rules } from "./rules";
import { Snapshot } from "./snapshot";
import { TrackMaker } from "./track_header";
import { unpack } from "./unpack";

export interface Opened {
  header: PageHeader;
  tracks: Track[];
}

export async function opened(
  file: File,
  wasm: BufferSource,
  rules: Rules,
  progress: Progress = () => undefined,
): Promise<Opened> {
  const name = visible(file.name);
  const pauses = new Pauses(progress);
  const { bytes, archive } = await unpack(file);
  const snapshot = await Snapshot.read(wasm, {
    take: (capacity) => bytes.take(capacity),
    pause: () => pauses.due(() => `Reading: ${bytes.share()}`),
  });
  await pauses.take("Following every allocation…");
  refuseOtherPickles(snapshot);
  const settings = snapshot.settings();
  const meta = await Meta.of(archive);
  const devices = new DeviceTables(snapshot, settings).devices().filter(isUsed);
  if (!devices.length) throw new FileError("this recording holds no GPU memory and no events");
  devices.sort((a, b) => b.counters.requested[1] - a.counters.requested[1]);
  await pauses.take("Looking at the stacks…");
  const maker = new TrackMaker(snapshot, rules, {
    name,
    meta,
    settings: settingsText(settings),
    missing: missingParts(snapshot, devices, settings, meta),
  });
  const headers: TrackHeader[] = [];
  const tracks: Track[] = [];
  for (const device of devices) {
    await pauses.take(`Preparing the picture of device ${device.device}…`);
    const columns = new PreparedColumns();
    const header = maker.header(device, columns);
    headers.push(header);
    await pauses.take("Drawing…");
    tracks.push(await Track.read(columns, header));
  }
  await pauses.take("Drawing…");
  return {
    header: {
      version: 1,
      vramlens: rules.vramlens,
      title: name,
      tracks: headers,
      comparison: null,
      difference: null,
    },
    tracks,
  };
}

const isUsed = ({ action, rows, segments }: Device): boolean =>
  action.length > 0 || rows.born.length > 0 || segments.born.length > 0;

function refuseOtherPickles(snapshot: Snapshot): void {
  const { top, truncatedAt } = snapshot;
  const isAny = (name: string) => snapshot.numbers(name).some(Boolean);
  if (snapshot.numbers("final.rows").length || isAny("traces.count") || isAny("host_traces.count"))
    return;
  if (truncatedAt !== null)
    throw new FileError(`it ends at byte ${truncatedAt}, before the first whole segment or event`);
  if (top.has("segments") || top.has("device_traces")) return;
  if (top.has("entries") && top.has("pg_config"))
    throw new FileError("an NCCL flight record, not a memory snapshot");
  throw new FileError("a pickle, but not a PyTorch memory snapshot");
}

/** The allocator's settings as they were given, "" for the default; null where the file does not say. */
function settingsText(settings: Record<string, unknown>): string | null {
  if (!Object.keys(settings).length) return null;
  const text = settings.PYTORCH_ALLOC_CONF ?? settings.PYTORCH_CUDA_ALLOC_CONF ?? "";
  return typeof text === "string" ? text : "";
}
