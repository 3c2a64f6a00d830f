// @ts-check
// Numbers of a network: weights as they are stored, and what is computed of vectors.
// A sequence is a list of vectors, one Float32Array for each position.

/** @typedef {{weight: number, bias: number | null, inputs: number, first: number, rows: number}} Linear */
/** @typedef {{kind: "layer" | "rms", gain: number, shift: number | null, eps: number}} Norm */
/** @typedef {Float32Array[]} Rows */

/** @param {number} half the bits of a float16 */
function halfToNumber(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24; // subnormal
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** @param {{bits: number, data: string}} stored base64 of little-endian float16 or float32 */
export function unpackTensor({ bits, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  if (bits === 32) return new Float32Array(bytes.buffer);
  return Float32Array.from(new Uint16Array(bytes.buffer), halfToNumber);
}

/** @param {ArrayLike<number>} a @param {number} start @param {ArrayLike<number>} b @param {number} from @param {number} count */
export function dot(a, start, b, from, count) {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += a[start + i] * b[from + i];
  return sum;
}

/**
 * y = W x + b of each vector; the map may be some rows of a larger matrix.
 * @param {Float32Array[]} weights @param {Linear} part @param {Rows} x
 */
export function linear(weights, part, x) {
  const matrix = weights[part.weight];
  const bias = part.bias === null ? null : weights[part.bias];
  return x.map((vector) => {
    const y = new Float32Array(part.rows);
    for (let i = 0; i < part.rows; i++) {
      const row = part.first + i;
      y[i] = dot(matrix, row * part.inputs, vector, 0, part.inputs) + (bias ? bias[row] : 0);
    }
    return y;
  });
}

/** @param {Float32Array[]} weights @param {Norm | null} part @param {Rows} x */
export function normalize(weights, part, x) {
  if (!part) return x;
  const gain = weights[part.gain];
  const shift = part.shift === null ? null : weights[part.shift];
  return x.map((vector) => {
    const width = vector.length;
    let mean = 0;
    if (part.kind === "layer") mean = vector.reduce((sum, v) => sum + v, 0) / width;
    let square = 0;
    for (const v of vector) square += (v - mean) ** 2;
    const scale = 1 / Math.sqrt(square / width + part.eps);
    return vector.map((v, i) => (v - mean) * scale * gain[i] + (shift ? shift[i] : 0));
  });
}

// The error function by its series, and by its continued fraction where the series converges slowly.
/** @param {number} x */
function erf(x) {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size < 3) {
    let term = x;
    let sum = x;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
      term *= (-x * x) / n;
      sum += term / (2 * n + 1);
    }
    return (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (size + fraction);
  const rest = Math.exp(-size * size) / (size + fraction) / Math.sqrt(Math.PI);
  return Math.sign(x) * (1 - rest);
}

const logistic = (/** @type {number} */ x) => 1 / (1 + Math.exp(-x));

/** @type {Record<string, (x: number) => number>} */
export const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  quick_gelu: (x) => x * logistic(1.702 * x),
  silu: (x) => x * logistic(x),
  tanh: Math.tanh,
};

/** @param {ArrayLike<number>} scores @returns {Float64Array} of −∞ alone: zeros */
export function softmax(scores) {
  const powers = Float64Array.from(scores);
  let most = -Infinity;
  for (const score of powers) most = Math.max(most, score);
  if (most === -Infinity) return powers.fill(0);
  let total = 0;
  for (let i = 0; i < powers.length; i++) {
    powers[i] = Math.exp(powers[i] - most);
    total += powers[i];
  }
  return powers.map((power) => power / total);
}

/** log Σ exp of some scores. @param {ArrayLike<number>} scores */
export function logSumExp(scores) {
  let most = -Infinity;
  for (let i = 0; i < scores.length; i++) most = Math.max(most, scores[i]);
  let total = 0;
  for (let i = 0; i < scores.length; i++) total += Math.exp(scores[i] - most);
  return most + Math.log(total);
}

/** The numbers of the `count` largest, the largest first; of equal ones the first. @param {ArrayLike<number>} values @param {number} count */
export function largest(values, count) {
  const order = Array.from(values, (_, i) => i);
  order.sort((a, b) => values[b] - values[a] || a - b);
  return order.slice(0, count);
}
