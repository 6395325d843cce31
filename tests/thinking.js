// What tests ask a page's scripts: this stands after them, where it sees their names. It reads one JSON value and answers
// with lines of JSON.

const asked = JSON.parse(require("fs").readFileSync(0));

/** The same problems through each model, as `viewer_reference.compute_reference` tells of them. */
async function thinking(cases) {
  for (const { model, problems } of cases) {
    const network = networkOf(model);
    for (const { prompt } of problems) {
      const trace = await think(network, model, prompt), { loop } = trace.stops[0], said = trace.loops[loop - 1];
      const { text, right } = said, logs = said.logs.map((row) => [...row]);
      const kinds = Object.keys(USUAL).map((kind) => [kind, chosenLoop({ kind, ...USUAL[kind] }, trace)]);
      const states = runBeside(model, trace.problem)?.states ?? null;
      const sums = lookedAt(network, trace, loop).flat(2).map((keys) => keys.reduce((sum, [, weight]) => sum + weight, 0));
      console.log(JSON.stringify({ prompt, text, right, loops: loop, logs, stops: Object.fromEntries(kinds), states, sums }));
    }
  }
}

/** Every text as a problem of every task, or why it is none. */
function parsing({ tasks, texts }) {
  for (const task of tasks) {
    for (const typed of texts) {
      try {
        const { prompt, answer, rounds, slots } = parseProblem(task, typed), text = formatAnswer(task, answer);
        console.log(JSON.stringify({ prompt: prompt.join(""), answer: answer.join(""), text, rounds, slots }));
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        console.log(JSON.stringify({ refused: error.message }));
      }
    }
  }
}

/** The loop at which each rule stops in each made-up trace. */
function stopping({ traces, rules }) {
  for (const trace of traces) console.log(JSON.stringify(rules.map((rule) => chosenLoop(rule, trace))));
}

/** What each program makes of its row. */
function running({ programs }) {
  for (const { program, row, rounds } of programs) {
    const { states, said } = runProgram(program, row, rounds);
    console.log(JSON.stringify({ states, said }));
  }
}

if (asked.programs) running(asked);
else if (asked.traces) stopping(asked);
else if (asked.cases) thinking(asked.cases);
else parsing(asked);
