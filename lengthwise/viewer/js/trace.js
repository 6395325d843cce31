// Run a model on a problem, loop by loop; find the loop at which each stopping rule would stop.

const MOST_POSITIONS = 600, MOST_LOOPS = 2000, SLICE = 24; // ms of work between pauses for the page's events

const LOOPS = {
  Constant: (loops) => loops.count,
  PerRound: (loops, rounds) => Math.max(1, (loops.times ?? 1) * rounds + loops.offset),
  ExtraLoops: (loops, rounds) => Math.max(1, rounds + loops.offset),
  AnyLoops: (loops, rounds) => Math.max(1, rounds + loops.offset),
};

const USUAL = {
  Oracle: { offset: 0 }, Converged: { patience: 2, extra: 20 }, MaxConfidence: { extra: 20, per: "example" },
};

/** The model's own stopping rule, then those shown for every model. Rules that look at answers need a model that loops, and
 * whose answer is not part of its input. */
function rulesOf(model) {
  const kinds = model.decodes || model.loops.kind === "Constant" ? ["Oracle"] : Object.keys(USUAL);
  const usual = kinds.map((kind) => ({ kind, ...USUAL[kind] }));
  const same = (one, other) => Object.keys(one).every((key) => one[key] === other[key]);
  return [model.stopping, ...usual.filter((rule) => !same(rule, model.stopping))];
}

const limitOf = (rule, planned) =>
  rule.kind === "After" ? rule.loops : rule.max_loops ?? Math.max(1, planned + (rule.kind === "Oracle" ? rule.offset : rule.extra));

const CHOICES = {
  Oracle: (rule, loops, limit) => limit,
  After: (rule, loops, limit) => limit,
  MaxConfidence: (rule, loops) => loops.reduce((best, loop, k) => (loop.confidence > loops[best].confidence ? k : best), 0) + 1,
  Halted: (rule, loops, limit) => Math.min((loops.findIndex((loop) => loop.ends > 1) + 1 || limit) + rule.delay, limit),
  Converged(rule, loops, limit) {
    const same = (k) => loops[k].said.slice(0, loops[k].ends).join() === loops[k + 1].said.slice(0, loops[k + 1].ends).join();
    for (let k = 0; k + rule.patience < loops.length; k++) {
      if (Array.from({ length: rule.patience }, (_, i) => same(k + i)).every(Boolean)) return k + 1;
    }
    return limit;
  },
  Settled: (rule, loops, limit) => loops.findIndex((loop) => isSettled(rule, loop.moved)) + 1 || limit,
};

const isSettled = (rule, moved) => moved[rule.period - 1] < rule.below;

/** The loop, from 1, at which a rule stops. It looks no further than its limit. */
function chosenLoop(rule, trace) {
  const limit = Math.min(limitOf(rule, trace.planned), trace.loops.length);
  return CHOICES[rule.kind](rule, trace.loops.slice(0, limit), limit);
}

const breath = () => new Promise((resume) => setTimeout(resume));

/** Run a model on a typed problem. `onProgress(share)` reports progress; null is returned early if `stopped()` returns true. */
async function think(network, model, text, onProgress = () => {}, stopped = () => false) {
  const problem = parseProblem(model.task, text), row = writeRow(model, problem);
  const planned = LOOPS[model.loops.kind](model.loops, problem.rounds), rules = rulesOf(model);
  const limits = rules.map((rule) => limitOf(rule, planned)), count = Math.max(...limits);
  if (row.ids.length > MOST_POSITIONS || count > MOST_LOOPS) {
    throw new Refused(`Too long for this page: ${row.ids.length} positions and ${count} loops. The limits are ${MOST_POSITIONS} and ${MOST_LOOPS}.`);
  }
  const run = network.begin(row), trace = { problem, row, run, planned, rules, loops: [], states: [run.start], moved: [] };
  const steps = model.decodes ? decoding(network, model, trace, limits[0], count) : looping(network, trace, limits);
  let since = performance.now();
  for (const share of steps) {
    if (performance.now() - since < SLICE) continue;
    onProgress(share);
    await breath();
    if (stopped()) return null;
    since = performance.now();
  }
  trace.loops = trace.states.slice(1).map((state, k) => ({ ...spoken(network, model, trace, state), moved: trace.moved[k] }));
  trace.settled = settled(trace.loops);
  trace.stops = rules.map((rule) => ({ rule, loop: chosenLoop(rule, trace) }));
  return trace;
}

/** Run all positions, loop by loop, until every rule has stopped. */
function* looping(network, trace, limits) {
  const { run, rules, states, moved } = trace, count = Math.max(...limits);
  const hasSettled = (rule) => rule.kind === "Settled" && moved.some((far) => isSettled(rule, far));
  for (let k = 0; rules.some((rule, n) => k < limits[n] && !hasSettled(rule)); k++) {
    states.push(new Float32Array(run.start.length));
    network.advance(run, states[k], 0, run.length, states[k + 1]);
    moved.push([1, 2].map((period) => movement(network, trace, k + 1, period)));
    yield (k + 1) / count;
  }
}

/** The change of the state from loop k − period to loop k, relative to its norm, at the position where it is largest. */
function movement(network, { states, run }, k, period) {
  const { width } = network.spec, now = states[k], before = states[k - period];
  if (k <= period) return Infinity;
  let most = 0;
  for (let from = 0; from < run.length * width; from += width) {
    let change = 0, size = 0;
    for (let i = from; i < from + width; i++) {
      change += (now[i] - before[i]) ** 2;
      size += now[i] ** 2;
    }
    most = Math.max(most, Math.sqrt(change / Math.max(size, 1e-30)));
  }
  return most;
}

/** Decode symbol by symbol: each is predicted after `loops` loops and then fed in. */
function* decoding(network, model, trace, loops, count) {
  const { run, states, row } = trace;
  for (let k = 0; k < count; k++) states.push(new Float32Array(run.start.length));
  const caches = states.map(() => ({})), [first] = row.slots;
  let from = 0;
  for (let to = first + 1; to <= run.length; to++) {
    for (let k = 0; k + 1 < states.length; k++) network.advance(run, states[k], from, to, states[k + 1], caches[k]);
    if (to < run.length) {
      row.ids[to] = likeliest(network.read(states[loops], to - 1, run));
      row.tokens[to] = model.reads[row.ids[to]];
      network.embed(run, to, to + 1);
      if (network.spec.injection === "once") states[0] = run.start;
    }
    from = to;
    yield (to - first) / (run.length - first);
  }
}

const likeliest = (logs) => logs.reduce((best, log, i) => (log > logs[best] ? i : best), 0);

/** The output after one loop: the symbol at each slot with its log probability, the answer's end, and its confidence. */
function spoken(network, model, trace, state) {
  const logs = trace.row.slots.map((position) => network.read(state, position, trace.run));
  const ids = logs.map(likeliest), said = ids.map((id) => model.writes[id]);
  const sure = ids.map((id, slot) => logs[slot][id]);
  const end = model.layout.kind === "Pairs" ? -1 : said.indexOf(END), ends = end < 0 ? said.length : end + 1;
  const confidence = sure.slice(0, ends).reduce((sum, log) => sum + log, 0) / ends;
  const { wanted } = trace.row, right = wanted.every((symbol, slot) => said[slot] === symbol);
  return { logs, said, sure, ends, confidence, right, text: formatAnswer(model.task, answerOf(model, said)) };
}

/** For each slot, the first loop, counted from 1, from which on its symbol no longer changes. */
function settled(loops) {
  const last = loops.at(-1).said;
  return last.map((symbol, slot) => {
    let k = loops.length;
    while (k > 1 && loops[k - 2].said[slot] === symbol) k--;
    return k;
  });
}

/** The attention weights in loop k (from 1): look[layer][head][query] = [[key, weight], …]. Computed on demand. */
function lookedAt(network, trace, k) {
  const look = [], out = new Float32Array(trace.run.start.length);
  network.advance(trace.run, trace.states[k - 1], 0, trace.run.length, out, {}, look);
  return look;
}

/** The norm of the state at each position, and of its change in the loop that led to it. */
function normsOf(network, trace, k) {
  const { width } = network.spec, now = trace.states[k], before = trace.states[k - 1];
  const norm = (of) => trace.row.tokens.map((_, t) => Math.hypot(...Array.from({ length: width }, (_, i) => of(t * width + i))));
  return { state: norm((i) => now[i]), change: norm((i) => now[i] - before[i]) };
}
