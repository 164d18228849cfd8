// The viewer's modules as one that Node can import.
import { build } from "esbuild";

export async function modules() {
  const { outputFiles } = await build({
    entryPoints: [new URL("entry.ts", import.meta.url).pathname],
    bundle: true,
    format: "esm",
    target: "es2022",
    write: false,
  });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}
