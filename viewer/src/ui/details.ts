// One allocation in words: what it is, who asked for it (the user's line first), the code there, the whole stack.

import type { Track } from "../data/track";
import { count, counted, longPlace, share, size, time } from "../base/format";
import { tally, weighAt } from "../layout/tally";
import { h } from "../draw/dom";
import { eventWords } from "../views/event_words";
import { stackList } from "../views/stack_list";

export function allocationDetails(track: Track, row: number, note: string): HTMLElement[] {
  const { row: columns, header } = track;
  const line = track.line(row);
  const certainty = header.certainties[columns.certainty[row]] ?? "";
  const category = (header.categories[columns.category[row]] ?? "").replaceAll("_", " ");
  const phase = header.phases[columns.phase[row]] ?? "";
  const name = columns.name[row] ? track.text(header.rows.names[columns.name[row] - 1]) : "";
  const module = columns.module[row] ? track.text(header.modules[columns.module[row] - 1]) : "";
  const stack = track.stack(columns.stack[row]);
  const slack = track.taken[row] - columns.bytes[row];
  const facts: [string, string][] = [
    ["born", moment(track, track.born[row], "before the recording")],
    ["freed", moment(track, track.freed[row], "never, in this recording")],
    ["lived", lived(track, row)],
    ["for", `${category} (${certainty}), ${phase}`],
    ["module", module],
    ["address", `${track.address(row)}, stream ${header.rows.streams[columns.stream[row]] ?? "?"}`],
    ["pool", pool(track, columns.pool[row])],
    ["rounding", slack ? `${size(slack)} more were taken` : ""],
  ];
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
    ),
    h(
      "div",
      { class: "stack" },
      line
        ? h(
            "div",
            { class: "user-line" },
            h("b", {}, longPlace(line)),
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
      stackList(stack),
    ),
    code(track, line ? `${line.file}:${line.line}` : "", line?.line ?? 0),
  ].filter((part): part is HTMLElement => part !== null);
}

/** The moment of the cursor in words: what happens there, and the lines that hold most; of a failed request, who asked. */
export function momentDetails(track: Track, event: number): HTMLElement[] {
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
      step >= 0 && h("div", { class: "soft" }, `step ${count(step)}`),
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
                { class: "user-line" },
                h("b", {}, longPlace(asked)),
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
              h("td", { class: "held", title: line.long }, bar, h("span", {}, line.name)),
            );
          }),
        ),
      ),
      lines.length > 7 &&
        h("div", { class: "soft" }, `${counted(lines.length - 7, "more line")}: see Who`),
    ),
  ].filter((part): part is HTMLDivElement => part !== null);
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
