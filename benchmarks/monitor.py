"""What watching costs, without a GPU: the screen at 10 Hz on eight GPUs, the monitor's thread, the
file for ``top``.

    python benchmarks/monitor.py [SECONDS]

The driver is a fake one that answers at once (``tests/support/fake_nvml.py``): what is measured is
vramlens and textual; ``benchmarks/monitor_gpu.py`` measures with a real driver. The screen runs in
a pseudo-terminal of 120 x 40, all figures change at every look, and processor time is the process's
own, user and system, all threads, after two seconds of start-up; a loop that only wakes up ten
times a second is measured beside it. Prints one JSON object.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import resource
import select
import struct
import sys
import termios
import time
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parents[1] / "tests")]

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
INTERVAL = 0.1
SETTLED = 2.0


def cpu_s() -> float:
    """Processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def screen_child(out: int) -> None:
    """In the child: the screen on eight fake GPUs whose figures all change; writes what it cost."""
    from support.fake_nvml import plug_in, several
    from vramlens.monitor.top.top_screen import Screen
    from vramlens.monitor.top.watching import MachineWatch

    nvml, dice = plug_in(several()), random.Random(0)
    watching = MachineWatch()
    watching.look()
    look, looks = watching.look, [0]

    def changed() -> object:
        looks[0] += 1
        for gpu in nvml.gpus:
            gpu.free += dice.randint(-(1 << 28), 1 << 28) if gpu.busy else 0
            gpu.busy, gpu.power = dice.randint(80, 100), dice.randint(400_000, 700_000)
        return look()

    watching.look = changed  # type: ignore[assignment]

    class Measured(Screen):
        def on_mount(self) -> None:
            self.set_timer(SETTLED, self.begin)
            self.set_timer(SETTLED + SECONDS, self.end)

        def begin(self) -> None:
            self.at = cpu_s(), time.monotonic(), looks[0]

        def end(self) -> None:
            used, began, first = self.at
            result = {
                "cpu_s": cpu_s() - used,
                "wall_s": time.monotonic() - began,
                "looks": looks[0] - first,
            }
            os.write(out, json.dumps(result).encode())
            self.exit()

    Measured(watching, INTERVAL).run(mouse=False)
    os._exit(0)


def screen() -> dict[str, float]:
    """The screen's share of a core."""
    receive, send = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        screen_child(send)
    os.close(send)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    until = time.monotonic() + SETTLED + SECONDS + 30
    written = 0
    while time.monotonic() < until:
        ready, _, _ = select.select([terminal, receive], [], [], 1.0)
        if terminal in ready:
            try:
                written += len(os.read(terminal, 1 << 16))
            except OSError:
                break
        elif receive in ready:
            break
    found = json.loads(os.read(receive, 1 << 16))
    os.waitpid(pid, 0)
    return {
        "looks_per_s": round(found["looks"] / found["wall_s"], 2),
        "core_percent": round(100 * found["cpu_s"] / found["wall_s"], 3),
        "ms_a_look": round(1000 * found["cpu_s"] / found["looks"], 3),
        "kib_written_a_look": round(written / 1024 / found["looks"], 2),
    }


def idle() -> dict[str, float]:
    """A loop that wakes up as often and does nothing: what waking alone costs here."""
    used, began, looks = cpu_s(), time.monotonic(), 0
    while time.monotonic() - began < min(SECONDS, 5):
        time.sleep(INTERVAL)
        looks += 1
    return {"core_percent": round(100 * (cpu_s() - used) / (time.monotonic() - began), 3)}


def threads() -> dict[str, dict[str, float]]:
    """Processor time of one sample of the monitor, and of one file for ``top``, on one GPU."""
    from monitor.test_inside import Cuda

    from support.fake_nvml import FakeNvml, Gpu, plug_in, uuid_of
    from vramlens.monitor import Monitor, publisher, sampler

    plug_in(FakeNvml(Gpu(uuid_of(0))))
    fake = Cuda()
    publisher.loaded_cuda = sampler.loaded_cuda = lambda: fake  # type: ignore[assignment]
    path = f"/dev/shm/vramlens-benchmark-{os.getpid()}.inside"
    telling, found = publisher.Publisher(path=path), {}
    monitor = Monitor(60.0, alerts=["used > 92%", "growth > 5MiB/step"], quiet=True)
    for _ in range(200):
        fake.allocated += 1 << 20
        monitor.step()
    for name, call in (("monitor", monitor.sample), ("file_for_top", telling.write)):
        call()
        costs = []
        for _ in range(9):
            began = time.thread_time()
            for _ in range(50):
                call()
            costs.append((time.thread_time() - began) / 50)
        middle = sorted(costs)[4]
        found[name] = {
            "us_a_sample": round(middle * 1e6, 1),
            "core_percent_at_1_hz": round(100 * middle, 4),
        }
    began = time.thread_time()
    for _ in range(1000):
        monitor.step()
    found["monitor_step"] = {"us": round((time.thread_time() - began) * 1e3, 2)}
    telling.stop()
    return found


def main() -> None:
    """Prints all of it."""
    runs = [screen() for _ in range(3)]
    middle = sorted(runs, key=lambda one: one["core_percent"])[1]
    result = {
        "screen_8_gpus_10_hz": middle,
        "screen_runs_core_percent": [one["core_percent"] for one in runs],
        "waking_alone": idle(),
        **threads(),
        "load_average": os.getloadavg()[0],
        "bars": {"screen_core_percent": 2.0, "thread_core_percent_at_1_hz": 0.1},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
