// The verdict: the answer in words, and the findings. A click on one moves the picture and marks what it is about.

import type { Comparison, Finding, RankFinding, TrackHeader } from "../data/header";
import { longPlace, size } from "../base/format";
import { h } from "../draw/dom";
import type { Scene } from "../state/scene";
import type { Store } from "../state/store";

export function verdictPanel(
  scene: Scene,
  store: Store,
  choose: (finding: number) => void,
): HTMLElement {
  const { verdict, complete } = scene.track.header;
  const origin = [...verdict.origin, ...allocatorWords(scene.track.header)];
  const chosen = store.state.finding;
  const useful = verdict.findings.map((finding, i) => [finding, i] as const);
  const acts = useful.filter(([finding]) => finding.verdict !== "not a problem" && finding.fix);
  const rest = useful.filter(([finding]) => finding.verdict === "not a problem" || !finding.fix);
  return h(
    "div",
    { class: "verdict" },
    h("h2", { class: verdict.failed ? "headline failed" : "headline" }, verdict.headline),
    ...verdict.sentences.map((text) => h("p", {}, ...prose(text))),
    verdict.figures.length > 0 && figures(verdict.figures),
    acts.length > 0 && h("h3", {}, "What to do"),
    acts.length > 0 &&
      h(
        "ol",
        { class: "findings" },
        ...acts.map(([finding, i]) => item(finding, i, chosen, choose)),
      ),
    rest.length > 0 && h("h3", {}, acts.length ? "Also seen" : "Seen"),
    rest.length > 0 &&
      h(
        "ul",
        { class: "findings" },
        ...rest.map(([finding, i]) => item(finding, i, chosen, choose)),
      ),
    verdict.ledger.length > 0 &&
      h(
        "h3",
        {},
        `All of the GPU's memory${verdict.ledger_when ? `, ${verdict.ledger_when}` : ""}`,
      ),
    verdict.ledger.length > 0 && figures(verdict.ledger),
    (verdict.unknown.length > 0 || !complete) && h("h3", {}, "Not known"),
    ...verdict.unknown.map((text) => h("p", { class: "soft" }, ...prose(text))),
    origin.length > 0 && h("h3", {}, "Recording"),
    ...origin.map((text) => h("p", { class: "soft" }, ...prose(text))),
  );
}

/** How the allocator was set, and what it could use. */
function allocatorWords({ settings, limit_bytes, total_bytes }: TrackHeader): string[] {
  const words: string[] = [];
  if (settings !== null)
    words.push(
      settings ? `Allocator settings: ${settings}.` : "The allocator's settings are the default.",
    );
  if (limit_bytes) words.push(`This process may reserve ${size(limit_bytes)}.`);
  if (total_bytes) words.push(`The GPU has ${size(total_bytes)}.`);
  return words;
}

/** What differs between the ranks; a click on a difference turns to the rank. */
export function comparisonPanel(
  { headline, findings }: Comparison,
  shown: string,
  turnTo: (track: number) => void,
): HTMLElement {
  return h(
    "div",
    { class: "verdict" },
    h("h2", { class: "headline" }, headline),
    findings.length > 0 &&
      h("ol", { class: "findings" }, ...findings.map((finding) => difference(finding, turnTo))),
    h("h3", {}, `${shown} by itself`),
  );
}

function difference(finding: RankFinding, turnTo: (track: number) => void): HTMLElement {
  const { track } = finding;
  return h(
    "li",
    {},
    h(
      "button",
      { class: "finding", "data-finding": "rank", onclick: () => track !== null && turnTo(track) },
      ...claims(finding),
      ...finding.evidence.map((text) => h("span", { class: "evidence" }, ...prose(text))),
    ),
  );
}

/** A sentence whose names in backticks stand as code. */
function prose(text: string): (HTMLElement | string)[] {
  const parts = text.split("`");
  if (parts.length % 2 === 0) return [text];
  return parts.map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

function claims({
  verdict,
  title,
  fix,
  place,
}: RankFinding | Finding): (HTMLElement | false | null | "")[] {
  return [
    h("span", { class: `grade ${verdict.replaceAll(" ", "-")}` }, verdict),
    h("span", { class: "claim" }, ...prose(title)),
    fix && h("span", { class: "fix" }, ...prose(fix)),
    place && h("span", { class: "where" }, longPlace(place)),
  ];
}

function figures(rows: [number, string][]): HTMLElement {
  return h(
    "table",
    { class: "figures" },
    h(
      "tbody",
      {},
      ...rows.map(([bytes, words]) => h("tr", {}, h("td", {}, size(bytes)), h("td", {}, words))),
    ),
  );
}

function item(
  finding: Finding,
  number: number,
  chosen: number,
  choose: (finding: number) => void,
): HTMLElement {
  const open = number === chosen;
  return h(
    "li",
    {},
    h(
      "button",
      {
        class: "finding",
        "aria-expanded": String(open),
        "data-finding": finding.id,
        onclick: () => choose(open ? -1 : number),
      },
      ...claims(finding),
      ...(open
        ? finding.evidence.map((text) => h("span", { class: "evidence" }, ...prose(text)))
        : []),
    ),
  );
}
