// @ts-check
// Answers about attention, with the numbers and the words of `regard.look`.

import { dots, visibleKeys } from "./network.js";
import { callOf, headWeights, labels, meanWeights, record } from "./recording.js";

/** @typedef {import("./recording.js").Opened} Opened */
/** @typedef {import("./recording.js").Run} Run */
/** @typedef {ArrayLike<number>} Numbers */

export const LONG = 64; // keys, beyond which weights are shaded against even attention
const EVEN_SHADE = 0.12;
const CLEAR = 1.5;
const THUMBNAIL = 48;

/** @param {number} value @param {number} digits */
export const rounded = (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits;

/** What each key would get if a query attended to all alike. @param {any} call @param {number} row */
export function evenWeights(call, row) {
  const count = visibleKeys(call, row);
  return Float64Array.from(call.k, (_, i) => (i < count ? 1 / count : 0));
}

/** @param {number} keys @param {boolean | null} [relative] */
export const isRelative = (keys, relative = null) => relative ?? keys > LONG;

/** Shades from 0 to 1 of the weights of one query. @param {Numbers} weights @param {Numbers} even @param {boolean} relative */
export function shadesOf(weights, even, relative) {
  return Array.from(weights, (weight, i) => {
    if (!relative) return Math.min(1, Math.max(0, weight));
    const ratio = even[i] > 0 ? weight / even[i] : 0;
    if (ratio <= 1 + 1e-6) return EVEN_SHADE * Math.min(1, Math.max(0, ratio));
    return EVEN_SHADE + (1 - EVEN_SHADE) * (Math.log(ratio) / -Math.log(even[i]));
  });
}

/** Weights and shades in one answer, as the server packs them. @param {any} header @param {Numbers[]} rows @param {number[][]} shades */
function packed(header, rows, shades) {
  const shape = [rows.length, rows[0]?.length ?? 0];
  const bytes = shades.flat().map((shade) => Math.round(shade * 255) / 255);
  const values = Float32Array.from(rows.flatMap((row) => Array.from(row)));
  return { ...header, shape, values, shades: Float32Array.from(bytes) };
}

/** @param {Opened} opened @param {any} question */
export function attention(opened, question) {
  const { name, heads = null, rows: wanted = null, relative = null } = question;
  const run = record(opened, question);
  const call = callOf(run, name);
  const numbers = heads ?? Array.from({ length: call.part.heads }, (_, head) => head);
  const queries =
    wanted ?? call.q.map((/** @type {unknown} */ _, /** @type {number} */ row) => row);
  const { rows, columns } = labels(run, name);
  const shaded = isRelative(columns.length, relative);
  const values = [];
  const shades = [];
  let clear = false;
  for (const head of numbers) {
    const weights = headWeights(run, name, head);
    for (const row of queries) {
      const even = evenWeights(call, row);
      values.push(weights[row]);
      shades.push(shadesOf(weights[row], even, shaded));
      clear ||= weights[row].some((w, i) => even[i] > 0 && w >= CLEAR * even[i]);
    }
  }
  const header = {
    version: 0,
    title: `${name}, head ${numbers.join(", ")}`,
    note: "Rows are queries, columns keys. Attention weights show where a head attends, not why the model predicts something.",
    heads: numbers,
    rows: queries.map((/** @type {number} */ row) => rows[row]),
    columns,
    clear,
    relative: shaded,
  };
  const answer = packed(header, values, shades);
  return { ...answer, shape: [numbers.length, queries.length, columns.length] };
}

// ------------------------------------------------------------------ entropy

const entropyOf = (/** @type {Numbers} */ shares) =>
  Array.from(shares).reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0);

/** The norm of what a head adds to the residual stream, summed over queries. @param {Opened} opened @param {any} call @param {number} head @param {Numbers[]} weights */
function forceOf(opened, call, head, weights) {
  const { part, v } = call;
  const width = v[0].length / part.groups;
  const from = Math.floor((head * part.groups) / part.heads) * width;
  const matrix = opened.network.weights[part.output.weight];
  let total = 0;
  for (const row of weights) {
    const mixed = new Float64Array(width);
    v.forEach((/** @type {Float32Array} */ value, /** @type {number} */ key) => {
      for (let i = 0; i < width; i++) mixed[i] += row[key] * value[from + i];
    });
    let square = 0;
    for (let d = 0; d < part.output.rows; d++) {
      let sum = 0;
      const start = d * part.output.inputs + head * width;
      for (let i = 0; i < width; i++) sum += matrix[start + i] * mixed[i];
      square += sum * sum;
    }
    total += Math.sqrt(square);
  }
  return total;
}

/** Entropy, its share of the highest, the favourite key's share and the force of each head. @param {Opened} opened @param {Run} run @param {string} name */
function measures(opened, run, name) {
  const call = callOf(run, name);
  const length = call.q.length;
  const heads = Array.from({ length: call.part.heads }, (_, head) => {
    const weights = headWeights(run, name, head);
    const received = new Float64Array(call.k.length);
    let nats = 0;
    let share = 0;
    weights.forEach((row, i) => {
      const own = entropyOf(row);
      const visible = visibleKeys(call, i);
      nats += own;
      if (visible > 1) share += own / Math.max(1e-9, Math.log(visible));
      row.forEach((weight, j) => (received[j] += weight));
    });
    const favourite = Math.max(...received) / length;
    return {
      nats: nats / length,
      share: share / length,
      favourite,
      force: forceOf(opened, call, head, weights),
    };
  });
  const mean = heads.reduce((sum, { force }) => sum + force, 0) / heads.length;
  return heads.map((head) => ({ ...head, force: head.force / Math.max(1e-30, mean) }));
}

const whole = (/** @type {number} */ share) => `${Math.round(100 * share)}%`;

/** What is conspicuous about a head, or nothing. @param {any} measure @param {number} queries */
function flagOf({ force, favourite, share }, queries) {
  if (force < 0.1) return `idle: its output norm is ${whole(force)} of the mean of its layer`;
  if (favourite > 0.95 && queries > 1)
    return `collapsed: ${whole(favourite)} of all attention goes to one position`;
  return share > 0.98 ? `uniform: its entropy is ${whole(share)} of the maximum` : "";
}

/** @param {Opened} opened @param {any} question */
export function entropy(opened, question) {
  const run = record(opened, question);
  const names = [...run.calls.keys()];
  /** @type {Record<string, string>} */
  const flags = {};
  const found = names.map((name) => measures(opened, run, name));
  names.forEach((name, i) =>
    found[i].forEach((measure, head) => {
      const flag = flagOf(measure, callOf(run, name).q.length);
      if (flag) flags[`${name} head ${head}`] = flag;
    }),
  );
  const most = Math.max(...found.map((heads) => heads.length));
  const table = (/** @type {"nats" | "share" | "favourite" | "force"} */ key) =>
    found.map((heads) => Array.from({ length: most }, (_, head) => heads[head]?.[key] ?? null));
  return {
    kind: "Entropy",
    title: "attention entropy of each head, relative to the maximum",
    note: "0: all attention on one position; 1: uniform attention over all visible positions.",
    names,
    nats: table("nats"),
    share: table("share"),
    favourite: table("favourite"),
    force: table("force"),
    flags,
  };
}

/** The largest of each square of a map, so that a thin line does not fade away. @param {number[][]} rows @param {number} height @param {number} width */
function pooled(rows, height, width) {
  const span = (/** @type {number} */ i, /** @type {number} */ from, /** @type {number} */ to) => [
    Math.floor((i * from) / to),
    Math.ceil(((i + 1) * from) / to),
  ];
  return Array.from({ length: height }, (_, y) => {
    const band = rows.slice(...span(y, rows.length, height));
    return Array.from({ length: width }, (_, x) =>
      Math.max(...band.flatMap((row) => row.slice(...span(x, row.length, width)))),
    );
  });
}

/** @param {Opened} opened @param {any} question */
export function grid(opened, question) {
  const run = record(opened, question);
  const call = callOf(run, question.name);
  const height = Math.min(THUMBNAIL, call.q.length);
  const width = Math.min(THUMBNAIL, call.k.length);
  const relative = isRelative(call.k.length, question.relative);
  const found = measures(opened, run, question.name);
  const heads = found.map((_, head) => {
    const weights = headWeights(run, question.name, head);
    const shades = weights.map((row, i) => shadesOf(row, evenWeights(call, i), relative));
    const bytes = pooled(shades, height, width)
      .flat()
      .map((shade) => Math.round(shade * 255));
    return btoa(String.fromCharCode(...bytes));
  });
  return {
    rows: height,
    columns: width,
    heads,
    entropy: found.map(({ share }) => share),
    flags: found.map((measure) => flagOf(measure, call.q.length) || null),
  };
}

// ------------------------------------------------------------------ through layers

/** @param {Opened} opened @param {any} question */
export function alignment(opened, question) {
  const run = record(opened, question);
  const names = [...run.calls.keys()].filter((name) => name.endsWith(".cross"));
  const means = names.map((name) => meanWeights(run, name));
  const informative = means.map((weights) => {
    const average = weights[0].map(
      (_, j) => weights.reduce((sum, row) => sum + row[j], 0) / weights.length,
    );
    return (
      entropyOf(average) - weights.reduce((sum, row) => sum + entropyOf(row), 0) / weights.length
    );
  });
  const isBest = (question.layer ?? null) === null;
  const layer = isBest ? informative.indexOf(Math.max(...informative)) : question.layer;
  const weights = means[layer];
  const call = callOf(run, names[layer]);
  const relative = isRelative(call.k.length);
  const even = weights.map((_, i) => evenWeights(call, i));
  const heads = Array.from({ length: call.part.heads }, (_, head) => head);
  const chosen = isBest && names.length > 1 ? `, which aligns best of ${names.length}` : "";
  return {
    kind: "Alignment",
    title: `cross-attention alignment, decoder layer ${layer}${chosen}, heads ${heads.join(", ")}`,
    note: "Cross-attention while each target token was generated, averaged over the heads. Not a reliable word alignment.",
    weights: weights.map((row) => Array.from(row)),
    source: run.source,
    target: run.decoderTokens.slice(1),
    links: weights.map((row, i) => [i, row.indexOf(Math.max(...row))]),
    layer,
    heads,
    layers: names.length,
    is_best: isBest,
    shades: weights.map((row, i) => shadesOf(row, even[i], relative).map((v) => rounded(v, 4))),
    relative,
    clear: weights.map((row, i) =>
      Array.from(row, (w, j) => even[i][j] > 0 && w >= CLEAR * even[i][j]),
    ),
  };
}

/** The product of (attention + identity) / 2 of all layers. @param {Numbers[][]} layers @returns {Numbers[]} */
function rolled(layers) {
  /** @type {Numbers[]} */
  let product = layers[0].map((_, i) => Float64Array.from(layers[0], (_, j) => Number(i === j)));
  for (const weights of layers) {
    const mixed = weights.map((row, i) => {
      const both = Array.from(row, (w, j) => w + Number(i === j));
      const sum = both.reduce((a, b) => a + b, 0);
      return both.map((w) => w / sum);
    });
    const before = product;
    product = mixed.map((row) =>
      Float64Array.from(row, (_, j) => row.reduce((sum, w, k) => sum + w * before[k][j], 0)),
    );
  }
  return product;
}

/** @param {Opened} opened @param {any} question */
export function rollout(opened, question) {
  const run = record(opened, question);
  const stack = question.stack ?? opened.network.stacks[0].name;
  const names = [...run.calls.keys()].filter(
    (name) => name.startsWith(`${stack}.`) && name.endsWith(".self"),
  );
  const weights = rolled(names.map((name) => meanWeights(run, name)));
  const even = rolled(
    names.map((name) => callOf(run, name).q.map((_, row) => evenWeights(callOf(run, name), row))),
  );
  const tokens = labels(run, names[0]).columns;
  const header = {
    title: `attention rollout of the ${stack}`,
    note: "Attention rollout (Abnar and Zuidema 2020): product over layers of (mean over heads + identity) / 2. Not a causal explanation.",
    rows: tokens,
    columns: tokens,
    relative: isRelative(tokens.length),
  };
  const shades = weights.map((row, i) => shadesOf(row, even[i], header.relative));
  return packed(header, weights, shades);
}

// ------------------------------------------------------------------ one head

/** How the weights of some queries come about. @param {Opened} opened @param {any} question */
export function scores(opened, question) {
  const run = record(opened, question);
  const call = callOf(run, question.name);
  const head = Math.min(question.head ?? 0, call.part.heads - 1);
  const asked = /** @type {number[]} */ (question.rows ?? [0]);
  const rows = [...new Set(asked.map((row) => Math.min(row, call.q.length - 1)))];
  const weights = headWeights(run, question.name, head);
  return {
    scores: {
      width: call.q[0].length / call.part.heads,
      scale: call.part.scale,
      dots: rows.map((row) => Array.from(dots(call, head, row))),
      bias: null,
      visible: rows.map((row) => call.k.map((_, i) => i < visibleKeys(call, row))),
      weights: rows.map((row) => Array.from(weights[row])),
    },
  };
}

/** Scores taken apart: lengths and angles of queries and keys. @param {Opened} opened @param {any} question */
export function angles(opened, question) {
  const { name, head = 0 } = question;
  const run = record(opened, question);
  const call = callOf(run, name);
  const { heads, groups } = call.part;
  const width = call.q[0].length / heads;
  const part = (/** @type {Float32Array} */ row, /** @type {number} */ at) =>
    row.subarray(at * width, (at + 1) * width);
  const length = (/** @type {Float32Array} */ row) =>
    Math.sqrt(row.reduce((sum, v) => sum + v * v, 0));
  const queries = call.q.map((row) => length(part(row, head)));
  const keys = call.k.map((row) => length(part(row, Math.floor((head * groups) / heads))));
  const products = call.q.map((_, row) => dots(call, head, row));
  const cosines = products.map((row, i) =>
    row.map((v, j) => v / Math.max(1e-30, queries[i] * keys[j])),
  );
  const mean = (/** @type {Numbers} */ values, /** @type {number} */ row) => {
    const count = visibleKeys(call, row);
    return (
      Array.from(values)
        .slice(0, count)
        .reduce((a, b) => a + b, 0) / Math.max(1, count)
    );
  };
  const spread = (/** @type {(i: number, j: number) => number} */ value) =>
    products.reduce((sum, row, i) => {
      const values = Array.from(row, (_, j) => value(i, j));
      const middle = mean(values, i);
      return sum + values.slice(0, visibleKeys(call, i)).reduce((a, v) => a + (v - middle) ** 2, 0);
    }, 0);
  const all = Math.max(
    1e-30,
    spread((i, j) => products[i][j]),
  );
  const explained = (/** @type {(i: number, j: number) => number} */ guess) =>
    1 - spread((i, j) => products[i][j] - guess(i, j)) / all;
  const names = labels(run, name);
  return {
    kind: "Angles",
    title: `${name}, head ${head}: cos θ of queries and keys`,
    note: "q · k = |q| |k| cos θ, before it is divided by √d. The length of a query sharpens all of its attention; the length of a key, where cos θ > 0, draws every query to it.",
    name,
    head,
    queries: names.rows,
    keys: names.columns,
    cosines: cosines.map((row, i) =>
      Array.from(row, (v, j) => (j < visibleKeys(call, i) ? v : null)),
    ),
    query_lengths: queries,
    key_lengths: keys,
    by_angle: explained((i, j) => queries[i] * mean(keys, i) * cosines[i][j]),
    by_length: explained((i, j) => queries[i] * keys[j] * mean(cosines[i], i)),
  };
}
