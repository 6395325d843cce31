// A model with a clock: two networks, whose states are concatenated. The page shows the state of the answer network.

const WAITS = 0, DONE = 1;
const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;

class TimedNetwork {
  constructor(packed) {
    const { answers, clock, blind } = packed.model;
    this.answers = new Network(packed, answers, packed.writes.length, "answers.");
    this.clock = new Network(packed, clock, 2, "clock.");
    this.spec = answers;
    this.end = packed.writes.indexOf(END);
    const alike = packed.reads.map((symbol) => blind && LETTER_OR_DIGIT.test(symbol));
    this.seen = alike.map((one, i) => (one ? alike.indexOf(true) : i));
  }

  /** The ids of a row as the clock network reads them. */
  timed(row) {
    return row.ids.map((id) => this.seen[id]);
  }

  begin(row) {
    const answers = this.answers.begin(row), clock = this.clock.begin({ ...row, ids: this.timed(row) });
    const run = { row, length: answers.length, answers, clock, start: new Float32Array(0) };
    run.start = new Float32Array(answers.start.length + clock.start.length);
    this.restart(run);
    return run;
  }

  restart(run) {
    run.start.set(run.answers.start);
    run.start.set(run.clock.start, run.answers.start.length);
  }

  embed(run, from, to) {
    this.answers.embed(run.answers, from, to);
    run.clock.row.ids = this.timed(run.row);
    this.clock.embed(run.clock, from, to);
    this.restart(run);
  }

  advance(run, state, from, to, next, cache = {}, look = null) {
    const at = run.answers.start.length, of = (array) => [array.subarray(0, at), array.subarray(at)];
    const [answers, clock] = of(state), [further, later] = of(next);
    this.answers.advance(run.answers, answers, from, to, further, (cache.answers ??= {}), look);
    this.clock.advance(run.clock, clock, from, to, later, (cache.clock ??= {}));
  }

  /** At the `=` the end has the probability that the clock waits, and the other symbols share what is left. */
  read(state, position, run) {
    const at = run.answers.start.length, logs = this.answers.read(state.subarray(0, at), position);
    if (run.row.tokens[position] !== EQUALS) return logs;
    const said = this.clock.read(state.subarray(at), position);
    const others = logs.map((log, i) => (i === this.end ? -Infinity : log));
    return logSoftmax(others).map((log, i) => (i === this.end ? said[WAITS] : log + said[DONE]));
  }
}

const networkOf = (packed) => (packed.model.kind === "Timed" ? new TimedNetwork(packed) : new Network(packed));
