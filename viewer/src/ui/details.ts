// One allocation in words: what it is, who asked for it (the user's line first), the code there, the whole stack.

import { lineQuery } from "../state/query";
import type { Host } from "../state/pane";
import type { Track } from "../data/track";
import { count, counted, longPlace, share, size, time } from "../base/format";
import { type Entry, tally, weighAt } from "../layout/tally";
import { h } from "../draw/dom";
import { eventWords } from "../views/event_words";
import { copyButton, placeSpan, stackList, stackText } from "../views/stack_list";

export function allocationDetails(host: Host, row: number, note: string): HTMLElement[] {
  const { track } = host.scene();
  const { row: columns, header } = track;
  const line = track.line(row);
  const name = columns.name[row] ? track.text(header.rows.names[columns.name[row] - 1]) : "";
  const stack = track.stack(columns.stack[row]);
  const facts = factsOf(track, row);
  return [
    h(
      "div",
      { class: "facts" },
      h("div", { class: "size" }, size(columns.bytes[row])),
      name && h("div", { class: "name" }, name),
      note && h("div", { class: "soft" }, note),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          ...facts
            .filter(([, value]) => value)
            .map(([what, value]) => h("tr", {}, h("th", {}, what), h("td", {}, value))),
        ),
      ),
      places(host, row),
    ),
    h(
      "div",
      { class: "stack" },
      line
        ? h(
            "div",
            { class: "user-line", title: longPlace(line) },
            h("b", {}, placeSpan(line)),
            ` in ${line.function}`,
            columns.inferred[row]
              ? h("span", { class: "soft" }, " likely: the forward line whose backward was running")
              : null,
          )
        : h(
            "div",
            { class: "user-line soft" },
            "No line of yours: PyTorch recorded no Python stack for it.",
          ),
      codeLine(track, row),
      stackList(stack),
      h(
        "div",
        { class: "buttons" },
        line && copyButton("line", `${line.file}:${line.line}`),
        stack.length > 0 && copyButton("stack", stackText(stack)),
      ),
    ),
    code(track, line ? `${line.file}:${line.line}` : "", line?.line ?? 0),
  ].filter((part): part is HTMLElement => part !== null);
}

/** What is known of an allocation, each with what it is. */
function factsOf(track: Track, row: number): [string, string][] {
  const { row: columns, header } = track;
  const certainty = header.certainties[columns.certainty[row]] ?? "";
  const category = (header.categories[columns.category[row]] ?? "").replaceAll("_", " ");
  const phase = header.phases[columns.phase[row]] ?? "";
  const module = columns.module[row] ? track.text(header.modules[columns.module[row] - 1]) : "";
  const slack = track.taken[row] - columns.bytes[row];
  return [
    ["born", moment(track, track.born[row], "before the recording")],
    ["freed", moment(track, track.freed[row], "never, in this recording")],
    ["lived", lived(track, row)],
    ["for", category && `${category} (${certainty}), ${phase}`],
    ["module", module],
    ["address", `${track.address(row)}, stream ${header.rows.streams[columns.stream[row]] ?? "?"}`],
    ["pool", pool(track, columns.pool[row])],
    ["rounding", slack ? `${size(slack)} more were taken` : ""],
  ];
}

/** The moment of the cursor in words: what happens there, and the lines that hold most; of a failed request, who asked. */
export function momentDetails(host: Host, event: number): HTMLElement[] {
  const { track } = host.scene();
  const failure = track.header.failures.find((one) => one.event === event);
  const lines = tally(track, weighAt(track, event), "line").sort((a, b) => b.weight - a.weight);
  const total = track.requested.at(event);
  const step = track.stepOf(event);
  const stack = failure ? track.stack(failure.stack) : [];
  const asked = stack.find((frame) => frame.user);
  return [
    h(
      "div",
      { class: "facts" },
      h("div", { class: "size" }, failure ? `${size(failure.bytes)} wanted` : size(total)),
      h(
        "div",
        {},
        failure ? `with ${size(total)} requested and alive` : "requested and alive at the cursor",
      ),
      h("div", { class: "soft" }, eventWords(track, event)),
      step >= 0 && h("div", { class: "soft" }, `${track.header.steps.name} ${count(step)}`),
      h(
        "p",
        { class: "soft" },
        "Point at an allocation to see who asked for it; click to keep it here. ",
        h("kbd", {}, "?"),
        " shows all keys.",
      ),
    ),
    failure
      ? h(
          "div",
          { class: "stack" },
          asked
            ? h(
                "div",
                { class: "user-line", title: longPlace(asked) },
                h("b", {}, placeSpan(asked)),
                ` in ${asked.function}`,
              )
            : null,
          stackList(stack),
        )
      : null,
    h(
      "div",
      { class: "holders" },
      h("div", { class: "soft" }, "Who holds it"),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          ...lines.slice(0, 7).map((line) => {
            const bar = h("i", { class: "amount" });
            bar.style.width = `${total ? (100 * line.weight) / total : 0}%`;
            return h(
              "tr",
              {},
              h("td", { class: "number" }, size(line.weight)),
              h("td", { class: "number soft" }, share(line.weight, total)),
              h("td", { class: "held", title: line.long }, bar, holder(host, line)),
            );
          }),
        ),
      ),
      lines.length > 7 &&
        h("div", { class: "soft" }, `${counted(lines.length - 7, "more line")}: see Who`),
    ),
  ].filter((part): part is HTMLDivElement => part !== null);
}

/** A line that holds memory: a click marks all that it asked for. */
function holder(host: Host, line: Entry): HTMLElement {
  const place = host.scene().track.header.lines[line.key - 1];
  if (!place) return h("span", {}, line.name);
  const query = lineQuery(host.scene().track.text(place[0]), place[1]);
  const onclick = (): void => host.store.set({ search: query, finding: -1, group: -1 });
  return h(
    "button",
    { class: "link", title: `mark what ${line.long} asked for`, onclick },
    line.name,
  );
}

/** The other views in which an allocation can be looked at. */
function places(host: Host, row: number): HTMLElement {
  const VIEWS = { memory: "in the picture", addresses: "among addresses", list: "in the list" };
  const others = (["memory", "addresses", "list"] as const).filter(
    (tab) => tab !== host.store.state.tab,
  );
  return h(
    "div",
    { class: "buttons" },
    ...others.map((tab) => h("button", { onclick: () => host.show(row, tab) }, VIEWS[tab])),
  );
}

/** The library's own line below the user's, where there is one. */
function codeLine(track: Track, row: number): HTMLElement | null {
  const place = track.codes.places[track.codes.of[row]];
  const line = track.line(row);
  if (!place || (line && line.file === place.file && line.line === place.line)) return null;
  return h("div", { class: "code-line" }, "code: ", placeSpan(place), ` in ${place.function}`);
}

function code(track: Track, key: string, line: number): HTMLElement | null {
  const found = Object.hasOwn(track.header.sources, key) ? track.header.sources[key] : undefined;
  if (!found) return null;
  return h(
    "div",
    { class: "code" },
    h("div", { class: "soft" }, "The file as it was when this page was written"),
    h(
      "pre",
      {},
      ...found.lines.map((text, i) =>
        h(
          "span",
          { class: found.first + i === line ? "here" : "" },
          `${String(found.first + i).padStart(5)}  ${text}\n`,
        ),
      ),
    ),
  );
}

function moment(track: Track, event: number, otherwise: string): string {
  if (event < 0 || event >= track.events) return otherwise;
  const step = track.stepOf(event);
  const at = track.header.timed ? `${time(track.timeOf(event))}, ` : "";
  return `${at}event ${count(event)}${step >= 0 ? `, step ${count(step)}` : ""}`;
}

function lived(track: Track, row: number): string {
  const died = track.died[row];
  const events = counted(Math.min(died, track.events) - Math.max(track.born[row], 0), "event");
  if (!track.header.timed) return events;
  const us = track.timeOf(died) - track.timeOf(track.born[row]);
  return `${died >= track.events || track.born[row] < 0 ? "at least " : ""}${time(us)}, ${events}`;
}

function pool(track: Track, number: number): string {
  const found = track.header.pools[number - 1];
  return found && (found[0] || found[1]) ? `private pool (${found[0]}, ${found[1]})` : "";
}
