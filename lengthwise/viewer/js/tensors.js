// Operations of a forward pass on rows of numbers in typed arrays.
// A matrix is a Float32Array, row by row; sums are taken in doubles.

/** The tensors of a model whose names begin with a prefix: the rest → Float32Array, from base64 of little-endian float32. */
function tensorsOf(packed, prefix) {
  const buffer = (packed.buffer ??= decoded(packed.weights)), found = {};
  for (const [name, start, size] of packed.tensors) {
    if (name.startsWith(prefix)) found[name.slice(prefix.length)] = new Float32Array(buffer, 4 * start, size);
  }
  return found;
}

function decoded(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

/** y = W x + b for the rows from…to of x ("t in" → "t out"); W is "out in", as torch keeps it. Two rows and two outputs at
 * a time, which takes half the time; at an odd end the last one is computed twice. */
function linear(x, weight, bias, ins, outs, from, to, y) {
  for (let o = 0; o < outs; o += 2) {
    const o2 = Math.min(o + 1, outs - 1), w = o * ins, w2 = o2 * ins;
    for (let t = from; t < to; t += 2) {
      const t2 = Math.min(t + 1, to - 1), at = t * ins, at2 = t2 * ins;
      let a = bias[o], b = bias[o2], c = a, d = b;
      for (let i = 0; i < ins; i++) {
        const u = weight[w + i], v = weight[w2 + i], one = x[at + i], two = x[at2 + i];
        a += u * one;
        b += v * one;
        c += u * two;
        d += v * two;
      }
      y[t * outs + o] = a;
      y[t * outs + o2] = b;
      y[t2 * outs + o] = c;
      y[t2 * outs + o2] = d;
    }
  }
}

/** LayerNorm of the rows from…to. */
function layerNorm(x, weight, bias, width, eps, from, to, y) {
  for (let t = from; t < to; t++) {
    const at = t * width;
    let mean = 0, square = 0;
    for (let i = 0; i < width; i++) mean += x[at + i];
    mean /= width;
    for (let i = 0; i < width; i++) square += (x[at + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(square / width + eps);
    for (let i = 0; i < width; i++) y[at + i] = (x[at + i] - mean) * scale * weight[i] + bias[i];
  }
}

const ACTIVATIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x))), // its tanh form
};

/** log softmax of one row. */
function logSoftmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const total = logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0);
  return Float64Array.from(logits, (logit) => logit - most - Math.log(total));
}
