// The report: controls, charts, tables and recipes.

const ABOUT = {
  scores: "all scores", curves: "the points of the curves", card: "the score card", metrics: "measurements during training",
  stopping: "exact match by loop and stopping rule", anatomy: "errors in answers", differences: "fields in which the recipes differ",
};
const SECTIONS = { "Length generalization": ["lengths", "maps"], "Stopping and errors": ["loops", "wrong", "traits"], "Training and cost": ["loss", "watched", "cost"] };

class Report {
  constructor(root, held) {
    this.root = root;
    this.held = held;
    const { columns, rows } = held.tables.card ?? { columns: [], rows: [] };
    const cards = rows.map((row) => Object.fromEntries(columns.map((column, i) => [column, row[i]])));
    held.charts.cost = cards.filter((card) => card.cpu_s !== null).map((card) => ({ ...card, label: card.recipe, minutes: card.cpu_s / 60 }));
    this.methods = held.charts.methods;
    this.hidden = new Set();
    this.picked = {};
    this.scale = "linear";
    const kinds = new Set(held.charts.lengths.map((row) => row.problems));
    this.problems = kinds.has("worst family") ? ["uniform", "worst family"] : [...kinds].slice(0, 1);
    this.build(kinds);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawAll());
  }

  build(kinds) {
    this.figures = {};
    const made = Object.entries(SECTIONS).map(([title, names]) => this.section(title, names.filter((name) => this.held.charts[name]?.length)));
    const tables = el("section", { "aria-label": "tables" }, el("h2", {}, "Tables"), ...Object.entries(this.held.tables).map(([name, table]) => tableOf(name, ABOUT[name], table)));
    this.root.replaceChildren(this.controls(kinds), ...made.filter(Boolean), tables);
    document.getElementById("recipes").replaceChildren(this.differences(), ...Object.entries(this.held.recipes).map(([label, recipe]) => this.recipe(label, recipe)));
    this.drawAll();
  }

  controls(kinds) {
    const methods = this.methods.map(({ label, colour }) =>
      el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (event) => this.toggle(label, event.target.checked) }), el("span", { class: "swatch", style: `background: ${colour}` }), ` ${label}`));
    const sets = { ...(kinds.has("worst family") ? { "uniform and worst family": ["uniform", "worst family"] } : {}), ...Object.fromEntries([...kinds].map((kind) => [kind, [kind]])) };
    const problems = el("select", { id: "problems", onchange: (event) => { this.problems = sets[event.target.value]; this.drawAll(["lengths"]); } }, ...Object.keys(sets).map((name) => el("option", {}, name)));
    const scale = el("select", { id: "scale", onchange: (event) => { this.scale = event.target.value; this.drawAll(["lengths"]); } }, el("option", {}, "linear"), el("option", {}, "log"));
    const rules = new Set(this.held.charts.lengths.map((row) => row.stopping)).size > 1;
    this.every = el("input", { type: "checkbox", onchange: () => this.drawAll(["lengths"]) });
    return el("form", { class: "controls", "aria-label": "contents of the charts", onsubmit: (event) => event.preventDefault() },
      el("fieldset", {}, el("legend", {}, "Methods"), ...methods),
      el("label", {}, "Problems ", problems), el("label", {}, "Lengths ", scale), el("label", { hidden: !rules }, this.every, " every stopping rule"));
  }

  toggle(label, shown) {
    this.hidden[shown ? "delete" : "add"](label);
    this.drawAll();
  }

  section(title, names) {
    if (!names.length) return null;
    return el("section", { "aria-label": title }, el("h2", {}, title), ...names.map((name) => this.figure(name)));
  }

  figure(name) {
    const chart = CHARTS[name], target = el("div", { class: "chart", id: `chart-${name}` });
    const picks = chart.pick ? [...new Set(this.held.charts[name].map(chart.pick))] : [];
    this.picked[name] = picks[0];
    const pick = picks.length > 1 ? el("label", {}, "of ", el("select", { onchange: (event) => { this.picked[name] = event.target.value; this.drawAll([name]); } }, ...picks.map((one) => el("option", {}, one)))) : null;
    this.figures[name] = target;
    return el("figure", {}, el("h3", {}, chart.title), pick, target, el("figcaption", {}, picks.length === 1 ? `${picks[0]}. ${chart.about}` : chart.about));
  }

  async drawAll(names = Object.keys(this.figures)) {
    const shown = this.methods.filter(({ label }) => !this.hidden.has(label));
    const chosen = { label: (row) => !this.hidden.has(row.label), problems: (row) => this.problems.includes(row.problems), rule: (row) => this.every.checked || row.own };
    for (const name of names) {
      const chart = CHARTS[name], target = this.figures[name];
      const rows = chart.rows(this.held.charts, chosen).filter((row) => !chart.pick || chart.pick(row) === this.picked[name]);
      if (rows.length) await draw(target, name, rows, { methods: shown, scale: this.scale, charts: this.held.charts });
      else target.replaceChildren(el("p", { class: "soft" }, "All methods are hidden: switch one on."));
    }
    this.root.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
    this.root.dataset.drawn = "yes";
  }

  differences() {
    if (Object.keys(this.held.recipes).length < 2) return el("p", {}, "One recipe.");
    const table = this.held.tables.differences;
    return table ? el("p", {}, el("a", { href: "#table-differences", onclick: () => { document.getElementById("table-differences").open = true; } }, `The recipes differ in ${table.rows.length} fields`), ".") : el("p", {}, "The recipes differ in their names only.");
  }

  recipe(label, recipe) {
    const text = `${JSON.stringify(recipe, null, 1)}\n`;
    const save = el("button", { type: "button", onclick: () => download(`${label}.json`, text, "application/json") }, `Save ${label}.json`);
    return el("details", {}, el("summary", {}, `recipe ${label}`), save, el("pre", { class: "wide", tabindex: 0 }, text));
  }
}

for (const root of document.querySelectorAll("[data-report]")) embedded(root.dataset.report).then((held) => { root.report = new Report(root, held); });
