/** What a hand can do to a page. */
const ACTIONS = {
  page: ["click", "dblclick", "fill", "goBack", "selectOption"],
  keyboard: ["press", "type", "up"],
  mouse: ["click", "move", "up", "wheel"],
};

/** Until the page has drawn what it was asked for before: it draws once a frame. */
export const drawn = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

/** A page of which each action ends when the page has drawn what came of it: a test never reads what stood there before. */
export function settled(page) {
  for (const [actor, names] of Object.entries(ACTIONS))
    for (const name of names) {
      const owner = actor === "page" ? page : page[actor];
      const act = owner[name].bind(owner);
      owner[name] = async (...args) => {
        const answer = await act(...args);
        await drawn(page);
        return answer;
      };
    }
  return page;
}
