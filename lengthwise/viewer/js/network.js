// The looped transformer: h_{k+1} = norm(blocks(h_k + x)), pre-norm, with softmax attention.

/** A model's forward pass. `packed` is the model that Python exported; `prefix` begins the names of its tensors. */
class Network {
  constructor(packed, spec = packed.model, symbols = packed.writes.length, prefix = "") {
    this.spec = spec;
    this.causal = packed.causal;
    this.weights = tensorsOf(packed, prefix);
    this.symbols = symbols;
  }

  /** Return the values that are the same in every loop: the embedded input and the keys that every head sees. */
  begin(row) {
    const { width } = this.spec, length = row.ids.length;
    const run = { row, length, x: new Float32Array(length * width), start: new Float32Array(length * width), caches: [] };
    run.sights = this.sights(row);
    this.embed(run, 0, length);
    return run;
  }

  /** Embed the tokens from…to, at the start or after they were changed. */
  embed(run, from, to) {
    const { width, positions, injection } = this.spec, table = this.weights["embedding.weight"];
    for (let t = from; t < to; t++) {
      for (let i = 0; i < width; i++) run.x[t * width + i] = table[run.row.ids[t] * width + i];
      positions.forEach((position, number) => this.addPosition(position, number, run, t));
    }
    if (injection === "once") run.start.set(run.x.subarray(from * width, to * width), from * width);
  }

  addPosition(position, number, run, t) {
    const { width } = this.spec, of = (name) => this.weights[`encodings.${number}.${name}`];
    const add = (vector, row) => {
      for (let i = 0; i < width; i++) run.x[t * width + i] += vector[row * width + i];
    };
    if (position.kind === "Mark" && t === 0) add(of("vector"), 0);
    if (position.kind === "Learned") add(of("table.weight"), this.fitting(t, position.size - 1, "position"));
    if (position.kind === "Abacus" || position.kind === "Coupling") {
      add(of("table.weight"), this.fitting(run.row.digitPosition[t], position.size, "digit position"));
    }
  }

  fitting(position, most, what) {
    if (position <= most) return position;
    throw new Refused(`Too long for this model: its table ends at ${what} ${most}. Type a shorter problem.`);
  }

  /** For every head and query: the keys that it sees, and the bias of each. Key −1 is the blank. */
  sights(row) {
    const { heads, positions } = this.spec, length = row.ids.length, found = [];
    for (let head = 0; head < heads; head++) {
      const terms = positions.map((position, number) => this.biasOf(position, number, head, row)).filter(Boolean);
      const blank = positions.some(
        ({ kind, count }) => kind === "Blank" || (kind === "EarlierHeads" && head >= heads - count),
      );
      for (let query = 0; query < length; query++) {
        const keys = [], biases = [];
        for (let key = 0; key < (this.causal ? query + 1 : length); key++) {
          const bias = terms.reduce((sum, term) => sum + term(query, key), 0);
          if (bias > -Infinity) {
            keys.push(key);
            biases.push(bias);
          }
        }
        if (blank) {
          keys.push(-1);
          biases.push(0);
        }
        found.push({ keys: Int32Array.from(keys), biases: Float64Array.from(biases) });
      }
    }
    return found;
  }

  /** The attention bias (query, key) → number of one encoding in one head; −∞ hides a key; null: none. */
  biasOf(position, number, head, row) {
    const { heads } = this.spec, digit = row.digitPosition, hide = (hidden) => (hidden ? -Infinity : 0);
    if (position.kind === "Local") {
      const bias = this.weights[`encodings.${number}.bias`], reach = position.reach, span = 2 * reach + 1;
      return (q, k) => (Math.abs(k - q) > reach ? -Infinity : bias[head * span + (k - q) + reach]);
    }
    if (position.kind === "LocalHeads" && head < position.count) return (q, k) => hide(Math.abs(k - q) > position.reach);
    if (position.kind === "CoupledHeads" && head >= heads - position.count) {
      return (q, k) => hide(k !== q && Math.abs(digit[k] - digit[q] - position.ahead) > position.reach);
    }
    if (position.kind === "EarlierHeads" && head >= heads - position.count) return (q, k) => hide(k >= q);
    return null;
  }

  /** One loop, for the positions from…to: the state before it → the state after it. Keys and values of earlier positions
   * come from `cache`, so a causal model can read on symbol by symbol. `look`, if given, is filled with attention weights:
   * look[layer][head][query] = [[key, weight], …]. */
  advance(run, state, from, to, next, cache = {}, look = null) {
    const { width, layers, injection, eps, final_norm: last } = this.spec, length = run.length;
    const h = new Float32Array(length * width);
    for (let i = from * width; i < to * width; i++) h[i] = state[i] + (injection === "add" ? run.x[i] : 0);
    for (let layer = 0; layer < layers; layer++) {
      if (look) look[layer] = [];
      this.block(`blocks.${layer}.`, h, run, from, to, (cache[layer] ??= {}), look && look[layer]);
    }
    if (last === "loop") layerNorm(h, this.weights["norm.weight"], this.weights["norm.bias"], width, eps, from, to, next);
    else next.set(h.subarray(from * width, to * width), from * width);
  }

  /** x + mixer(norm(x)), then x + mlp(norm(x)). */
  block(name, h, run, from, to, cache, look) {
    const { width, mlp, activation, eps } = this.spec, { length } = run, of = (part) => this.weights[name + part];
    const normed = new Float32Array(length * width), out = new Float32Array(length * width);
    const add = () => {
      for (let i = from * width; i < to * width; i++) h[i] += out[i];
    };
    layerNorm(h, of("norm_mixer.weight"), of("norm_mixer.bias"), width, eps, from, to, normed);
    const projected = (cache.projected ??= new Float32Array(length * 3 * width));
    linear(normed, of("mixer.project.weight"), of("mixer.project.bias"), width, 3 * width, from, to, projected);
    const mixed = this.attend(projected, run, from, to, look);
    linear(mixed, of("mixer.out.weight"), of("mixer.out.bias"), width, width, from, to, out);
    add();
    layerNorm(h, of("norm_mlp.weight"), of("norm_mlp.bias"), width, eps, from, to, normed);
    const hidden = new Float32Array(length * mlp * width), act = ACTIVATIONS[activation];
    linear(normed, of("mlp.widen.weight"), of("mlp.widen.bias"), width, mlp * width, from, to, hidden);
    for (let i = from * mlp * width; i < to * mlp * width; i++) hidden[i] = act(hidden[i]);
    linear(hidden, of("mlp.narrow.weight"), of("mlp.narrow.bias"), mlp * width, width, from, to, out);
    add();
  }

  /** softmax(q·k / √e + bias) over the keys that a query sees; `projected` holds queries, keys and values side by side. */
  attend(projected, run, from, to, look) {
    const { width, heads } = this.spec, size = width / heads, { length } = run, stride = 3 * width;
    const found = new Float32Array(length * width);
    for (let head = 0; head < heads; head++) {
      if (look) look[head] = [];
      for (let query = from; query < to; query++) {
        const { keys, biases } = run.sights[head * length + query], at = query * stride + head * size;
        const scores = new Float64Array(keys.length);
        let most = -Infinity, total = 0;
        keys.forEach((key, n) => {
          let dot = 0;
          const other = key * stride + width + head * size;
          if (key >= 0) for (let i = 0; i < size; i++) dot += projected[at + i] * projected[other + i];
          scores[n] = dot / Math.sqrt(size) + biases[n];
          most = Math.max(most, scores[n]);
        });
        for (let n = 0; n < keys.length; n++) total += scores[n] = Math.exp(scores[n] - most);
        keys.forEach((key, n) => {
          scores[n] /= total;
          const value = key * stride + 2 * width + head * size, target = query * width + head * size;
          if (key >= 0) for (let i = 0; i < size; i++) found[target + i] += scores[n] * projected[value + i];
        });
        if (look) look[head][query] = Array.from(keys, (key, n) => [key, scores[n]]);
      }
    }
    return found;
  }

  /** The log probabilities of every symbol at one position. */
  read(state, position) {
    const { width } = this.spec, logits = new Float32Array(this.symbols);
    const row = state.subarray(position * width, (position + 1) * width);
    linear(row, this.weights["readout.weight"], this.weights["readout.bias"], width, this.symbols, 0, 1, logits);
    return logSoftmax(logits);
  }
}
