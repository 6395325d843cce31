// An n-RASP-L program as a graph of operations (rasp/program.py): its state after every round, on a typed problem.
// A row is an array of symbols, places an array of numbers; a selector is a function (query, key) → boolean, which is
// asked for keys up to the query only: programs are causal.

const RELATIONS = {
  "==": (a, b) => a === b, "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
};
const indexed = (symbols) => new Map(symbols.map((symbol, i) => [symbol, i]));

const OPERATIONS = {
  each(node, ...rows) {
    const ids = (node.ids ??= node.alphabets.map(indexed));
    return rows[0].map((_, t) => {
      const code = rows.reduce((sum, row, n) => sum * ids[n].size + ids[n].get(row[t]), 0);
      return node.symbols[node.table[code]];
    });
  },
  positions: (node, row) => row.map((_, t) => t),
  before: (node, places) => places.map((at) => at - 1),
  after: (node, places) => places.map((at) => at + 1),
  compare: (node, one, other) => one.map((at, t) => RELATIONS[node.relation](at, other[t])),
  select(node, keys, queries) {
    if (node.relation) return (q, k) => RELATIONS[node.relation](keys[k], queries[q]);
    const [known, asked] = (node.ids ??= [indexed(node.keys), indexed(node.queries)]);
    return (q, k) => node.table[asked.get(queries[q])][known.get(keys[k])] === 1;
  },
  both: (node, ...selectors) => (q, k) => selectors.every((selector) => selector(q, k)),
  aggregate(node, selector, values) {
    const ids = node.symbols && (node.ids ??= indexed(node.symbols));
    const better = node.how === "max" ? (a, b) => a > b : (a, b) => a < b;
    return values.map((_, q) => {
      let best = null;
      for (let k = 0; k <= q; k++) {
        const value = ids ? ids.get(values[k]) : values[k];
        if (selector(q, k) && (best === null || better(value, best))) best = value;
      }
      if (best === null) return ids ? node.default : -1;
      return ids ? node.symbols[best] : best;
    });
  },
  count: (node, selector, length) =>
    Array.from({ length }, (_, q) => Array.from({ length: q + 1 }, (_, k) => selector(q, k)).filter(Boolean).length),
  shift: (node, row) => [node.default, ...row.slice(0, -1)],
  seen(node, marks) {
    let found = false;
    return marks.map((mark) => (found ||= mark === true));
  },
  latest(node, values, marks) {
    let last = node.default;
    return values.map((value, t) => (last = marks[t] === true ? value : last));
  },
};

/** Run one part of a program on a row and the state before it. */
function runPart(part, row, state) {
  const found = [];
  const at = (reference) => (typeof reference === "number" ? found[reference] : reference === "row" ? row : state[reference]);
  for (const node of part.nodes) {
    const given = node.of.map(at);
    found.push(OPERATIONS[node.op](node, ...given, ...(node.op === "count" ? [row.length] : [])));
  }
  return Object.fromEntries(Object.entries(part.out).map(([name, reference]) => [name, at(reference)]));
}

/** Run a program: its states, the prepared one first and then one per round, and its final output. */
function runProgram(program, row, rounds) {
  const states = [runPart(program.prepare, row, {})];
  for (let round = 0; round < rounds; round++) {
    const step = program.steps[Math.min(round, program.steps.length - 1)];
    states.push(runPart(step, row, states.at(-1)));
  }
  return { row, states, said: runPart(program.finish, row, states.at(-1)).said };
}

/** Run the task's program on a model's problem, written as `prompt = $ $ …`; null if it has no program. */
function runBeside(model, problem) {
  if (!model.program || (model.task.kind === "Multiplication" && problem.prompt.indexOf("*") > 2)) return null;
  const plain = { ...model, layout: { kind: "FullOutput", framed: false, pauses: 0 } };
  return runProgram(model.program, promptRow(plain, problem).tokens, problem.rounds);
}
