"""traced.py FOLDER NAME SCRIPT [ARGS]: runs a script, notes the allocator's figures and its requests."""
import json, lzma, os, runpy, sys, time
import torch

def stack_of(frames, table):
    shown = []
    for f in frames:
        name = f["filename"]
        if "/opt/torch" in name or "site-packages" in name:
            name = name.rsplit("site-packages/", 1)[-1]
        else:
            name = os.path.basename(name)
        shown.append(f"{name}:{f['line']}:{f['name']}")
        if len(shown) == 7: break
    return table.setdefault("|".join(shown), len(table))

def main():
    folder, name, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=300000)
    error = None
    began = time.time()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        error = f"exit {ending.code}" if ending.code else None
    except BaseException as failure:
        error = f"{type(failure).__name__}: {failure}"[:400]
    took = time.time() - began
    s = torch.cuda.memory_stats()
    noted = {"allocated_bytes": s["allocated_bytes.all.peak"], "reserved_bytes": s["reserved_bytes.all.peak"],
             "requested_bytes": s["requested_bytes.all.peak"], "active_bytes": s["active_bytes.all.peak"],
             "seconds": round(took, 1), "device": torch.cuda.get_device_name(), "torch": torch.__version__,
             "retries": s["num_alloc_retries"], "error": error}
    with open(os.path.join(folder, f"{name}.json"), "w") as f:
        json.dump(noted, f)
    snap = torch.cuda.memory._snapshot()
    table, rows = {}, []
    for e in snap["device_traces"][0]:
        a = e["action"]
        if a in ("alloc", "free_completed", "segment_alloc", "segment_free", "free_requested"):
            rows.append([{"alloc": 0, "free_requested": 1, "free_completed": 2, "segment_alloc": 3, "segment_free": 4}[a],
                         e["addr"], e["size"], e["stream"], stack_of(e.get("frames", ()), table) if a in ("alloc", "segment_alloc") else -1])
    with lzma.open(os.path.join(folder, f"{name}.trace.xz"), "wt", preset=2) as f:
        json.dump({"stacks": list(table), "rows": rows}, f, separators=(",", ":"))
main()
