import "./style.css";
import { pageData, Container } from "./data/container";
import type { PageHeader } from "./data/header";
import { Track } from "./data/track";
import { App } from "./ui/app";
import { h } from "./draw/dom";
import { Scene } from "./state/scene";

async function start(): Promise<void> {
  const container = await Container.open(await pageData());
  const header = container.header as unknown as PageHeader;
  const tracks = await Promise.all(header.tracks.map((track) => Track.read(container, track)));
  if (!tracks.length) throw new Error("this recording holds no GPU memory and no events");
  new App(
    header,
    tracks.map((track) => new Scene(track)),
  );
}

start().catch((error: unknown) => {
  document.body.replaceChildren(
    h(
      "p",
      { class: "problem", role: "alert" },
      error instanceof Error ? error.message : String(error),
    ),
  );
});
