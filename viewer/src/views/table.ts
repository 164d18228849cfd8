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
  private sorted = -1;
  private turned = false;
  private most = AT_ONCE;

  constructor(
    private readonly columns: Column<Row>[],
    private readonly over: (row: Row | null) => void,
    private readonly choose: (row: Row) => void,
  ) {}

  show(rows: Row[]): void {
    this.rows = rows;
    this.most = AT_ONCE;
    this.draw();
  }

  private draw(): void {
    const value = this.columns[this.sorted]?.value;
    const rows = value
      ? [...this.rows].sort((a, b) => compare(value(a), value(b)) * (this.turned ? -1 : 1))
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
            ...this.columns.map((column, i) =>
              h(
                "th",
                {
                  class: column.class,
                  scope: "col",
                  "aria-sort":
                    i === this.sorted ? (this.turned ? "ascending" : "descending") : undefined,
                },
                column.value
                  ? h(
                      "button",
                      { onclick: () => this.sort(i) },
                      column.name,
                      i === this.sorted ? (this.turned ? " ▴" : " ▾") : "",
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

  private sort(column: number): void {
    this.turned = this.sorted === column && !this.turned;
    this.sorted = column;
    this.draw();
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
