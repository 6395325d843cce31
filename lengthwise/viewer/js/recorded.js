// The panel of a recorded model: its answer after a loop, on a grid or as a map of loops and positions, and the movement
// of the state in each loop. Python made the recording; only the correctness of symbols is computed here.

const CELL = { least: 4, most: 30 }, CURVE = { height: 130, left: 34, foot: 16 }, FLOOR = -4; // log₁₀ of the smallest movement shown

class RecordedPanel extends Panel {
  build() {
    const { name, rule } = this.model;
    this.curve = this.canvas((event) => this.pointCurve(event));
    this.key = el("p", { class: "key" });
    this.there = el("p", { class: "mono" });
    this.root = el(
      "section", { class: "panel", "aria-label": name },
      el("h2", {}, name),
      el("div", { class: "halves" },
        el("div", {}, el("div", { class: "wide" }, this.map), this.key, this.there),
        el("div", {},
          el("h3", {}, "Correct symbols, and movement of the state"), el("div", { class: "wide" }, this.curve),
          el("p", { class: "key" }, "Blue: share of correct symbols. Violet: the largest relative movement of a position’s state in each loop (logarithmic, 0.0001 to 10). Triangle: the recipe’s rule stops here."),
          this.answer,
          el("p", { class: "soft" }, `${this.about}, stopped by ${rule}. Recorded, not computed here.`))),
    );
  }

  /** Find the recording of a problem. Resolves to a trace. */
  async think(text) {
    const found = this.model.recordings.find(({ prompt }) => prompt === text.trim());
    if (!found) throw new Refused("This page has only recordings of this model: choose one of the problems below.");
    const slots = found.loops[0].said.map((_, slot) => slot), { writes } = this.model;
    const loops = found.loops.map(({ said, sure, moved }) => ({
      said: said.map((id) => writes[id]), sure, moved, correct: found.wanted.filter((id, slot) => said[slot] === id).length,
    }));
    const symbols = found.shape ? [...found.prompt.replaceAll("/", "")] : null;
    this.trace = { ...found, loops, symbols, wanted: found.wanted.map((id) => writes[id]), row: { slots, tokens: slots }, settled: settled(loops) };
    return this.trace;
  }

  show(loop, position) {
    this.loop = clamp(loop, 1, this.trace.loops.length);
    this.position = clamp(position, 0, this.trace.row.slots.length - 1);
    if (this.trace.shape) this.showGrid();
    else this.showMap();
    this.showCurve();
    this.showThere();
    this.showAnswer();
  }

  isRight({ correct }) {
    return correct === this.trace.wanted.length;
  }

  /** One sentence on this loop. */
  sentence() {
    const { correct, moved } = this.said, count = this.trace.wanted.length;
    const far = moved === null ? "" : `; the state moved by ${moved < 0.001 ? "less than .001" : fixed(moved)} at most`;
    return `After loop ${this.loop} of ${this.trace.loops.length}: ${correct} of ${count} symbols correct${far}.`;
  }

  showAnswer() {
    const { stop, stopped, loops, planned } = this.trace, right = this.isRight(loops[stop - 1]);
    this.answer.replaceChildren(
      stopped ? `By the recipe’s own rule, the model stops after loop ${stop}, and its answer is ` : `The recipe’s rule does not stop the model before its limit; after loop ${stop} its answer is `,
      el("strong", { class: right ? "right" : "wrong" }, right ? "right" : "wrong"), `. The recipe plans ${planned} loop${planned === 1 ? "" : "s"} for this problem.`,
    );
  }

  /** Show the model's symbol at the selected position. */
  showThere() {
    const { shape, wanted } = this.trace, at = this.position;
    const place = shape ? `line ${Math.floor(at / shape[1]) + 1}, column ${(at % shape[1]) + 1}` : `position ${at + 1}`;
    const right = wanted[at] === undefined ? "beyond the answer" : `${wanted[at]} is right`;
    this.there.textContent = `${place}: ${this.said.said[at]}, probability ${this.said.sure[at]} %; ${right}`;
  }

  cell(loop, slot) {
    const wanted = this.trace.wanted[slot], symbol = loop.said[slot];
    return { share: loop.sure[slot] / 100, wrong: wanted !== undefined && wanted !== symbol, text: symbol };
  }

  showMap() {
    const { loops, row, stop, settled } = this.trace;
    this.grid = gridOf(row.slots.length, loops.length, this.map.parentElement.clientWidth - 4 || 600);
    const at = { line: this.loop - 1, column: this.position };
    drawMap(this.map, this.grid, (l, c) => this.cell(loops[l], c), { heads: row.slots.map(() => ""), at, marks: [stop - 1], settled });
    this.map.setAttribute("aria-label", `${loops.length} loops by ${row.slots.length} positions. ${this.sentence()}`);
    this.key.textContent = "One line per loop, a column per symbol of the answer. Blue: right symbol, orange: wrong; stronger colour: higher probability. Bar: the symbol no longer changes. Triangle: the rule stops here.";
  }

  showGrid() {
    const [lines, columns] = this.trace.shape, room = Math.min(this.map.parentElement.clientWidth - 4 || 600, 0.6 * innerHeight);
    const side = clamp(Math.floor(room / Math.max(lines, columns)), CELL.least, CELL.most);
    this.grid = { lines, columns, side };
    drawGrid(this.map, this.grid, this.trace.symbols, (slot) => this.cell(this.said, slot), this.position);
    this.map.setAttribute("aria-label", `A grid of ${lines} lines and ${columns} columns. ${this.sentence()}`);
    this.key.textContent = "Cells that this loop’s answer changes in the grid: blue if right, orange if wrong; stronger colour: higher probability. Ring: a cell that should have changed.";
  }

  showCurve() {
    const { loops, wanted, stop } = this.trace, width = Math.max(200, this.curve.parentElement.clientWidth - 4 || 400);
    const shares = loops.map(({ correct }) => correct / wanted.length);
    const moved = loops.map((loop) => (loop.moved === null ? null : clamp((Math.log10(loop.moved) - FLOOR) / (1 - FLOOR), 0, 1)));
    drawCurves(this.curve, width, CURVE, [{ values: shares, ink: "good" }, { values: moved, ink: "accent" }], { at: this.loop - 1, mark: stop - 1 });
    this.curve.setAttribute("aria-label", `Correct symbols and movement over ${loops.length} loops. ${this.sentence()}`);
  }

  point(event) {
    if (!this.trace) return;
    if (!this.trace.shape) {
      const found = pointed(event, this.map, this.grid);
      if (found) this.steer({ loop: found.line + 1, position: found.column });
      return;
    }
    const box = this.map.getBoundingClientRect(), { side, lines, columns } = this.grid;
    const line = clamp(Math.floor((event.clientY - box.top) / side), 0, lines - 1);
    this.steer({ position: line * columns + clamp(Math.floor((event.clientX - box.left) / side), 0, columns - 1) });
  }

  pointCurve(event) {
    const box = this.curve.getBoundingClientRect(), count = this.trace.loops.length;
    this.steer({ loop: 1 + Math.round(((event.clientX - box.left - CURVE.left) / (box.width - CURVE.left - 6)) * (count - 1)) });
  }
}
