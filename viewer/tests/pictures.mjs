// The pictures of docs/view.md, from recordings in tests/data: look at each before it is kept (and take it down to 256
// colours: it is a third of the size then).
//
//     node viewer/tests/pictures.mjs docs/pictures       VRAMLENS_CHROMIUM, VRAMLENS_PYTHON as for the tests
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [target = "docs/pictures"] = process.argv.slice(2);
const root = fileURLToPath(new URL("../..", import.meta.url));
const PICTURES = [
  { name: "memory", files: ["recordings/oom_train.pickle.xz"] },
  { name: "what-if", files: ["recordings/cnn_multires.pickle.xz"], confs: ["expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"], hash: "#view=memory&axis=events" },
  { name: "addresses", files: ["recordings/gpt_varlen.pickle.xz"], hash: "#view=addresses&axis=events", dark: true },
  { name: "who", files: ["captured/lightning.vram"], hash: "#view=who&table=module&of=peak" },
  { name: "compare", files: ["found/eval_graph.pickle.xz", "found/eval_graph_fixed.pickle.xz"], dark: true },
  { name: "collectives", files: ["ranks/rank0_gather/rank0_gather.rank0.pickle.xz", "ranks/rank0_gather/rank0_gather.rank1.pickle.xz"], flights: true, hash: "#view=memory&axis=time&x=3040000.0_3310000.0&at=10000&collective=36" },
];
const WRITE = `
import sys
from vramlens import api
from vramlens.read.flight_record import read_flight_record
from vramlens.view.timeline.collective_calls import RankFlight
from vramlens.view.page import Choices, data_of, one_file, title_of
page, flights, confs, *files = sys.argv[1:]
records = [read_flight_record(file.replace(".pickle", ".nccl.pickle")) for file in files] if flights else []
traces = [api.load(file) for file in files]
data = data_of(traces, Choices(confs=tuple(confs.split())), [RankFlight(rank, record) for rank, record in enumerate(records)])
open(page, "w", encoding="utf-8").write(one_file(data, title_of(traces)))
`;
const folder = mkdtempSync(join(tmpdir(), "vramlens-pictures-"));
const browser = await chromium.launch({ executablePath: process.env.VRAMLENS_CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 720 } });
for (const { name, files, hash = "", keys = [], dark = false, flights = false, confs = [] } of PICTURES) {
  const file = join(folder, `${name}.html`);
  const paths = files.map((path) => join(root, "tests/data", path));
  execFileSync(process.env.VRAMLENS_PYTHON ?? "python3", ["-c", WRITE, file, flights ? "1" : "", confs.join(" "), ...paths], { env: { ...process.env, PYTHONPATH: join(root, "src") }, stdio: "inherit" });
  await page.goto("about:blank");
  await page.emulateMedia({ colorScheme: dark ? "dark" : "light" });
  await page.goto(pathToFileURL(file).href + hash);
  await page.waitForSelector("html[data-ready]");
  for (const key of keys) await page.keyboard.press(key);
  await page.waitForTimeout(300);
  await page.screenshot({ path: join(target, `view-${name}.png`) });
  console.log(`view-${name}.png`);
}
await browser.close();
rmSync(folder, { recursive: true });
