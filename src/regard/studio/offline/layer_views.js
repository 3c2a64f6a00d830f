// @ts-check
// Answers about the vectors of a forward pass: the path of tokens through a layer, and any tensor by its name.

import { attentionWeights, positionVector } from "./network.js";
import { layerShares } from "./answer_views.js";
import { evenWeights, isRelative, rounded, shadesOf } from "./attention_views.js";
import { headWeights, labels, logitsAt, queriesOf, record, tokensOf } from "./recording.js";

/** @typedef {import("./recording.js").Opened} Opened */
/** @typedef {import("./recording.js").Run} Run */
/** @typedef {import("./network.js").Rows} Rows */

const NUMBERS = 24; // of a vector that are shown
const ROWS = 28; // tokens that are shown
const CORNER = 64; // rows and columns of a tensor in one answer

// Halves to the even neighbour, as Python rounds.
function even(/** @type {number} */ value) {
  const near = Math.round(value);
  return Math.abs(value % 1) === 0.5 && near % 2 ? near - 1 : near;
}

/** Evenly spaced positions, with the marked one among them. @param {number} count @param {number | null} marked */
function chosenRows(count, marked) {
  const shown = Math.min(count, ROWS);
  const rows = new Set(
    Array.from({ length: shown }, (_, i) => even((i * (count - 1)) / Math.max(1, shown - 1))),
  );
  if (marked !== null) rows.add(Math.min(marked, count - 1));
  return [...rows].sort((a, b) => a - b);
}

// ------------------------------------------------------------------ any tensor

/** One head's part of rows in which all heads stand side by side. @param {Rows} rows @param {number} head @param {number} heads @param {number} parts */
function ofHead(rows, head, heads, parts) {
  const width = rows[0].length / parts;
  const from = Math.floor((Math.min(head, heads - 1) * parts) / heads) * width;
  return rows.map((row) => row.subarray(from, from + width));
}

/** The recorded vectors of a point, with how many heads they hold. @param {Run} run @param {string} name */
function point(run, name) {
  const cut = name.lastIndexOf(".");
  const [attention, part] = [name.slice(0, cut), name.slice(cut + 1)];
  const call = run.calls.get(attention);
  const rows = run.rows.get(name);
  if (!call) return { rows: rows || [], parts: 1, heads: 1, call: null };
  const { heads, groups } = call.part;
  if (part === "q") return { rows: call.q, parts: heads, heads, call };
  if (part === "k" || part === "v") return { rows: call[part], parts: groups, heads, call };
  return { rows: rows || [], parts: part === "mixed" ? heads : 1, heads, call };
}

/** The names of all points, in forward order. @param {Opened} opened */
function pointNames({ network }) {
  const parts = {
    self: ["input", "weights", "q", "k", "v", "mixed", "output"],
    feedforward: ["input", "hidden", "output"],
  };
  return network.stacks.flatMap(({ name, layers }) => [
    `${name}.embedded`,
    ...layers.flatMap((layer, i) => [
      ...layer.flatMap(({ kind }) =>
        parts[kind === "cross" ? "self" : kind].map((part) => `${name}.${i}.${kind}.${part}`),
      ),
      `${name}.${i}.residual`,
    ]),
    `${name}.output`,
  ]);
}

/** The shape of every point of the current input. @param {Opened} opened @param {any} question */
export function anatomy(opened, question) {
  const run = record(opened, question);
  /** @type {Record<string, number[]>} */
  const shapes = {};
  for (const name of pointNames(opened)) {
    const { rows, parts, call } = point(run, name);
    if (name.endsWith(".weights") && call)
      shapes[name] = [call.part.heads, call.q.length, call.k.length];
    else if (call && parts > 1) shapes[name] = [parts, rows.length, rows[0].length / parts];
    else shapes[name] = [rows.length, rows[0].length];
  }
  const { head } = opened.network;
  if (head) shapes.logits = [run.hidden.length, head.table.rows];
  return { source: run.source, target: run.decoderTokens, shapes };
}

/** @param {Opened} opened @param {any} question */
export function tensor(opened, question) {
  const { name, head = 0, relative = null } = question;
  const run = record(opened, question);
  const part = name.slice(name.lastIndexOf(".") + 1);
  const axes = axisTokens(opened, run, name);
  const corner = (/** @type {ArrayLike<number>[]} */ rows) =>
    rows.slice(0, CORNER).map((row) => Array.from(row).slice(0, CORNER));
  const { parts, heads, call, ...found } = point(run, name);
  let { rows } = found;
  let shades = null;
  let shape =
    parts > 1
      ? [parts, rows.length, (rows[0]?.length ?? 0) / parts]
      : [rows.length, rows[0]?.length ?? 0];
  if (part === "weights" && call) {
    const attention = name.slice(0, -".weights".length);
    const weights = headWeights(run, attention, Math.min(head, heads - 1));
    const shaded = isRelative(call.k.length, relative);
    shades = corner(
      weights.map((row, i) => shadesOf(row, evenWeights(/** @type {any} */ (call), i), shaded)),
    );
    shape = [heads, call.q.length, call.k.length];
    rows = weights.map((row) => Float32Array.from(row));
  } else if (name === "logits") {
    rows = logitsAt(opened, run, [...run.hidden.keys()].slice(0, CORNER));
    shape = [run.hidden.length, rows[0].length];
  } else if (parts > 1) rows = ofHead(rows, Math.min(head, parts - 1), parts, parts);
  const values = corner(rows);
  return {
    name,
    shape,
    rows: axes.rows.slice(0, values.length),
    columns: axes.columns.slice(0, CORNER),
    values: values.map((row) => row.map((v) => rounded(v, 7))),
    shades: shades && shades.map((row) => row.map((v) => rounded(v, 4))),
  };
}

/** @param {Opened} opened @param {Run} run @param {string} name */
function axisTokens({ network }, run, name) {
  const cut = name.lastIndexOf(".");
  const [attention, part] = [name.slice(0, cut), name.slice(cut + 1)];
  if (run.calls.has(attention)) {
    const { rows, columns } = labels(run, attention);
    if (part === "weights") return { rows, columns };
    return { rows: part === "k" || part === "v" ? columns : rows, columns: [] };
  }
  const stack =
    name === "logits" ? network.stacks[network.stacks.length - 1].name : name.split(".")[0];
  return { rows: queriesOf(run, stack), columns: [] };
}

// ------------------------------------------------------------------ the path

/** Some numbers of each vector, with its length. @param {Rows} rows */
function strip(rows) {
  const width = rows[0].length;
  const count = Math.min(NUMBERS, width);
  const index = Array.from({ length: count }, (_, i) =>
    even(count > 1 ? Math.fround((i * (width - 1)) / (count - 1)) : 0),
  );
  return {
    width,
    values: rows.map((row) => index.map((i) => rounded(row[i], 3))),
    norms: rows.map((row) => rounded(Math.sqrt(row.reduce((sum, v) => sum + v * v, 0)), 3)),
    largest: rows.reduce((most, row) => row.reduce((a, v) => Math.max(a, Math.abs(v)), most), 0),
  };
}

/** The residual stream after each sublayer but the last. @param {Opened} opened @param {Run} run @param {string} stack @param {number} layer @param {number[]} shown */
function sums({ network }, run, stack, layer, shown) {
  const sublayers = /** @type {any} */ (network.stacks.find(({ name }) => name === stack)).layers[
    layer
  ];
  const before = layer ? `${stack}.${layer - 1}.residual` : `${stack}.embedded`;
  let x = run.rows.get(before) || [];
  /** @type {Record<string, any>} */
  const found = {};
  sublayers.slice(0, -1).forEach((/** @type {any} */ { kind, place }, /** @type {number} */ i) => {
    const added = run.rows.get(`${stack}.${layer}.${kind}.output`) || [];
    x = x.map((row, t) => row.map((v, j) => v + added[t][j]));
    // The norm of the sum is what the next sublayer reads.
    if (place === "post")
      x = run.rows.get(`${stack}.${layer}.${sublayers[i + 1].kind}.input`) || [];
    found[`${stack}.${layer}.${kind}.sum`] = strip(shown.map((t) => x[t]));
  });
  return found;
}

/** The weights of one head between the positions shown. @param {Run} run @param {string} name @param {number} head @param {number[]} rows @param {number[]} columns */
function pathWeights(run, name, head, rows, columns) {
  const call = /** @type {import("./network.js").Call} */ (run.calls.get(name));
  const { heads, scale } = call.part;
  const number = Math.min(head, heads - 1);
  const relative = isRelative(call.k.length);
  const weights = rows.map((row) => attentionWeights(call, number, row));
  const shades = rows.map((row, i) => shadesOf(weights[i], evenWeights(call, row), relative));
  const width = call.q[0].length / heads;
  const isUsual = Math.abs(scale - width ** -0.5) <= 1e-4 * scale;
  const score =
    scale === 1 ? "Q Kᵀ" : isUsual ? "Q Kᵀ / √d" : `${Number(scale.toPrecision(3))} · Q Kᵀ`;
  return {
    heads,
    head: number,
    values: weights.map((row) => columns.map((j) => rounded(row[j], 4))),
    shades: shades.map((row) => columns.map((j) => rounded(row[j], 4))),
    formula: `A = softmax(${score} + mask)`,
  };
}

/** The likeliest answer at some positions before and after each layer; null below the last stack. @param {Opened} opened @param {Run} run @param {any} stack @param {number[]} rows */
function guesses(opened, run, stack, rows) {
  const { stacks, head } = opened.network;
  if (stack !== stacks[stacks.length - 1] || !head) return null;
  const found = layerShares(opened, run, rows, 1);
  return found.map((all) => all.map(([best]) => [best.label, best.probability]));
}

/** The vectors of tokens at every station of one layer. @param {Opened} opened @param {any} question */
export function path(opened, question) {
  const { head = 0, row: marked = null } = question;
  const run = record(opened, question);
  const { stacks } = opened.network;
  const stack = stacks.find(({ name }) => name === question.stack) || stacks[0];
  const layer = Math.min(question.layer ?? 0, stack.layers.length - 1);
  const prefix = `${stack.name}.${layer}.`;
  const rows = chosenRows((run.rows.get(`${stack.name}.embedded`) || []).length, marked);
  const cross = run.calls.get(`${prefix}cross`);
  const columns = cross ? chosenRows(cross.k.length, null) : [];
  const around = [
    `${stack.name}.embedded`,
    `${stack.name}.${layer - 1}.residual`,
    `${stack.name}.output`,
  ];
  const names = pointNames(opened).filter(
    (name) => (name.startsWith(prefix) || around.includes(name)) && !name.endsWith(".weights"),
  );
  /** @type {Record<string, any>} */
  const stations = sums(opened, run, stack.name, layer, rows);
  for (const name of names) {
    const { rows: all, parts, heads } = point(run, name);
    const keys = name === `${prefix}cross.k` || name === `${prefix}cross.v` ? columns : rows;
    stations[name] = strip(keys.map((t) => ofHead(all, head, heads, parts)[t]));
  }
  /** @type {Record<string, any>} */
  const weights = {};
  for (const kind of ["self", "cross"]) {
    const name = prefix + kind;
    if (run.calls.has(name))
      weights[name] = pathWeights(run, name, head, rows, kind === "cross" ? columns : rows);
  }
  const words = guesses(opened, run, stack, rows);
  const ids = stack.reads === "target" ? run.ids.target : run.ids.input;
  return {
    stack: stack.name,
    layer,
    stations,
    weights,
    words,
    rows: rows.map((i) => [i, queriesOf(run, stack.name)[i]]),
    ids: rows.map((i) => ids[i]),
    columns: columns.map((i) => [i, run.source[i]]),
    count: tokensOf(run, stack.name).length,
  };
}

// ------------------------------------------------------------------ positions

/** The position encodings; those that are added at the input are computed, others were stored. @param {Opened} opened @param {any} question */
export function positions({ network, stored }, question) {
  const stack = network.stacks.find(({ name }) => name === question.stack) || network.stacks[0];
  const { count, ...answer } = stored.positions[stack.name];
  if (!count) return answer;
  const all = Array.from({ length: count }, (_, at) =>
    positionVector(network, stack.embedding, at),
  );
  const products = all.map((a) => all.map((b) => a.reduce((sum, v, i) => sum + v * b[i], 0)));
  return { ...answer, encodings: all.map((row) => Array.from(row)), products };
}
