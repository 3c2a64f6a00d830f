// Vectors as strips of coloured numbers, and how the vector of a station comes about: a sum of strips.

import { clipped, h, s, shown, subscripts } from "./dom.js";
import { colour } from "./heat.js";

const MOST_TERMS = 3; // values of an attention that are written out
const WIDTH = 132,
  HEIGHT = 20;

const shade = (value, largest) => 0.5 + (0.5 * (value ?? 0)) / (largest || 1);

// The numbers of one row of a station, as rectangles; by default the largest of them has the full colour.
export function cells(station, row, width, height, largest = 0) {
  const values = station.values[row] ?? station.values[0] ?? [],
    most = largest || Math.max(...values.map((v) => Math.abs(v ?? 0))),
    cell = width / values.length;
  return values.map((value, k) =>
    s("rect", {
      x: (k * cell).toFixed(2),
      y: 0,
      width: (cell + 0.4).toFixed(2),
      height,
      fill: `rgb(${colour(shade(value, most), true).join(" ")})`,
    }),
  );
}

function term(label, station, row) {
  const length = station.norms[row] ?? station.norms[0];
  return h(
    "figure",
    { class: "term" },
    h("figcaption", {}, subscripts(label)),
    s(
      "svg",
      { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
      cells(station, row, WIDTH, HEIGHT),
    ),
    h("span", { class: "note", text: length === undefined ? "" : `L2 norm ${length.toFixed(2)}` }),
  );
}

const operator = (text) => h("span", { class: "operator" }, subscripts(text));

// What flows into a station, from left to right: columns of the drawing, each with the row it comes from.
export function sources(column, list, path, marked) {
  const before = list.slice(0, list.indexOf(column)).filter((each) => each.own && !each.links);
  const part = column.name.split(".").at(-1);
  const from = (each) => (each ? [{ column: each, row: marked, weight: 1 }] : []);
  if (column.links) return [];
  if (part === "mixed") return mixed(column, list, path, marked);
  if (column.adds) {
    const at = before.findLastIndex((each) => each.stream);
    // What sublayers found since: of a parallel block both of them.
    const found = before.slice(at + 1).filter((each) => /\.(output|mixed)$/.test(each.name));
    const outputs = found.filter((each) => each.name.endsWith(".output"));
    return [before[at], ...(outputs.length ? outputs : found)].flatMap(from);
  }
  if (column.kind === "norm" && column.branch) return from(before.findLast((each) => each.stream));
  if (["q", "k", "v"].includes(part))
    return column.own ? from(before.findLast((each) => each.kind !== "attention")) : [];
  return from(before.at(-1));
}

// The values that one query takes, the largest shares first.
function mixed(column, list, path, marked) {
  const attention = column.name.slice(0, -".mixed".length),
    values = list.find((each) => each.name === `${attention}.v`);
  if (!values) return [];
  const shares = path.weights[attention].values[marked] ?? path.weights[attention].values[0];
  return shares
    .map((weight, row) => ({ column: values, row, weight: weight ?? 0 }))
    .filter(({ weight }) => weight >= 0.02)
    .sort((a, b) => b.weight - a.weight);
}

// Between what comes in and what goes out.
const MAPS = {
  q: "× W_Q →",
  k: "× W_K →",
  v: "× W_V →",
  output: "concat all heads, × W_O →",
  input: "norm →",
};

// The hidden layer has an activation, whose name is in the formula.
const FEED_MAPS = { hidden: "× W₁, activation →", output: "× W₂ →" };

// The vector of a station as the sum, the map or the norm of others; null where it has no vector of its own.
export function equation(column, list, path, { marked, names, memory, norms }) {
  const station = path.stations[column.name];
  if (!station) return null;
  const inputs = sources(column, list, path, marked).filter(
    (source) => path.stations[source.column.name],
  );
  const part = column.name.split(".").at(-1),
    own = term(column.title, station, marked);
  if (!inputs.length) return h("div", { class: "equation", id: "equation" }, own);
  const strip = ({ column: from, row }, label = from.title) =>
    term(label, path.stations[from.name], row);
  if (part === "mixed") {
    const rows = column.name.includes(".cross.") ? memory : names;
    const few = inputs.slice(0, MOST_TERMS);
    return h(
      "div",
      { class: "equation", id: "equation" },
      few.map((source, i) => [
        operator(`${i ? "+ " : ""}${source.weight.toFixed(2)} ×`),
        strip(source, `V of “${clipped(shown(rows[source.row] ?? ""), 14)}”`),
      ]),
      inputs.length > few.length || few.reduce((sum, each) => sum + each.weight, 0) < 0.995
        ? operator("+ …")
        : null,
      operator("="),
      own,
    );
  }
  if (inputs.length > 1)
    return h(
      "div",
      { class: "equation", id: "equation" },
      norms === "post" ? operator("norm (") : null,
      strip(inputs[0], "residual stream"),
      inputs.slice(1).map((input) => [operator("+"), strip(input)]),
      operator(norms === "post" ? ") =" : "="),
      own,
    );
  const stack = column.name === `${path.stack}.output`;
  const map = column.kind === "feed" ? FEED_MAPS[part] : MAPS[part];
  const between = stack ? "→" : (map ?? "→");
  return h("div", { class: "equation", id: "equation" }, strip(inputs[0]), operator(between), own);
}
