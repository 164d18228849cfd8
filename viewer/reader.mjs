// Builds the reader that `vramlens view --empty` puts into its page: the native core as WebAssembly. `--check` compares.
//
// Only Debian 12's emscripten (3.1.6) will do: another compiler writes other bytes. Where it is not installed, --check compares
// what the sources were when it was built.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const VERSION = "3.1.6";
const root = fileURLToPath(new URL("..", import.meta.url));
const target = join(root, "src/vramlens/view/static/reader.wasm");
const record = join(root, "src/vramlens/view/static/reader.sources");
const EXPORTED = [
  "malloc",
  "vl_layout",
  "vl_page_read",
  "vl_snapshot_status",
  "vl_snapshot_column",
  "vl_snapshot_json",
  "vl_lifetimes_make",
  "vl_lifetimes_column",
];
const FLAGS = [
  "-std=c++17",
  "-O3",
  "-DNDEBUG",
  "-fwasm-exceptions",
  "-fvisibility=hidden",
  "--no-entry",
  "-sSTANDALONE_WASM",
  "-sALLOW_MEMORY_GROWTH=1",
  "-sMAXIMUM_MEMORY=4GB",
  "-sERROR_ON_UNDEFINED_SYMBOLS=0",
  "-sWARN_ON_UNDEFINED_SYMBOLS=0",
  `-sEXPORTED_FUNCTIONS=${EXPORTED.map((name) => `_${name}`).join()}`,
];

/** All of the core but what needs a process of its own. */
const sources = readdirSync(join(root, "native"))
  .filter(
    (file) => /\.(cpp|h)$/.test(file) && !file.startsWith("fuzz_") && file !== "termination.cpp",
  )
  .sort();
const hash = (bytes) => createHash("sha256").update(bytes).digest("hex");
const recorded = [
  `${hash(FLAGS.join("\n"))}  flags`,
  ...sources.map((file) => `${hash(readFileSync(join(root, "native", file)))}  native/${file}`),
];

const version = () => {
  try {
    return (
      execFileSync("emcc", ["--version"], { encoding: "utf8" }).match(/\d+\.\d+\.\d+/)?.[0] ?? ""
    );
  } catch {
    return "";
  }
};

function build() {
  const folder = mkdtempSync(join(tmpdir(), "vramlens-reader-"));
  try {
    const files = sources.filter((file) => file.endsWith(".cpp")).map((file) => `native/${file}`);
    const output = join(folder, "reader.wasm");
    execFileSync("emcc", [...FLAGS, ...files, "-o", output], { cwd: root, stdio: "inherit" });
    return readFileSync(output);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const isHere = version() === VERSION;
if (process.argv.includes("--check")) {
  const known = readFileSync(record, "utf8");
  const built = readFileSync(target);
  const now = [...recorded, `${hash(built)}  reader.wasm`, ""].join("\n");
  const isSame = known === now && (!isHere || Buffer.compare(build(), built) === 0);
  if (!isSame) {
    console.error(
      `reader.wasm is not what its sources say: run "npm run reader" in viewer/ with emscripten ${VERSION}`,
    );
    process.exit(1);
  }
  console.log(
    `reader.wasm: ${built.length.toLocaleString("en")} bytes, ${isHere ? "built again, byte for byte" : "its sources have not changed"}`,
  );
} else {
  if (!isHere)
    throw new Error(`this needs emscripten ${VERSION} (Debian 12: apt-get install emscripten)`);
  const built = build();
  writeFileSync(target, built);
  writeFileSync(record, [...recorded, `${hash(built)}  reader.wasm`, ""].join("\n"));
  console.log(`reader.wasm: ${built.length.toLocaleString("en")} bytes`);
}
