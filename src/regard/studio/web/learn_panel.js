// The panel of a station: its numbers, row by row; of attention, how they come about.

import { ask } from "./api.js";
import { clipped, h, loading, percent, put, segment, shareBars, shown } from "./dom.js";
import { css, inkOn } from "./heat.js";
import { matrices } from "./matrices.js";
import { go } from "./route.js";
import { about } from "./stations.js";

// ------------------------------------------------------------------ numbers

// Numbers with signs are coloured by the largest; attention has `shades`.
function numbers(values, rows, columnNames, { shades = null, marked, cut }) {
  const signed = shades === null;
  const most = Math.max(
    1e-9,
    ...values
      .flat()
      .filter((v) => v !== null)
      .map(Math.abs),
  );
  const share = (v, i, j) => (signed ? 0.5 + (v ?? 0) / most / 2 : shades[i][j]);
  const few = Math.min(values[0]?.length || 0, 16);
  return h(
    "div",
    { class: "scroll tall", tabindex: 0, "aria-label": "Values, scrollable" },
    h(
      "table",
      { class: "numbers" },
      columnNames.length
        ? h(
            "tr",
            {},
            h("td"),
            columnNames.slice(0, few).map((text) => h("th", { text: shown(text) })),
          )
        : null,
      values.map((row, i) =>
        h(
          "tr",
          { class: i === marked ? "marked" : null },
          h("th", { class: "token", text: shown(rows[i] ?? String(i)) }),
          row.slice(0, few).map((v, j) =>
            h("td", {
              style: {
                background: css(share(v, i, j), signed),
                color: inkOn(share(v, i, j), signed),
              },
              text: v === null ? "–" : v.toFixed(2),
            }),
          ),
          cut || row.length > few ? h("td", { class: "faint", text: "…" }) : null,
        ),
      ),
    ),
  );
}

// From a query to its shares, key by key: the product, scaled, with what positions add, masked, and softmax. Of many keys
// those with the largest shares, in their order.
const MOST_KEYS = 12;
const digits = (v) => (v === null ? "–" : v.toFixed(2).replace(/^-(0\.00)$/, "$1"));
function scoreTable(scores, at, who, labels, key) {
  const { width, scale } = scores;
  const [dots, visible, weights] = [scores.dots[at], scores.visible[at], scores.weights[at]];
  const bias = scores.bias?.[at];
  const places = [...weights.keys()]
    .sort((a, b) => weights[b] - weights[a] || visible[b] - visible[a] || a - b)
    .slice(0, MOST_KEYS)
    .sort((a, b) => a - b);
  const largest = places.reduce((a, b) => (weights[b] > weights[a] ? b : a), places[0]);
  const scaled =
    Math.abs(scale * Math.sqrt(width) - 1) < 1e-6
      ? `÷ √${width}`
      : `× ${Number(scale.toPrecision(3))}`;
  const scales = scale !== 1; // otherwise the product is the score
  const masks = places.some((j) => !visible[j]);
  const hidden = (text, j) => h("td", { class: visible[j] ? null : "faint", text });
  return [
    h("p", { text: `The query q of “${shown(who)}” is compared with the key k of each ${key}:` }),
    h(
      "div",
      { class: "scroll", tabindex: 0, "aria-label": "Scores, scrollable" },
      h(
        "table",
        { class: "plain scores", id: "scores" },
        h(
          "tr",
          {},
          [
            "key of",
            "q · k",
            ...(scales ? [scaled] : []),
            ...(bias ? ["+ position"] : []),
            ...(masks ? ["mask"] : []),
            "softmax",
            "",
          ].map((text) =>
            h(text ? "th" : "td", { class: { mask: "mask", "": "bar" }[text], text }),
          ),
        ),
        places.map((j) =>
          h(
            "tr",
            { class: j === largest ? "largest" : null },
            h("th", { class: "token", text: clipped(shown(labels[j] ?? String(j)), 24) }),
            hidden(digits(dots[j]), j),
            scales ? hidden(digits(dots[j] * scale), j) : null,
            bias ? hidden(digits(dots[j] * scale + (bias[j] ?? 0)), j) : null,
            masks ? h("td", { class: "faint mask", text: visible[j] ? "0" : "−∞" }) : null,
            h("td", { class: "share", text: visible[j] ? percent(weights[j]) : "0" }),
            h(
              "td",
              { class: "bar" },
              h("div", { class: "meter" }, h("i", { style: { width: `${100 * weights[j]}%` } })),
            ),
          ),
        ),
      ),
    ),
    weights.length > places.length
      ? h("p", {
          class: "note",
          text: `The ${places.length} largest of ${weights.length} weights.`,
        })
      : null,
  ];
}

function axes(name, path, anatomy, place, found) {
  const [, , kind, part] =
    name.slice(path.stack.length).split(".").length > 2
      ? ["", ...name.slice(path.stack.length + 1).split(".")]
      : [];
  const input = anatomy.source.map((label, i) => (place ? place(i) : label));
  const ofTarget = path.stack === "decoder" && anatomy.target.length;
  const own = ofTarget ? anatomy.target : input;
  const memoryRows = kind === "cross" && (part === "k" || part === "v");
  const queries = ofTarget ? found.rows : own; // by what each reads and predicts
  const rows =
    path.stack === "memory" && !memoryRows ? input.slice(-1) : memoryRows ? input : queries;
  return [rows, found.columns.length ? (kind === "cross" ? input : own) : []];
}

// What each head has for itself; norms, W_O and sums are of all heads.
const OF_HEADS = new Set(["q", "k", "v", "weights", "mixed"]);

// The likeliest token of each row before and after every layer: how the answer forms.
function guesses(path, names, marked) {
  const layers = path.words.map((_, k) => (k ? `layer ${k - 1}` : "embedding"));
  return h(
    "div",
    { class: "scroll tall", tabindex: 0, "aria-label": "Predictions after each layer, scrollable" },
    h(
      "table",
      { class: "numbers", id: "guesses" },
      h(
        "tr",
        {},
        h("td"),
        layers.map((text) => h("th", { class: "column", text })),
      ),
      names.map(
        (name, i) =>
          path.words[0][i] &&
          h(
            "tr",
            { class: i === marked ? "marked" : null },
            h("th", { class: "token", text: shown(name) }),
            path.words.map((row) => {
              const [token, share] = row[i];
              return h("td", {
                style: { background: css(share, false), color: inkOn(share, false) },
                title: percent(share),
                text: clipped(shown(token), 14),
              });
            }),
          ),
      ),
    ),
    h("p", { class: "note", text: "Darker (brighter in dark mode) means more probable." }),
  );
}

// The matrices from queries and keys to weights, and the scores of the followed query, key by key.
async function howWeights(
  { path, question, place, words, names, memory, marked, head, gone },
  name,
  node,
) {
  const attention = name.slice(0, -".weights".length);
  const isCross = attention.endsWith(".cross");
  const rows = path.rows.map(([index]) => index);
  const [{ scores }, q, k] = await Promise.all([
    ask("scores", { ...question, name: attention, head, rows }),
    ask("tensor", { ...question, name: `${attention}.q`, head }),
    ask("tensor", { ...question, name: `${attention}.k`, head }),
  ]);
  if (gone() || !scores) return Boolean(scores);
  const columns = (isCross ? path.columns : path.rows).map(([index]) => index);
  const pick = (/** @type {number[][]} */ list, /** @type {number[]} */ places) =>
    places.map((i) => list[i]);
  const among = (/** @type {any[][] | null} */ list) =>
    list && list.map((row) => columns.map((j) => row[j]));
  const shown = {
    ...scores,
    dots: among(scores.dots),
    bias: among(scores.bias),
    visible: among(scores.visible),
    weights: among(scores.weights),
  };
  const given = {
    rows: names.slice(0, scores.dots.length),
    columns: isCross ? memory : names,
    q: pick(q.values, rows),
    k: pick(k.values, columns),
    marked: Math.min(marked, scores.dots.length - 1),
    pick: (/** @type {number} */ i) => go({ row: path.rows[i][0], play: "" }),
    room: node.clientWidth,
  };
  const keys = scores.weights[0].map((_, j) =>
    place && path.stack !== "decoder" ? place(j) : k.rows[j],
  );
  const key = isCross ? words.input : words.one;
  const at = given.marked;
  put(
    node,
    matrices(shown, given),
    h(
      "details",
      { open: true },
      h("summary", {}, h("h3", { text: "The followed query, key by key" })),
      scoreTable(scores, at, names[at] ?? "", keys, key),
    ),
  );
  return true;
}

const shapeOf = (name, path, anatomy) =>
  name.endsWith(".sum")
    ? [path.count, path.stations[name].width]
    : anatomy.shapes[name.endsWith(".words") ? "logits" : name];

function panelHead(name, { path, model, words, anatomy, head }) {
  const heads = OF_HEADS.has(name.split(".").at(-1))
    ? (path.weights[name.split(".").slice(0, -1).join(".")]?.heads ?? 0)
    : 0;
  const shape = shapeOf(name, path, anatomy);
  return h(
    "header",
    {},
    h("h2", { text: about(name, path, model, words).title }),
    h("code", { class: "faint", text: name }),
    shape
      ? h("span", { class: "note" }, "shape ", h("code", { id: "shape", text: shape.join(" × ") }))
      : null,
    heads > 1
      ? segment(
          "Head",
          [...Array(heads).keys()].map((k) => [k, String(k)]),
          head,
          (k) => go({ head: k }),
        )
      : null,
  );
}

// The panel of a station: the numbers that pass it.
export async function stationPanel(panel, name, given) {
  const { path, question, anatomy, place, words, names, marked, head, gone } = given;
  const values = h("div", {}, loading());
  put(panel, panelHead(name, given), values);
  if (name.endsWith(".words")) {
    put(values, guesses(path, names, marked));
    return;
  }
  const station = path.stations[name];
  if (name.endsWith(".sum")) {
    // a sum is no probe: some of its numbers came with the drawing
    put(values, numbers(station.values, names, [], { marked, cut: true }));
    return;
  }
  const isWeights = name.endsWith(".weights");
  if (isWeights && (await howWeights(given, name, values))) return;
  const found = await ask("tensor", { ...question, name, head });
  if (gone()) return;
  const followed = path.rows[marked]?.[0] ?? 0;
  const [rows, labels] = axes(name, path, anatomy, place, found);
  const per = /cross\.[kv]$/.test(name) ? words.input : words.one;
  const first = found.shape.at(-1) > 16 ? "; the first 16 columns" : "";
  put(
    values,
    isWeights ? lookedAt(found.values[followed], names[marked] ?? "", labels) : null,
    numbers(found.values, rows, labels, {
      shades: found.shades,
      marked: followed,
      cut: found.shape.at(-1) > 16,
    }),
    h("p", {
      class: "note",
      text: isWeights
        ? "One row per query, one column per key; each row sums to 1."
        : `One row per ${per}${first}. Blue is positive, brown (amber in dark mode) is negative.`,
    }),
  );
}

// The keys that a query looks at most, where its weights are no plain softmax of scores.
function lookedAt(row, who, labels) {
  if (!row) return null;
  const shares = row
    .map((probability, j) => ({ label: labels[j] ?? String(j), probability: probability ?? 0 }))
    .filter(({ probability }) => probability > 0);
  return [
    h("p", { text: `“${shown(who)}” attends to:` }),
    shareBars(shares.sort((a, b) => b.probability - a.probability).slice(0, 8)),
  ];
}

// The station before or after: behind the last one of a layer stands the first one of the next.
