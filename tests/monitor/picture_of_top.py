"""Writes the picture of ``vramlens top`` that the documentation shows.

python tests/monitor/picture_of_top.py docs/pictures/top.svg
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from support.fake_nvml import GIB, MIB, plug_in, several  # noqa: E402
from vramlens.capture.memory.memory_now import HostMemory  # noqa: E402
from vramlens.monitor.machine.inside import Inside, InsideDevice  # noqa: E402
from vramlens.monitor.machine.machine import Machine, MachineNow, ProcessNow  # noqa: E402
from vramlens.monitor.top.top_screen import Screen  # noqa: E402
from vramlens.monitor.top.watching import MachineWatch  # noqa: E402


class Scene(Machine):
    """Eight GPUs a second apart each time; ranks 0 to 5 train, rank 0 leaks."""

    second = 0

    def look(self) -> MachineNow:
        self.second += 1
        now, at = super().look(), self.second
        devices = []
        for number, device in enumerate(now.devices):
            total = device.total_bytes or 0
            if number > 5:
                devices.append(device)
                continue
            live = int((30 + 3 * math.sin(at / 2 + number)) * GIB) + (
                at * 40 * MIB if number == 0 else 0
            )
            held = InsideDevice(
                0, device.uuid, live, live + 6 * GIB, live + 2 * GIB, 812 * MIB, live
            )
            if number == 0:
                held = replace(held, growth_bytes=5 * MIB, steps_left=max(0, 4310 - 8 * at))
            inside = Inside(
                4711 + number, 0, 0, 8 * at, number, 9 * GIB, 2 * GIB, "train.py", (held,)
            )
            used = live + 8 * GIB
            command = f"python train.py --config llama-8b.toml --rank {number}"
            row = ProcessNow(4711 + number, used, "ann", command, 9 * GIB, inside)
            busy = min(100, int(93 + 6 * math.sin(at / 3 + number)))
            rest = {
                "gpu_percent": busy,
                "temperature_c": 61 + number,
                "power_w": 610.0 + 9 * number,
            }
            devices.append(
                replace(device, free_bytes=total - used - 640 * MIB, processes=(row,), **rest)
            )
        host = HostMemory(total_bytes=1008 * GIB, available_bytes=871 * GIB)
        return replace(now, time_us=at * 1_000_000, devices=tuple(devices), host=host)


async def main(path: str) -> None:
    plug_in(several())
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    watching = MachineWatch(machine=Scene(["/nowhere"]))
    for _ in range(130):
        watching.look()
    screen = Screen(watching, 3600.0)
    async with screen.run_test(size=(120, 34)) as pilot:
        screen.view.chosen = (4711, "0")
        screen.draw()
        await pilot.pause()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        picture = screen.export_screenshot(title="vramlens top")
        picture = re.sub(
            r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL
        )  # it would be fetched from the network
        Path(path).write_text(picture, encoding="utf-8")
        print("\n".join("".join(part for part, _ in line) for line in screen._canvas._rows))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
