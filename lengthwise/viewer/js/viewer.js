// The viewer: a typed problem, one model or two side by side, and the loop that is shown.

const STEP = 280, WHOLE = 15_000; // playing takes 280 ms per loop, and at most 15 s for all loops
const KEYS = "↑ ↓ loop, ← → position, space plays or stops, Home End first or last loop, / problem, N next example, C shows another model beside it";

class Viewer {
  constructor(root, { models }) {
    this.root = root;
    this.models = models;
    this.state = { loop: 1, position: 0 };
    this.panels = [];
    this.cache = new Map();
    this.build();
    window.addEventListener("hashchange", () => this.readHash());
    window.addEventListener("resize", () => this.show());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.show());
    document.addEventListener("keydown", (event) => this.key(event));
    this.readHash();
  }

  build() {
    const named = (models) => models.map(({ name }) => el("option", { value: name }, name));
    this.model = el("select", { id: "model", onchange: () => this.chooseModel() }, ...named(this.models));
    this.beside = el("select", { id: "beside", onchange: () => this.start() });
    this.problem = el("input", { id: "problem", autocomplete: "off", spellcheck: "false", autocapitalize: "off", "aria-describedby": "question trouble" });
    this.copy = el("button", { type: "button", onclick: () => this.copyLink() }, "Copy link");
    this.form = el("form", { onsubmit: (event) => { event.preventDefault(); this.start(); } },
      el("label", { class: "grow" }, "Problem ", this.problem), el("button", { type: "submit", class: "primary" }, "Solve"), this.copy,
      el("label", { hidden: this.models.length < 2 }, "Model ", this.model), el("label", { class: "besides" }, "Compare with ", this.beside));
    this.question = el("p", { id: "question", class: "soft" });
    this.trouble = el("p", { id: "trouble", role: "alert" });
    this.examples = el("div", { class: "examples" });
    this.slider = el("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "loop", oninput: () => this.steer({ loop: Number(this.slider.value) }) });
    this.play = el("button", { type: "button", class: "primary", onclick: () => this.toggle() }, "Play");
    const step = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    this.where = el("output", {});
    this.transport = el("div", { class: "transport", role: "group", "aria-label": "loops" },
      step("«", "first loop", () => this.steer({ loop: 1 })), step("‹", "previous loop", () => this.steer({ loop: this.state.loop - 1 })), this.play,
      step("›", "next loop", () => this.steer({ loop: this.state.loop + 1 })), step("»", "last loop", () => this.steer({ loop: Infinity })),
      this.where, this.slider);
    this.status = el("p", { class: "status", "aria-live": "polite" });
    this.area = el("div", { class: "panels" });
    // The controls and the map come first, so that they are visible while the loops play.
    this.root.replaceChildren(this.form, this.trouble, this.transport, this.status, this.area, el("h2", {}, "Other problems"), this.question, this.examples,
      el("p", { class: "soft keys" }, `Keys: ${KEYS}.`));
  }

  // The state in the page's address

  readHash() {
    const given = new URLSearchParams(location.hash.slice(1));
    const elsewhere = location.hash && !given.has("problem") && !given.has("model"); // a link to a place on the page
    if (this.panels.length && (this.written === location.hash || elsewhere)) return;
    const model = this.models.find(({ name }) => name === given.get("model")) ?? this.models[0];
    this.model.value = model.name;
    this.offer();
    this.beside.value = given.get("beside") ?? "";
    if (this.beside.selectedIndex < 0) this.beside.value = "";
    this.problem.value = given.get("problem") ?? model.examples[0]?.prompt ?? model.task.example;
    this.start(Number(given.get("loop")) || null);
  }

  writeHash() {
    const held = { problem: this.problem.value, model: this.model.value, beside: this.beside.value, loop: this.state.loop };
    const hash = `#${new URLSearchParams(Object.entries(held).filter(([, value]) => value !== ""))}`;
    this.written = hash;
    try {
      history.replaceState(null, "", hash);
    } catch { /* a page in a frame may not; the link is then only copied */ }
    return hash;
  }

  async copyLink() {
    const link = location.href.split("#")[0] + this.writeHash();
    try {
      await navigator.clipboard.writeText(link);
      this.status.textContent = "The link to this problem is copied.";
    } catch {
      this.status.textContent = `The link to this problem: ${link}`;
    }
  }

  // The chosen model

  get chosen() {
    return this.models.find(({ name }) => name === this.model.value);
  }

  chooseModel() {
    this.offer();
    this.problem.value = this.chosen.examples[0]?.prompt ?? this.chosen.task.example;
    this.start();
  }

  /** Offer the other models of this task for comparison, and example problems. */
  offer() {
    const { task, name, examples, searched } = this.chosen, alike = (one) => JSON.stringify([one.task.kind, one.task.base]);
    const others = this.models.filter((one) => one.name !== name && alike(one) === alike(this.chosen));
    this.beside.replaceChildren(el("option", { value: "" }, "nothing"), ...others.map((one) => el("option", { value: one.name }, one.name)));
    this.form.querySelector(".besides").hidden = !others.length;
    const { recordings } = this.chosen, typed = this.form.querySelectorAll(".grow, [type=submit]");
    for (const part of typed) part.hidden = Boolean(recordings);
    this.question.textContent = recordings ? `${task.question} These problems were recorded.`
      : `${task.question} For example ${task.example}. Your problem may be longer than those in training.`;
    const titled = (prompt) => recordings?.find((one) => one.prompt === prompt)?.shape?.join(" × ") ?? shortened(prompt);
    const choose = (prompt) => () => { this.problem.value = prompt; this.start(); };
    const list = (title, kind, right) => {
      const found = examples.filter((one) => one.right === right);
      const buttons = found.map(({ prompt, origin }) =>
        el("li", {}, el("button", { type: "button", class: kind, title: prompt, onclick: choose(prompt) }, titled(prompt), el("small", {}, ` ${origin}`))));
      return found.length ? el("div", {}, el("h3", {}, title), el("ul", {}, ...buttons)) : null;
    };
    const parts = [list("Answered correctly", "right", true), list("Answered wrongly", "wrong", false)].filter(Boolean);
    this.examples.replaceChildren(...parts, el("p", { class: "soft" }, `${searched}.`));
  }

  // Work

  /** Run the chosen models on the typed problem. */
  async start(loop = null) {
    const ticket = (this.ticket = {}), names = [this.model.value, this.beside.value].filter(Boolean);
    this.stop();
    this.trouble.textContent = "";
    const panels = names.map((name) => this.panelOf(name));
    const onProgress = (share) => (this.status.textContent = `computing … ${Math.round(100 * share)} %`);
    try {
      for (const panel of panels) if (!(await panel.think(this.problem.value, onProgress, () => ticket !== this.ticket))) return;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.status.textContent = "";
      this.trouble.textContent = error.message;
      return;
    }
    this.panels = panels;
    this.area.replaceChildren(...panels.map(({ root }) => root));
    this.area.classList.toggle("two", panels.length > 1);
    this.state = { loop: loop ?? 1, position: panels[0].trace.row.slots[0] };
    this.steer({});
    this.root.dispatchEvent(new CustomEvent("thought", { bubbles: true }));
  }

  panelOf(name) {
    if (!this.cache.has(name)) {
      const model = this.models.find((one) => one.name === name), Kind = model.recordings ? RecordedPanel : Panel;
      this.cache.set(name, new Kind(model, (where) => this.steer(where)));
    }
    return this.cache.get(name);
  }

  get count() {
    return Math.max(1, ...this.panels.map(({ trace }) => trace.loops.length));
  }

  steer({ loop = this.state.loop, position = this.state.position }) {
    const length = Math.max(1, ...this.panels.map(({ trace }) => trace.row.tokens.length));
    this.state = { loop: clamp(loop, 1, this.count), position: clamp(position, 0, length - 1) };
    this.show();
    this.writeHash();
  }

  show() {
    if (!this.panels.length) return;
    const { loop, position } = this.state;
    for (const panel of this.panels) panel.show(loop, position);
    Object.assign(this.slider, { max: this.count, value: loop });
    this.where.textContent = `loop ${loop} of ${this.count}`;
    this.status.setAttribute("aria-live", this.timer ? "off" : "polite");
    this.status.textContent = this.panels.map((panel) => `${this.panels.length > 1 ? `${panel.model.name}: ` : ""}${panel.sentence()}`).join(" ");
  }

  toggle() {
    if (this.timer) return this.stop();
    if (this.state.loop >= this.count) this.steer({ loop: 1 });
    this.play.textContent = "Stop";
    this.timer = setInterval(() => (this.state.loop < this.count ? this.steer({ loop: this.state.loop + 1 }) : this.stop()), Math.min(STEP, WHOLE / this.count));
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
  }

  // Keys

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    // If the viewer is one part of a page, it reacts to keys only while an element in it has the focus.
    const own = this.root.contains(event.target) || (event.target === document.body && this.root.matches("main"));
    const act = own && this.actions(event.target)[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  actions(target) {
    const { loop, position } = this.state, button = target.matches("button, summary, a");
    const next = () => {
      const prompts = this.chosen.examples.map(({ prompt }) => prompt);
      this.problem.value = prompts[(prompts.indexOf(this.problem.value) + 1) % prompts.length] ?? this.problem.value;
      this.start();
    };
    const other = () => {
      this.beside.selectedIndex = (this.beside.selectedIndex + 1) % this.beside.options.length;
      this.start();
    };
    return {
      ArrowUp: () => this.steer({ loop: loop - 1 }), ArrowDown: () => this.steer({ loop: loop + 1 }),
      ArrowLeft: () => this.steer({ position: position - 1 }), ArrowRight: () => this.steer({ position: position + 1 }),
      Home: () => this.steer({ loop: 1 }), End: () => this.steer({ loop: Infinity }),
      ...(button ? {} : { " ": () => this.toggle() }), "/": () => this.problem.focus(), n: next, c: other,
    };
  }
}

for (const root of document.querySelectorAll("[data-viewer]")) embedded(root.dataset.viewer).then((held) => { root.viewer = new Viewer(root, held); });
