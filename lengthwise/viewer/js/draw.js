// Maps on a canvas: one cell per loop and position, and attention weights. Colours are the page's, light or dark.

const COLUMN = { least: 7, most: 20 }, LINE = { least: 3, most: 16 }, MARGIN = { left: 34, top: 18 };

/** Set a canvas's size in CSS pixels, sharp on any screen; return its context, which also counts CSS pixels. */
function sized(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = "11px ui-monospace, monospace";
  context.textBaseline = "middle";
  return context;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The size of a map with these columns and lines: it fits the width, and a screen together with the controls. */
function gridOf(columns, lines, width) {
  const column = clamp(Math.floor((width - MARGIN.left) / columns), COLUMN.least, COLUMN.most);
  const line = clamp(Math.floor(Math.min(560, 0.55 * innerHeight) / lines), LINE.least, LINE.most);
  return { columns, lines, column, line, width: MARGIN.left + columns * column + 2, height: MARGIN.top + lines * line + 2 };
}

/** Draw a map: cell(line, column) → { share: 0–1, wrong?, text? }. `marks`: lines at which stopping rules stop; `settled`:
 * per column, the first line from which on its symbol does not change; `heads`: the columns' headings. */
function drawMap(canvas, grid, cell, { heads, settled, marks, at }) {
  const paint = sized(canvas, grid.width, grid.height), { column, line } = grid;
  const x = (c) => MARGIN.left + c * column, y = (l) => MARGIN.top + l * line;
  const ink = colour("ink"), good = colour("good"), bad = colour("bad");
  paint.textAlign = "center";
  for (let c = 0; c < grid.columns; c++) {
    paint.fillStyle = ink;
    if (column >= 7 * Math.max(1, heads[c].length)) paint.fillText(heads[c], x(c) + column / 2, MARGIN.top / 2);
    for (let l = 0; l < grid.lines; l++) {
      const { share, wrong, text } = cell(l, c);
      paint.globalAlpha = 0.06 + 0.84 * clamp(share, 0, 1);
      paint.fillStyle = wrong ? bad : good;
      paint.fillRect(x(c), y(l), column - 0.5, line - 0.5);
      paint.globalAlpha = 1;
      if (text && line >= 10) {
        paint.fillStyle = share > 0.55 ? colour("paper") : ink;
        paint.fillText(text, x(c) + column / 2, y(l) + line / 2 + 0.5);
      }
    }
    if (settled) {
      paint.fillStyle = ink;
      paint.fillRect(x(c), y(settled[c] - 1) - 1, column - 0.5, 2);
    }
  }
  drawEdge(paint, grid, marks, at, x, y);
}

/** Draw loop numbers, marks where rules stop, and frames around the selected loop and position. */
function drawEdge(paint, grid, marks, at, x, y) {
  const every = Math.max(1, Math.ceil(14 / grid.line / 5) * (grid.line < 14 ? 5 : 1));
  paint.textAlign = "right";
  paint.fillStyle = colour("soft");
  for (let l = 0; l < grid.lines; l++) {
    if ((l + 1) % every === 0 || l === 0) paint.fillText(l + 1, MARGIN.left - 10, y(l) + grid.line / 2);
  }
  paint.fillStyle = colour("accent");
  for (const l of marks) {
    paint.beginPath();
    paint.moveTo(MARGIN.left - 8, y(l) + grid.line / 2 - 4);
    paint.lineTo(MARGIN.left - 1, y(l) + grid.line / 2);
    paint.lineTo(MARGIN.left - 8, y(l) + grid.line / 2 + 4);
    paint.fill();
  }
  paint.strokeStyle = colour("ink");
  paint.lineWidth = 1.5;
  paint.strokeRect(x(0) - 1, y(at.line) - 1, grid.columns * grid.column + 1.5, grid.line + 1.5);
  if (at.column >= 0) paint.strokeRect(x(at.column) - 1, MARGIN.top - 1, grid.column + 1, grid.lines * grid.line + 1);
}

/** Draw one head's attention weights: queries downwards, keys across; a blank key, if any, in a separate column. */
function drawHead(canvas, seen, size, query) {
  const count = seen.length, blank = seen[0].some(([key]) => key < 0), across = count + (blank ? 2 : 0);
  const cell = Math.max(1, Math.floor(size / across)), paint = sized(canvas, cell * across, cell * count);
  paint.fillStyle = colour("good");
  seen.forEach((keys, q) => {
    for (const [key, weight] of keys) {
      paint.globalAlpha = 0.04 + 0.96 * weight;
      paint.fillRect((key < 0 ? count + 1 : key) * cell, q * cell, cell, cell);
    }
  });
  paint.globalAlpha = 1;
  paint.strokeStyle = colour("accent");
  paint.strokeRect(0.5, query * cell + 0.5, cell * across - 1, Math.max(2, cell) - 1);
}

/** The line and column under a pointer; null outside the map. */
function pointed(event, canvas, grid) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - MARGIN.left) / grid.column);
  const line = Math.floor((event.clientY - box.top - MARGIN.top) / grid.line);
  return line >= 0 && line < grid.lines ? { line, column: clamp(column, 0, grid.columns - 1) } : null;
}

/** Draw a grid: its symbols, `#` as walls, and the cells that a model changes. cell(slot) → { share, wrong, text }. */
function drawGrid(canvas, { lines, columns, side }, symbols, cell, at) {
  const paint = sized(canvas, columns * side + 2, lines * side + 2), ink = colour("ink"), soft = colour("soft");
  paint.textAlign = "center";
  paint.font = `${clamp(side - 4, 8, 16)}px ui-monospace, monospace`;
  symbols.forEach((symbol, slot) => {
    const x = 1 + (slot % columns) * side, y = 1 + Math.floor(slot / columns) * side, { share, wrong, text } = cell(slot);
    const write = (said) => side >= 9 && said !== "." && paint.fillText(said, x + side / 2, y + side / 2 + 0.5);
    paint.fillStyle = symbol === "#" ? soft : colour("raised");
    paint.fillRect(x, y, side - 0.5, side - 0.5);
    if (text !== symbol) {
      paint.globalAlpha = 0.25 + 0.75 * share;
      paint.fillStyle = colour(wrong ? "bad" : "good");
      paint.fillRect(x, y, side - 0.5, side - 0.5);
      paint.globalAlpha = 1;
      paint.fillStyle = colour("paper");
      write("SG".includes(symbol) ? symbol : text);
      return;
    }
    paint.fillStyle = ink;
    if (symbol !== "#") write(symbol);
    if (wrong) {
      paint.strokeStyle = colour("bad");
      paint.lineWidth = 1.5;
      paint.strokeRect(x + 1, y + 1, side - 2.5, side - 2.5);
    }
  });
  paint.strokeStyle = ink;
  paint.lineWidth = 1.5;
  paint.strokeRect(1 + (at % columns) * side, 1 + Math.floor(at / columns) * side, side - 0.5, side - 0.5);
}

/** Draw curves of values 0–1 over loops (null: no value), a line at the selected loop, and a triangle at `mark`. */
function drawCurves(canvas, width, { height, left, foot }, curves, { at, mark }) {
  const paint = sized(canvas, width, height), count = curves[0].values.length, low = height - foot;
  const x = (k) => left + (count > 1 ? (k / (count - 1)) * (width - left - 6) : 0), y = (value) => low - value * (low - 6);
  paint.fillStyle = colour("soft");
  paint.textAlign = "right";
  for (const share of [0, 1]) paint.fillText(share, left - 8, y(share));
  paint.textAlign = "center";
  for (const k of [0, count - 1]) paint.fillText(k + 1, clamp(x(k), left, width - 10), height - 6);
  paint.strokeStyle = colour("line");
  paint.strokeRect(left, 6, width - left - 6, low - 6);
  for (const { values, ink } of curves) {
    paint.strokeStyle = colour(ink);
    paint.lineWidth = 2;
    paint.beginPath();
    values.forEach((value, k) => value !== null && paint.lineTo(x(k), y(value)));
    paint.stroke();
  }
  paint.strokeStyle = colour("ink");
  paint.lineWidth = 1;
  paint.beginPath();
  paint.moveTo(x(at), 6);
  paint.lineTo(x(at), low);
  paint.stroke();
  paint.fillStyle = colour("accent");
  paint.beginPath();
  paint.moveTo(x(mark), low);
  paint.lineTo(x(mark) - 5, low + 9);
  paint.lineTo(x(mark) + 5, low + 9);
  paint.fill();
}
