// Charts as Vega-Lite specifications: data in, specification out.

/** The page's own colours, light or dark. */
function theme() {
  const [ink, soft, line, paper] = ["ink", "soft", "line", "paper"].map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  const axis = { labelColor: ink, titleColor: ink, domainColor: soft, tickColor: soft, gridColor: line, labelFontSize: 12, titleFontSize: 12 };
  return {
    background: paper, axis, view: { stroke: null }, font: "system-ui, sans-serif", title: { color: ink },
    legend: { labelColor: ink, titleColor: ink, labelFontSize: 12, orient: "bottom", columns: 3, labelLimit: 320, symbolOpacity: 1, symbolSize: 90, symbolStrokeWidth: 2 },
  };
}

const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();

/** The colours and shapes of methods, the same in every chart; black is replaced by the page's ink. */
function byMethod(methods) {
  const domain = methods.map(({ label }) => label), range = methods.map(({ colour }) => (colour === "#000000" ? ink() : colour));
  const legend = methods.length > 1 ? { title: null } : null;
  return {
    color: { field: "label", type: "nominal", scale: { domain, range }, legend },
    shape: { field: "label", type: "nominal", scale: { domain, range: methods.map(({ shape }) => shape) }, legend },
  };
}

const tips = (...fields) => fields.map(([field, title, format]) => ({ field, title: title ?? field, ...(format ? { format } : {}) }));
const whole = { format: "d", tickMinStep: 1 };
const share = { type: "quantitative", scale: { domain: [0, 1] } };

const CHARTS = {
  lengths: {
    title: "Exact match against length",
    about: "Grey: the longest training length. Bands: worst to best seed, or the 95 % interval of a single seed. Points without a line: fewer seeds.",
    rows: (charts, chosen) => charts.lengths.filter((row) => row.along && chosen.label(row) && chosen.problems(row) && chosen.rule(row)),
    spec(rows, { methods, scale }) {
      const x = { field: "size", type: "quantitative", title: "size", scale: scale === "log" ? { type: "log", nice: false } : { nice: false, zero: true } };
      const { color, shape } = byMethod(methods), tops = [...new Set(rows.map((row) => row.trained))].filter(Boolean);
      const dash = { field: "problems", type: "nominal", legend: new Set(rows.map((row) => row.problems)).size > 1 ? { title: null } : null };
      const detail = [{ field: "name" }, { field: "stopping" }], transform = [{ filter: "datum.joined" }];
      return {
        data: { values: rows.map((row) => ({ ...row, said: row.families.slice(0, 3).join(", ") })) },
        layer: [
          { data: { values: tops.map((top) => ({ top })) }, mark: { type: "rule", color: "#8a8a8a", strokeWidth: 6, opacity: 0.35 }, encoding: { x: { field: "top", type: "quantitative" } } },
          { transform, mark: { type: "area", opacity: 0.13, tooltip: false }, encoding: { x, y: { field: "low", ...share, title: "exact match" }, y2: { field: "high" }, color, detail } },
          { transform, mark: { type: "line", strokeWidth: 2 }, encoding: { x, y: { field: "mean", ...share, title: "exact match" }, color, strokeDash: dash, detail } },
          {
            mark: { type: "point", filled: true, size: 55, opacity: 1 },
            encoding: {
              x, y: { field: "mean", ...share }, color, shape,
              tooltip: tips(["label", "method"], ["problems"], ["stopping", "stopping rule"], ["sizes", "size"], ["mean", "exact match"], ["low"], ["high"], ["seeds"], ["count", "problems per seed"], ["said", "families"]),
            },
          },
        ],
      };
    },
  },
  maps: {
    title: "Exact match on two sizes",
    about: "The mean over seeds.",
    pick: (row) => [row.label, row.problems, row.stopping].join(", "),
    rows: (charts) => charts.maps,
    spec: (rows) => ({
      data: { values: rows }, height: 360, mark: { type: "rect" },
      encoding: {
        x: { field: "first", type: "ordinal", title: "first size" }, y: { field: "second", type: "ordinal", sort: "descending", title: "second size" },
        color: { field: "exact", ...share, title: "exact match", scale: { domain: [0, 1], scheme: "viridis" } },
        tooltip: tips(["first"], ["second"], ["exact", "exact match"]),
      },
    }),
  },
  loops: {
    title: "Exact match after each loop",
    about: "Vertical lines: the mean loop at which each rule stops.",
    pick: (row) => row.label,
    rows: (charts) => charts.loops,
    spec: (rows, { charts }) => ({
      data: { values: rows },
      layer: [
        { mark: { type: "line" }, encoding: { x: { field: "loop", type: "quantitative" }, y: { field: "exact", ...share, title: "exact match" }, color: { field: "size", type: "nominal" }, tooltip: tips(["size"], ["loop"], ["exact", "exact match"], ["confidence", "mean log probability", ".4f"]) } },
        { data: { values: charts.stops.filter(({ label }) => rows.some((row) => row.label === label)) }, mark: { type: "rule", strokeWidth: 1.5 }, encoding: { x: { field: "loop", type: "quantitative" }, color: { field: "size", type: "nominal" }, strokeDash: { field: "rule", type: "nominal", title: "rule" }, tooltip: tips(["rule"], ["size"], ["loop", "mean loop"], ["exact", "exact match"]) } },
      ],
    }),
  },
  wrong: {
    title: "First wrong position of wrong answers",
    about: "All seeds together.",
    pick: (row) => row.label,
    rows: (charts) => charts.wrong,
    spec: (rows) => ({
      data: { values: rows }, mark: { type: "bar" },
      encoding: { x: { field: "position", type: "quantitative", title: "position in the answer", bin: { step: 1 }, axis: whole }, y: { field: "answers", type: "quantitative", title: "answers" }, color: { field: "size", type: "nominal" }, tooltip: tips(["size"], ["position"], ["answers"]) },
    }),
  },
  traits: {
    title: "Exact match against features of difficulty",
    about: "One line per seed.",
    pick: (row) => `${row.label}: ${row.trait}`,
    rows: (charts) => charts.traits,
    spec: (rows) => ({
      data: { values: rows }, mark: { type: "line", point: true },
      encoding: { x: { field: "middle", type: "quantitative", title: rows[0].trait, axis: { tickMinStep: 1 } }, y: { field: "exact", ...share, title: "exact match" }, color: { field: "size", type: "nominal" }, detail: { field: "seed" }, tooltip: tips(["size"], ["middle", rows[0].trait], ["exact", "exact match"], ["count", "problems"], ["seed"]) },
    }),
  },
  loss: {
    title: "Loss while training",
    about: "Running geometric mean, one line per seed.",
    rows: (charts, chosen) => charts.loss.filter(chosen.label),
    spec: (rows, { methods }) => ({
      data: { values: rows }, mark: { type: "line", strokeWidth: 1.3 },
      encoding: { x: { field: "step", type: "quantitative" }, y: { field: "loss", type: "quantitative", title: "loss (nats)", scale: { type: "log" } }, color: byMethod(methods).color, detail: { field: "seed" }, tooltip: tips(["label", "method"], ["seed"], ["step"], ["loss"]) },
    }),
  },
  watched: {
    title: "Exact match while training",
    about: "At the sizes measured in training (watch.sizes), one line per seed.",
    rows: (charts, chosen) => charts.watched.filter(chosen.label),
    spec: (rows, { methods }) => ({
      data: { values: rows }, mark: { type: "line", strokeWidth: 1.3 },
      encoding: { x: { field: "step", type: "quantitative" }, y: { field: "exact", ...share, title: "exact match" }, color: byMethod(methods).color, strokeDash: { field: "size", type: "nominal" }, detail: { field: "seed" }, tooltip: tips(["label", "method"], ["seed"], ["size"], ["step"], ["exact", "exact match"]) },
    }),
  },
  cost: {
    title: "Cost of training",
    about: "Processor minutes on one thread, median over seeds.",
    rows: (charts, chosen) => charts.cost.filter(chosen.label),
    spec: (rows, { methods }) => ({
      data: { values: rows }, height: 40 + 26 * rows.length, mark: { type: "bar" },
      encoding: { y: { field: "label", type: "nominal", title: null, sort: null, axis: { labelLimit: 260 } }, x: { field: "minutes", type: "quantitative", title: "processor minutes" }, color: { ...byMethod(methods).color, legend: null }, tooltip: tips(["label", "method"], ["minutes", "minutes", ".1f"], ["parameters"], ["operations"], ["longest", "longest size solved, per seed"]) },
    }),
  },
};

/** Draw a chart into an element. */
function draw(element, name, rows, state) {
  const chart = CHARTS[name];
  const spec = {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json", description: `${chart.title}. ${chart.about} The tables below hold all numbers.`,
    width: "container", height: 300, autosize: { type: "fit-x", contains: "padding" }, ...chart.spec(rows, state), config: theme(),
  };
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return vegaEmbed(element, spec, { ast: true, renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false }, tooltip: { theme: dark ? "dark" : "light" } });
}
