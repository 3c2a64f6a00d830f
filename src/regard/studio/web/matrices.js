// @ts-check
// From queries and keys to attention weights as matrices, cell by cell: Q Kᵀ, divided by √d, masked, and softmax.

import { fixed, h, put, shown } from "./dom.js";
import { formula } from "./formula.js";
import { heat } from "./heat.js";

/** @typedef {import("./answers.js").Scores} Scores */
/** @typedef {{title: string, values: (number | null)[][], signed: boolean, note: string}} Matrix */
/**
 * The names of queries and keys, the vectors of one head, the followed query, and what happens when another is chosen.
 * @typedef {{rows: string[], columns: string[], q: number[][], k: number[][], marked: number, pick: (row: number) => void, room: number}} Given
 */

const LEAST_ROOM = 250; // pixels of a matrix
const PRODUCTS = 64; // entries of q and k that are multiplied on the page

/** @param {Scores} scores */
const divided = ({ width, scale }) =>
  Math.abs(scale * Math.sqrt(width) - 1) < 1e-6
    ? `÷ √${width}`
    : `× ${Number(scale.toPrecision(3))}`;

/** The steps from products to weights; those that change nothing are left out. @param {Scores} scores @returns {Matrix[]} */
export function steps(scores) {
  const { scale, dots, bias, visible, weights } = scores;
  const scaled = dots.map((row) => row.map((v) => v * scale));
  const moved = scaled.map((row, i) => row.map((v, j) => v + (bias?.[i][j] ?? 0)));
  const isHidden = visible.some((row) => row.some((each) => !each));
  const masked = moved.map((row, i) => row.map((v, j) => (visible[i][j] ? v : null)));
  return [
    {
      title: "Q Kᵀ",
      values: dots,
      signed: true,
      note: "the dot product of each query with each key",
    },
    ...(scale === 1
      ? []
      : [
          {
            title: divided(scores),
            values: scaled,
            signed: true,
            note: "so that the scores stay small",
          },
        ]),
    ...(bias
      ? [{ title: "+ B", values: moved, signed: true, note: "what the distance adds" }]
      : []),
    ...(isHidden
      ? [{ title: "+ mask", values: masked, signed: true, note: "−∞ where a query may not look" }]
      : []),
    { title: "softmax", values: weights, signed: false, note: "each row sums to 1" },
  ];
}

/** What a cell is in every matrix, as one line. @param {Matrix[]} list @param {number} i @param {number} j */
export const chain = (list, i, j) =>
  list.map(({ title, values }) => ({
    title,
    value:
      values[i][j] === null
        ? "−∞"
        : fixed(values[i][j], values[i][j] < 0.01 && title === "softmax" ? 4 : 2),
  }));

/** The products of the entries of a query and a key, whose sum is their score. @param {number[]} q @param {number[]} k */
function products(q, k) {
  const terms = q.slice(0, PRODUCTS).map((v, n) => v * k[n]);
  const most = Math.max(1e-9, ...[...q, ...k].map(Math.abs));
  const largest = Math.max(1e-9, ...terms.map(Math.abs));
  /** @param {string} name @param {number[]} values @param {number} top */
  const row = (name, values, top) =>
    h(
      "tr",
      {},
      h("th", { text: name }),
      values.slice(0, PRODUCTS).map((v) =>
        h(
          "td",
          { title: v.toFixed(3) },
          h("i", {
            class: v < 0 ? "negative" : "",
            style: { height: `${(100 * Math.abs(v)) / top}%` },
          }),
        ),
      ),
    );
  return h(
    "table",
    { class: "products", "aria-label": "Products of the entries of query and key" },
    row("q", q, most),
    row("k", k, most),
    row("q × k", terms, largest),
  );
}

/** @param {Matrix} matrix @param {Given} given @param {(i: number, j: number) => void} say */
function drawn(matrix, { rows, columns, marked, pick, room }, say) {
  const map = heat(rows, columns, { signed: matrix.signed, room, say, pick, letters: 10 });
  const flat = matrix.values.flat();
  const most = Math.max(1e-9, ...flat.map((v) => Math.abs(v ?? 0)));
  const values = Float32Array.from(flat, (v) => (v === null ? NaN : v));
  map.show(values, { marked, title: matrix.title, scale: matrix.signed ? most : 1 });
  return {
    point: map.point,
    node: h(
      "div",
      { class: "matrix" },
      h("h3", { "aria-label": matrix.title }, formula(matrix.title)),
      h("p", { class: "note", text: matrix.note }),
      map.node,
    ),
  };
}

/** @param {Scores} scores @param {Given} given */
export function matrices(scores, given) {
  const list = steps(scores);
  const { rows, columns, q, k } = given;
  const told = h("div", { class: "told", role: "status" });
  const each = Math.max(LEAST_ROOM, (given.room - 24 * (list.length - 1)) / list.length);
  /** @param {number} i @param {number} j */
  function say(i, j) {
    const found = chain(list, i, j);
    maps.forEach((map) => map.point(i, j));
    put(
      told,
      h(
        "p",
        {},
        "query of ",
        h("strong", { text: `“${shown(rows[i])}”` }),
        ", key of ",
        h("strong", { text: `“${shown(columns[j])}”` }),
        ":",
      ),
      h(
        "p",
        { class: "chain" },
        found.map(({ title, value }, n) => [
          n ? h("span", { class: "arrow", text: "→" }) : null,
          h("span", {}, formula(title), " ", h("b", { text: value })),
        ]),
      ),
      q[i] && k[j] ? products(q[i], k[j]) : null,
    );
  }
  const maps = list.map((matrix) => drawn(matrix, { ...given, room: each }, say));
  const row = Math.max(0, given.marked);
  const best = scores.weights[row].indexOf(Math.max(...scores.weights[row]));
  say(row, best);
  return h(
    "div",
    { id: "matrices" },
    h(
      "div",
      { class: "chain-of-matrices" },
      maps.map(({ node }) => node),
    ),
    told,
  );
}
