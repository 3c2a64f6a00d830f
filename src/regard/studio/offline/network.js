// @ts-check
// The forward pass: embeddings, stacks of sublayers, the head. What is computed is what the data says, part by part.

import { ACTIVATIONS, dot, linear, normalize, softmax } from "./tensors.js";

/** @typedef {import("./tensors.js").Rows} Rows */
/** @typedef {import("./tensors.js").Linear} Linear */
/** @typedef {import("./tensors.js").Norm} Norm */
/** @typedef {{k: Rows, v: Rows}} KeysAndValues */
/** @typedef {{heads: number, groups: number, scale: number, causal: boolean, rope: Rope | null, q: Linear, k: Linear, v: Linear, output: Linear}} Attention */
/** @typedef {{frequencies: number[], pairs: string, length: number}} Rope */
/** @typedef {{inner: Linear, outer: Linear, activation: string, gated: boolean}} FeedForward */
/** @typedef {{kind: "self" | "cross" | "feedforward", place: "pre" | "post", norm: Norm} & Attention & FeedForward} Sublayer */
/** @typedef {{name: string, reads: string, embedding: any, layers: Sublayer[][], final_norm: Norm | null}} Stack */
/** @typedef {{part: Attention, q: Rows, k: Rows, v: Rows, first: number}} Call the arguments of an attention */
/** @typedef {{off?: Map<string, Set<number>>, edits?: Map<string, (rows: Rows) => Rows>, rows?: Map<string, Rows>, calls?: Map<string, Call>}} Probe */
/** @typedef {{weights: Float32Array[], stacks: Stack[], head: any, writes: boolean, reads_target: boolean, decoding: any}} Network */

/** What passes a point: recorded there, or changed. @param {Probe} probe @param {string} name @param {Rows} rows */
function through(probe, name, rows) {
  const edit = probe.edits?.get(name);
  const passed = edit ? edit(rows) : rows;
  probe.rows?.set(name, passed);
  return passed;
}

/** @param {Rows} a @param {Rows} b */
const add = (a, b) => a.map((vector, i) => vector.map((v, j) => v + b[i][j]));

// ------------------------------------------------------------------ embeddings

/** @param {{order: string, base: number}} part @param {number} at @param {number} width */
function sinusoid(part, at, width) {
  const half = Math.ceil(width / 2);
  return Float32Array.from({ length: width }, (_, i) => {
    const halves = part.order === "halves";
    const isSine = halves ? i < half : i % 2 === 0;
    const pair = halves ? i % half : i >> 1;
    const angle = at / part.base ** ((2 * pair) / width);
    return isSine ? Math.sin(angle) : Math.cos(angle);
  });
}

/** The vector of a position that is added at the input. @param {Network} network @param {any} embedding @param {number} at */
export function positionVector(network, embedding, at) {
  const { position, width } = embedding;
  if (position.kind === "sinusoidal") return sinusoid(position, at, width);
  const row = (position.offset + at) * width;
  return network.weights[position.rows].subarray(row, row + width);
}

/** @param {Network} network @param {any} embedding @param {number[]} ids @param {number} first the position of the first one */
function embed(network, embedding, ids, first) {
  const { width, scale, position, segments } = embedding;
  const table = network.weights[embedding.table];
  const x = ids.map((id, i) => {
    const vector = table.slice(id * width, (id + 1) * width).map((v) => v * scale);
    const added = [];
    if (segments !== null) added.push(network.weights[segments].subarray(0, width));
    if (position) added.push(positionVector(network, embedding, first + i));
    for (const other of added) other.forEach((v, j) => (vector[j] += v));
    return vector;
  });
  const normed = normalize(network.weights, embedding.norm, x);
  return embedding.project ? linear(network.weights, embedding.project, normed) : normed;
}

// ------------------------------------------------------------------ attention

/** Turns pairs of dimensions of each head by an angle that grows with the position. @param {Rope} rope @param {Rows} rows @param {number} heads @param {number} first */
function rotate(rope, rows, heads, first) {
  const pairs = rope.frequencies.length;
  return rows.map((row, t) => {
    const turned = row.slice();
    const width = row.length / heads;
    rope.frequencies.forEach((frequency, i) => {
      const angle = Math.fround((first + t) * Math.fround(frequency));
      const cos = rope.length * Math.cos(angle);
      const sin = rope.length * Math.sin(angle);
      const [a, b] = rope.pairs === "halves" ? [i, i + pairs] : [2 * i, 2 * i + 1];
      for (let start = 0; start < row.length; start += width) {
        turned[start + a] = row[start + a] * cos - row[start + b] * sin;
        turned[start + b] = row[start + b] * cos + row[start + a] * sin;
      }
    });
    return turned;
  });
}

/** The keys that a query may attend to. @param {Call} call @param {number} row */
export const visibleKeys = (call, row) =>
  call.part.causal ? Math.min(call.k.length, call.first + row + 1) : call.k.length;

/** q · k of one query with every key. @param {Call} call @param {number} head @param {number} row */
export function dots(call, head, row) {
  const { heads, groups } = call.part;
  const query = call.q[row];
  const width = query.length / heads;
  const group = Math.floor((head * groups) / heads);
  return Float64Array.from(call.k, (key) => dot(query, head * width, key, group * width, width));
}

/** The attention weights of one query, 0 for keys that it may not attend to. @param {Call} call @param {number} head @param {number} row */
export function attentionWeights(call, head, row) {
  const count = visibleKeys(call, row);
  const scores = dots(call, head, row);
  return softmax(scores.map((score, i) => (i < count ? score * call.part.scale : -Infinity)));
}

/** What each head finds: the values, weighted. @param {Call} call */
function mix(call) {
  const { heads, groups } = call.part;
  const width = call.v[0].length / groups;
  return call.q.map((_, row) => {
    const mixed = new Float64Array(heads * width);
    for (let head = 0; head < heads; head++) {
      const from = Math.floor((head * groups) / heads) * width;
      attentionWeights(call, head, row).forEach((weight, key) => {
        if (weight === 0) return;
        const value = call.v[key];
        for (let i = 0; i < width; i++) mixed[head * width + i] += weight * value[from + i];
      });
    }
    return Float32Array.from(mixed);
  });
}

/** @param {Network} network @param {Attention} part @param {Rows} memory */
export const keysAndValues = (network, part, memory) => ({
  k: linear(network.weights, part.k, memory),
  v: linear(network.weights, part.v, memory),
});

/**
 * @param {Network} network @param {Sublayer} part @param {string} name @param {Rows} x
 * @param {{first: number, memory: Rows | null, cache: KeysAndValues | null, probe: Probe}} context
 */
function attend(network, part, name, x, { first, memory, cache, probe }) {
  let q = linear(network.weights, part.q, x);
  let keys = cache;
  if (part.kind === "self") {
    const fresh = keysAndValues(network, part, x);
    if (part.rope) {
      q = rotate(part.rope, q, part.heads, first);
      fresh.k = rotate(part.rope, fresh.k, part.groups, first);
    }
    cache?.k.push(...fresh.k);
    cache?.v.push(...fresh.v);
    keys ||= fresh;
  }
  keys ||= keysAndValues(network, part, memory || []);
  const call = { part, q, k: keys.k, v: keys.v, first };
  probe.calls?.set(name, call);
  let mixed = mix(call);
  const off = probe.off?.get(name);
  if (off) mixed = mixed.map((row) => row.map((v, i) => (off.has(headOf(row, part, i)) ? 0 : v)));
  probe.rows?.set(`${name}.mixed`, mixed);
  return linear(network.weights, part.output, mixed);
}

/** @param {Float32Array} row @param {Attention} part @param {number} i */
const headOf = (row, part, i) => Math.floor((i * part.heads) / row.length);

// ------------------------------------------------------------------ stacks

/** @param {Network} network @param {FeedForward} part @param {string} name @param {Rows} x @param {Probe} probe */
function feedForward(network, part, name, x, probe) {
  const activation = ACTIVATIONS[part.activation];
  const width = part.gated ? part.inner.rows / 2 : part.inner.rows;
  const hidden = linear(network.weights, part.inner, x).map((inner) => {
    const active = inner.slice(0, width).map(activation);
    return part.gated ? active.map((v, i) => v * inner[width + i]) : active;
  });
  return linear(network.weights, part.outer, through(probe, `${name}.hidden`, hidden));
}

/** The sublayers of one layer. @param {Network} network @param {Sublayer[]} layer @param {string} name @param {Rows} x @param {any} context */
function runLayer(network, layer, name, x, context) {
  for (const part of layer) {
    const where = `${name}.${part.kind}`;
    const read = part.place === "pre" ? normalize(network.weights, part.norm, x) : x;
    const input = through(context.probe, `${where}.input`, read);
    const output =
      part.kind === "feedforward"
        ? feedForward(network, part, where, input, context.probe)
        : attend(network, part, where, input, { ...context, cache: context.caches?.[part.kind] });
    x = add(x, through(context.probe, `${where}.output`, output));
    if (part.place === "post") x = normalize(network.weights, part.norm, x);
  }
  return through(context.probe, `${name}.residual`, x);
}

/** The final norm of a stack. @param {Network} network @param {Stack} stack @param {Rows} x */
export const finish = (network, stack, x) => normalize(network.weights, stack.final_norm, x);

/**
 * Token ids through the embedding and all layers of a stack.
 * @param {Network} network @param {Stack} stack @param {number[]} ids
 * @param {{first?: number, memory?: Rows | null, caches?: any[] | null, probe?: Probe}} [context]
 */
export function runStack(network, stack, ids, context = {}) {
  const { first = 0, memory = null, caches = null, probe = {} } = context;
  let x = through(probe, `${stack.name}.embedded`, embed(network, stack.embedding, ids, first));
  stack.layers.forEach((layer, number) => {
    const here = { first, memory, probe, caches: caches?.[number] };
    x = runLayer(network, layer, `${stack.name}.${number}`, x, here);
  });
  return through(probe, `${stack.name}.output`, finish(network, stack, x));
}

/** The hidden states of the last stack. @param {Network} network @param {{input: number[], target: number[]}} ids @param {Probe} [probe] */
export function forward(network, ids, probe = {}) {
  /** @type {Rows | null} */
  let memory = null;
  for (const stack of network.stacks) {
    const read = stack.reads === "target" ? ids.target : ids.input;
    memory = runStack(network, stack, read, { memory, probe });
  }
  return memory || [];
}

/** The logits over the vocabulary of some hidden states. @param {Network} network @param {Rows} hidden */
export function logitsOf(network, hidden) {
  const { table, transform, scale, cap } = network.head;
  let x = hidden;
  if (transform) {
    const dense = linear(network.weights, transform.dense, x);
    const active = dense.map((row) => row.map(ACTIVATIONS[transform.activation]));
    x = normalize(network.weights, transform.norm, active);
  }
  if (scale !== 1) x = x.map((row) => row.map((v) => v * scale));
  const logits = linear(network.weights, table, x);
  return cap === null ? logits : logits.map((row) => row.map((v) => cap * Math.tanh(v / cap)));
}
