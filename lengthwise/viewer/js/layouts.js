// Layouts: a parsed problem as a row of tokens.
// A row: { tokens: symbols; ids; digitPosition; slots: positions that predict the answer; wanted: its symbols, the end included }.

const START = "^", EQUALS = "=", PAUSE = "#", END = "$";

function writeRow(model, problem) {
  return model.layout.kind === "Pairs" ? pairsRow(model, problem) : promptRow(model, problem);
}

/** Digit above digit, least significant first. */
function pairsRow(model, problem) {
  const carry = model.layout.carry ? [["0", "0"]] : [];
  const tokens = [...problem.columns, ...carry].map(([above, below]) => above + below);
  const answer = model.task.order === "most" ? reversed(problem.answer) : [...problem.answer];
  const wanted = tokens.map((_, i) => answer[i] ?? "0");
  return {
    tokens, ids: tokens.map((token) => model.reads.indexOf(token)), wanted,
    digitPosition: tokens.map((_, i) => i + 1), slots: tokens.map((_, i) => i),
  };
}

/** prompt = answer $: the position before each symbol predicts it. Here the answer slots hold end symbols; a model that
 * reads its own answer fills them in while it decodes. */
function promptRow(model, problem) {
  const { framed, pauses } = model.layout;
  const head = [...(framed ? [START] : []), ...problem.prompt, EQUALS, ...Array(pauses).fill(PAUSE)];
  const first = head.length - 1; // the position that predicts the answer's first symbol
  const tokens = [...head, ...Array(problem.slots).fill(END)];
  const slots = Array.from({ length: problem.slots + 1 }, (_, i) => first + i);
  const signs = new Set([...model.task.signs, START, EQUALS, PAUSE, END]);
  return {
    tokens, ids: tokens.map((token) => model.reads.indexOf(token)), slots, wanted: [...problem.answer, END],
    digitPosition: digitPositions(tokens, signs, first, model.task.mirrored),
  };
}

/** Each token's position, from 1, within its run of digits; 0 for a sign. In the answer: its index from the first slot. */
function digitPositions(tokens, signs, first, mirrored) {
  const isSign = (i) => signs.has(tokens[i]);
  return tokens.map((_, i) => {
    if (i >= first) return i - first;
    let edge = i;
    if (mirrored) {
      while (edge < first && !isSign(edge)) edge++;
      return edge - i;
    }
    while (edge >= 0 && !isSign(edge)) edge--;
    return i - edge;
  });
}

/** The answer in a model's slots, up to the first end symbol, in the task's own order. */
function answerOf(model, symbols) {
  if (model.layout.kind === "Pairs") {
    let digits = [...symbols];
    while (!model.task.leading_zeros && digits.length > 1 && digits.at(-1) === "0") digits = digits.slice(0, -1);
    return model.task.order === "most" ? reversed(digits) : digits;
  }
  const end = symbols.indexOf(END);
  return end < 0 ? [...symbols] : symbols.slice(0, end);
}
