// A line of a program: in a stack, under a finding, in a table.

export interface Place {
  file: string;
  line: number;
  function: string;
}
