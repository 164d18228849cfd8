// A table that sorts by a click on a column's head and shows as many rows as are asked for.

import { count } from "../base/format";
import { fill, h } from "../draw/dom";

export interface Column<Row> {
  name: string;
  cell: (row: Row) => Node | string;
  /** What it is sorted by; texts from A on, numbers from the largest on. */
  value?: (row: Row) => number | string;
  class?: string;
}

const AT_ONCE = 200;

export class Table<Row> {
  readonly element = h("div", { class: "table" });
  private rows: Row[] = [];
  private sorted = "";
  private most = AT_ONCE;

  constructor(
    private readonly columns: Column<Row>[],
    private readonly over: (row: Row | null) => void,
    private readonly choose: (row: Row) => void,
    private readonly sort: (sorted: string) => void,
  ) {}

  /** Shows rows in their own order, or sorted by a column's name, with a minus the other way round. */
  show(rows: Row[], sorted = ""): void {
    this.rows = rows;
    this.sorted = sorted;
    this.most = AT_ONCE;
    this.draw();
  }

  private draw(): void {
    const isTurned = this.sorted.startsWith("-");
    const by = this.sorted.replace(/^-/, "");
    const value = this.columns.find((column) => column.name === by)?.value;
    const rows = value
      ? [...this.rows].sort((a, b) => compare(value(a), value(b)) * (isTurned ? -1 : 1))
      : this.rows;
    fill(
      this.element,
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ...this.columns.map((column) =>
              h(
                "th",
                {
                  class: column.class,
                  scope: "col",
                  "aria-sort":
                    column.name === by ? (isTurned ? "ascending" : "descending") : undefined,
                },
                column.value
                  ? h(
                      "button",
                      { onclick: () => this.turn(column.name) },
                      column.name,
                      column.name === by ? (isTurned ? " ▴" : " ▾") : "",
                    )
                  : column.name,
              ),
            ),
          ),
        ),
        h("tbody", {}, ...rows.slice(0, this.most).map((row) => this.line(row))),
      ),
      rows.length > this.most &&
        h(
          "button",
          { class: "more", onclick: () => this.showMore() },
          `${count(rows.length - this.most)} more`,
        ),
    );
  }

  private line(row: Row): HTMLElement {
    return h(
      "tr",
      {
        tabIndex: 0,
        onmouseenter: () => this.over(row),
        onmouseleave: () => this.over(null),
        onfocus: () => this.over(row),
        onclick: () => this.choose(row),
        onkeydown: (event: KeyboardEvent) => {
          if (event.key !== "Enter") return;
          event.stopPropagation();
          this.choose(row);
        },
      },
      ...this.columns.map((column) => h("td", { class: column.class }, column.cell(row))),
    );
  }

  private turn(column: string): void {
    this.sort(this.sorted === column ? `-${column}` : column);
  }

  private showMore(): void {
    this.most *= 5;
    this.draw();
  }
}

function compare(a: number | string, b: number | string): number {
  return typeof a === "number" && typeof b === "number"
    ? b - a
    : String(a).localeCompare(String(b), "en");
}
