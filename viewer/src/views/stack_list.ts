// A stack as a list, innermost frame first, the user's own frames marked.

import { counted, longPlace } from "../base/format";
import type { Frame } from "../data/track";
import { h } from "../draw/dom";

const LONGEST = 200;

export function stackList(stack: Frame[]): HTMLElement | null {
  if (!stack.length) return null;
  return h(
    "ol",
    { class: "frames" },
    ...stack
      .slice(0, LONGEST)
      .map((frame) =>
        h(
          "li",
          { class: frame.user ? "user" : "" },
          h("span", { class: "function" }, frame.function),
          " ",
          h("span", { class: "place" }, longPlace(frame)),
        ),
      ),
    stack.length > LONGEST && h("li", {}, `… ${counted(stack.length - LONGEST, "more frame")}`),
  );
}
