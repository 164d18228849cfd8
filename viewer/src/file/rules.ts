// What the page's writer knows of files and names, so that it stands in one place (src/vramlens/view/file_opener.py).

export interface Rules {
  vramlens: string;
  /** Of a file's name: what is not the user's own, what is PyTorch's plumbing, and how much of a name counts. */
  notTheUsers: RegExp;
  plumbing: RegExp;
  longestName: number;
  /** Of a frame as file:function: what is inside of an optimizer, and what an optimizer calls back into. */
  optimizerFrame: RegExp;
  calledBack: RegExp;
  /** How the calls of process groups are named. */
  collectives: string[];
}

interface WrittenRules {
  vramlens: string;
  not_the_users: string;
  plumbing: string;
  longest_name: number;
  optimizer_frame: string;
  called_back: string;
  collectives: string[];
}

export function rulesOf(json: string): Rules {
  const written = JSON.parse(json) as WrittenRules;
  return {
    vramlens: written.vramlens,
    notTheUsers: new RegExp(written.not_the_users),
    plumbing: new RegExp(written.plumbing),
    longestName: written.longest_name,
    optimizerFrame: new RegExp(written.optimizer_frame),
    calledBack: new RegExp(written.called_back),
    collectives: written.collectives,
  };
}
