// A page without a recording: a file is dropped onto it, or chosen. What it holds stays on this machine.

import { fill, h } from "../draw/dom";
import { themeOf } from "../state/theme";

const ENDINGS = ".pickle,.pkl,.vram,.xz,.gz,.zst";

export class Dropping {
  private readonly words = h("p", { role: "status" });
  private readonly chooser: HTMLInputElement = h("input", {
    type: "file",
    "aria-label": "A recording or a memory snapshot",
    onchange: () => this.take(this.chooser.files),
  });
  private readonly place = h(
    "main",
    { class: "dropping" },
    h("h1", {}, "Drop a memory snapshot here"),
    h(
      "p",
      { class: "soft" },
      "A .pickle that PyTorch wrote or a .vram of vramlens, also as .xz, .gz or .zst. Nothing is uploaded: the file stays on this machine.",
    ),
    h("label", { class: "choose" }, "Choose a file", this.chooser),
    this.words,
  );
  private isReading = false;

  constructor(
    private readonly open: (file: File, progress: (words: string) => void) => Promise<void>,
  ) {
    this.chooser.accept = ENDINGS;
    this.listen();
    this.wait();
  }

  /** What leads from a shown file to another one. */
  button(): HTMLElement {
    return h(
      "button",
      { title: "open another file, or drop it here", onclick: () => this.chooser.click() },
      "Open",
    );
  }

  private wait(): void {
    document.title = "vramlens";
    document.documentElement.dataset.theme = themeOf("").dark ? "dark" : "light";
    fill(document.body, this.place);
    document.documentElement.dataset.waiting = "true";
  }

  private listen(): void {
    const { classList } = document.documentElement;
    window.addEventListener("dragover", (event) => {
      event.preventDefault();
      classList.add("dragged");
    });
    window.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) classList.remove("dragged");
    });
    window.addEventListener("drop", (event) => {
      event.preventDefault();
      classList.remove("dragged");
      this.take(event.dataTransfer?.files ?? null);
    });
  }

  private take(files: FileList | null): void {
    const file = files?.[0];
    if (!file || this.isReading) return;
    if (files.length > 1) {
      this.wait();
      return this.say("One file at a time: vramlens view compares several.", true);
    }
    void this.read(file);
  }

  private async read(file: File): Promise<void> {
    this.isReading = true;
    this.wait();
    this.say("Reading…");
    await painted();
    try {
      await this.open(file, (words) => this.say(words));
      delete document.documentElement.dataset.waiting;
      this.say("");
    } catch (error) {
      this.wait();
      this.say(error instanceof Error ? error.message : String(error), true);
    }
    this.chooser.value = ""; // the same file may be chosen again
    this.isReading = false;
  }

  private say(words: string, isProblem = false): void {
    this.words.className = isProblem ? "problem" : "soft";
    this.words.setAttribute("role", isProblem ? "alert" : "status");
    this.words.textContent = words;
  }
}

/** Once the screen shows what the page has become. */
const painted = (): Promise<void> =>
  new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
