// One model's panel: its answer, a map of loops and positions, tables of one loop, attention heads, and the RASP program.

const MODES = { said: "symbols and their probability", state: "norm of the state", change: "change since the previous loop" };
// When each stopping rule stops.
const RULES = {
  Oracle: "after T(n) loops: the rounds of a reference algorithm", After: "after a fixed number of loops", MaxConfidence: "at the most confident loop",
  Converged: "when the answer has not changed for some loops", Halted: "when the answer is not empty",
  Settled: "when a loop moves every position's state by less than this fraction of its norm",
};
const MOST_CELLS = 220; // positions that tables show

class Panel {
  /** `steer({ loop, position })` is called when the reader points at a loop and a position. */
  constructor(model, steer) {
    const { name, task, parameters, trained } = model;
    this.model = model;
    this.steer = steer;
    this.answer = el("p", { class: "answer" });
    this.map = this.canvas((event) => this.point(event));
    this.about = `${name}: ${task.name}, ${parameters.toLocaleString("en")} parameters, trained on sizes up to ${trained}`;
    this.build();
  }

  /** A canvas that calls `point(event)` when the reader presses on it or drags. */
  canvas(point) {
    const canvas = el("canvas", { role: "img", class: "map" });
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointermove", (event) => event.buttons && point(event));
    return canvas;
  }

  get said() {
    return this.trace.loops[this.loop - 1];
  }

  build() {
    const { name } = this.model;
    this.network = networkOf(this.model);
    this.mode = "said";
    this.modes = el("select", { onchange: () => this.changeMode() });
    for (const [mode, text] of Object.entries(MODES)) this.modes.append(el("option", { value: mode }, text));
    this.stops = el("table", { class: "stops" });
    this.now = el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `${name}: every position after this loop` });
    this.layers = el("select", { onchange: () => this.showHeads() });
    for (let layer = 0; layer < this.network.spec.layers; layer++) this.layers.append(el("option", { value: layer }, layer + 1));
    this.heads = el("div", { class: "heads" });
    this.program = el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "the program’s state after this round" });
    this.programTitle = el("h3");
    this.root = el(
      "section", { class: "panel", "aria-label": name },
      el("h2", {}, name),
      el("div", { class: "halves" },
        el("div", {},
          el("p", { class: "line" }, el("label", {}, "The map shows ", this.modes)),
          el("div", { class: "wide" }, this.map), el("p", { class: "key" }), this.answer,
          el("p", { class: "soft" }, this.about)),
        el("div", {},
          el("h3", {}, "Where stopping rules stop"), el("div", { class: "wide" }, this.stops),
          el("p", { class: "soft" }, "Confidence: the geometric mean of the probabilities of the answer's symbols."),
          el("h3", {}, "Attention of each head in this loop"),
          el("p", { class: "line" }, el("label", {}, "layer ", this.layers), el("span", { class: "soft" }, "rows: queries, columns: keys")),
          this.heads)),
      el("h3", {}, "Every position after this loop"), this.now,
      this.programTitle, this.program,
    );
  }

  /** Run the model on a problem. Resolves to the trace, or to null if `stopped()` returns true. */
  async think(text, onProgress, stopped) {
    const trace = await think(this.network, this.model, text, onProgress, stopped);
    if (trace) {
      this.trace = trace;
      this.beside = runBeside(this.model, trace.problem);
      this.norms = null;
      this.showStops();
    }
    return trace;
  }

  columns() {
    return this.mode === "said" ? this.trace.row.slots : this.trace.row.tokens.map((_, t) => t);
  }

  changeMode() {
    this.mode = this.modes.value;
    this.showMap();
  }

  point(event) {
    const found = this.trace && pointed(event, this.map, this.grid);
    if (found) this.steer({ loop: found.line + 1, position: this.columns()[found.column] });
  }

  /** Show one loop and position. */
  show(loop, position) {
    this.loop = clamp(loop, 1, this.trace.loops.length);
    this.position = clamp(position, 0, this.trace.row.tokens.length - 1);
    this.showAnswer();
    this.showMap();
    this.showNow();
    this.showHeads();
    this.showProgram();
  }

  /** One sentence on this loop. */
  sentence() {
    const { text, confidence, right } = this.said, wanted = formatAnswer(this.model.task, this.trace.problem.answer);
    return `After loop ${this.loop} of ${this.trace.loops.length}: ${text || "nothing"}, ${right ? "right" : `wrong: ${wanted} is right`}; confidence ${shareText(Math.exp(confidence))}.`;
  }

  showAnswer() {
    const own = this.trace.stops[0], final = this.trace.loops[own.loop - 1];
    const settled = Math.max(...this.trace.settled.slice(0, this.trace.loops.at(-1).ends));
    this.answer.replaceChildren(
      `By the recipe's own rule, the model stops after loop ${own.loop}, and its answer is `, el("strong", { class: final.right ? "right" : "wrong" }, final.right ? "right" : "wrong"),
      `. The last loop's answer is reached at loop ${settled}.`,
    );
  }

  showMap() {
    const { loops, row, settled, stops } = this.trace, columns = this.columns(), said = this.mode === "said";
    this.grid = gridOf(columns.length, loops.length, this.map.parentElement.clientWidth - 4 || 600);
    const cell = said ? (l, c) => this.saidCell(loops[l], c) : this.normCell();
    const heads = columns.map((t) => (said && this.model.layout.kind !== "Pairs" ? "" : row.tokens[t]));
    const at = { line: this.loop - 1, column: columns.indexOf(this.position) };
    drawMap(this.map, this.grid, cell, { heads, at, marks: stops.map(({ loop }) => loop - 1), settled: said ? settled : null });
    this.map.setAttribute("aria-label", `${MODES[this.mode]}: ${loops.length} loops by ${columns.length} positions. ${this.sentence()}`);
    const across = said ? (this.model.layout.kind === "Pairs" ? "a column per digit of the answer, headed by the two digits that are added" : "a column per symbol of the answer") : "a column per position";
    const colours = said ? "Blue: right symbol, orange: wrong; stronger colour: higher probability. Bar: the symbol no longer changes. Triangle: a rule stops here." : "Stronger colour: larger.";
    this.root.querySelector(".key").textContent = `One line per loop, ${across}. ${colours}`;
  }

  saidCell(loop, slot) {
    const wanted = this.trace.row.wanted[slot], symbol = loop.said[slot];
    return { share: Math.exp(loop.sure[slot]), wrong: wanted !== undefined && wanted !== symbol, text: symbol };
  }

  normCell() {
    this.norms ??= this.trace.loops.map((_, k) => normsOf(this.network, this.trace, k + 1));
    const rows = this.norms.map((norm) => norm[this.mode]), most = Math.max(...rows.map((row) => Math.max(...row)));
    return (l, c) => ({ share: rows[l][c] / most });
  }

  showStops() {
    const rows = this.trace.stops.map(({ rule, loop }, n) => {
      const { text, confidence, right } = this.trace.loops[loop - 1];
      const go = el("button", { type: "button", onclick: () => this.steer({ loop }) }, `loop ${loop}`);
      return el("tr", {}, el("th", { scope: "row" }, ruleText(rule), n ? "" : " (the recipe's)", el("small", { class: "means" }, RULES[rule.kind] ?? "")), el("td", {}, go),
        el("td", { class: "mono" }, shortened(text)), el("td", { class: right ? "right" : "wrong" }, right ? "right" : "wrong"),
        el("td", { class: "number" }, shareText(Math.exp(confidence))));
    });
    const head = ["rule", "stops at", "answer", "right?", "confidence"].map((text, n) => el("th", { scope: "col", class: n > 3 ? "number" : "" }, text));
    this.stops.replaceChildren(el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
  }

  showNow() {
    const { row, settled } = this.trace, norms = normsOf(this.network, this.trace, this.loop);
    const shown = row.tokens.slice(0, MOST_CELLS), slot = (t) => t - row.slots[0], inside = (t) => slot(t) >= 0;
    const says = (t) => ({ text: inside(t) ? this.said.said[slot(t)] : "", class: this.verdict(slot(t)) });
    const lines = {
      token: (t) => ({ text: row.tokens[t] }),
      prediction: says,
      probability: (t) => ({ text: inside(t) ? shareText(Math.exp(this.said.sure[slot(t)]), 2) : "" }),
      "fixed from loop": (t) => ({ text: inside(t) ? settled[slot(t)] : "" }),
      "norm of the state": (t) => ({ text: fixed(norms.state[t], 1) }),
      "norm of its change": (t) => ({ text: fixed(norms.change[t], 1) }),
    };
    const made = Object.entries(lines).map(([name, cell]) => this.line(name, shown.map((_, t) => cell(t))));
    this.now.replaceChildren(el("table", { class: "positions" }, el("tbody", {}, ...made)));
    const at = this.now.querySelector("td.at"), seen = this.now.scrollLeft;
    if (at && (at.offsetLeft < seen + 120 || at.offsetLeft > seen + this.now.clientWidth - 30)) {
      this.now.scrollLeft = at.offsetLeft - this.now.clientWidth / 2;
    }
  }

  verdict(slot) {
    const wanted = this.trace.row.wanted[slot];
    return slot < 0 || wanted === undefined ? "" : wanted === this.said.said[slot] ? "right" : "wrong";
  }

  line(name, cells) {
    const made = cells.map((cell, t) => {
      const at = t === this.position && name === "token";
      return el("td", { class: `${cell.class ?? ""}${at ? " at" : ""}`.trim() || null, onclick: () => this.steer({ position: t }) }, String(cell.text));
    });
    return el("tr", {}, el("th", { scope: "row" }, name), ...made);
  }

  showHeads() {
    const layer = Number(this.layers.value), look = lookedAt(this.network, this.trace, this.loop)[layer];
    const { tokens } = this.trace.row;
    const named = ([key, weight]) => `${key < 0 ? "nothing" : `position ${key + 1} (${tokens[key]})`} ${shareText(weight, 2)}`;
    const made = look.map((seen, head) => {
      const canvas = el("canvas", { role: "img" }), most = [...seen[this.position]].sort((a, b) => b[1] - a[1]).slice(0, 3);
      const text = `head ${head + 1}, from position ${this.position + 1} (${tokens[this.position]}): ${most.map(named).join(", ")}`;
      canvas.setAttribute("aria-label", text);
      drawHead(canvas, seen, 150, this.position);
      return el("figure", {}, canvas, el("figcaption", {}, text));
    });
    this.heads.replaceChildren(...made);
  }

  showProgram() {
    if (!this.beside) {
      this.programTitle.textContent = "There is no n-RASP-L program for this problem";
      this.program.replaceChildren();
      return;
    }
    const { row, states } = this.beside, round = Math.min(this.loop, states.length - 1), state = states[round];
    const toText = (symbol) => (symbol === null || symbol === false ? "·" : symbol === true ? "^" : String(symbol));
    const line = (name, symbols) => el("tr", {}, el("th", { scope: "row" }, name), ...symbols.slice(0, MOST_CELLS).map((symbol) => el("td", {}, toText(symbol))));
    const lines = [line("row", row), ...Object.entries(state).map(([name, symbols]) => line(name, symbols))];
    this.programTitle.textContent = `The task’s n-RASP-L program, after round ${round} of ${states.length - 1}`;
    this.program.replaceChildren(el("table", { class: "positions" }, el("tbody", {}, ...lines)));
  }
}
