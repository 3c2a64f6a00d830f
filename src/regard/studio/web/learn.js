// Learn: the anatomy of the model as a drawing. Each station shows its formula and what passes it for the current sentence.

import { ask } from "./api.js";
import { failure, h, loading, put, s, segment, shown, slider } from "./dom.js";
import { css, heat, inkOn } from "./heat.js";
import { asked, asking } from "./look.js";
import { go } from "./route.js";

const STATIONS = {
  embedded: ["Embedding + position", "x = E[token] · scale + position", "Each token becomes a vector: a row of the embedding table, and something that tells its place. From here on, a sentence is a matrix: one row a token."],
  q: ["Queries", "Q = x W_Q", "What each token asks for. Each head has its own small projection, so heads can ask different things."],
  k: ["Keys", "K = x W_K", "What each token answers to. A query and a key that point the same way give a high score."],
  v: ["Values", "V = x W_V", "What a token hands over when it is looked at."],
  weights: ["Attention weights", "A = softmax(Q Kᵀ / √d + mask)", "Scores become shares: each row sums to 1. The mask hides padding, and in a decoder what is yet to be written."],
  mixed: ["Mixed values", "A V", "Each token takes the mean of the values it looks at, in the shares of its row. The heads are then put side by side and projected by W_O."],
  residual: ["Feed-forward, and out of the block", "x + W₂ f(W₁ x + b₁) + b₂", "The same small network at every place. What attention and it add is put on top of what was there (the residual stream); a norm keeps its size steady."],
  output: ["Out of the stack", "norm(x)", "What the last block gives: one vector a token. Of an encoder, this is what the decoder looks at."],
  logits: ["Vocabulary", "p = softmax(x Eᵀ)", "A score for every token of the vocabulary; softmax makes probabilities of them. The likeliest is what comes next."],
};
const OWN = { self: "looks at its own sentence", cross: "looks at the source" };

function about(name) {
  const part = name.split(".").at(-1), kind = name.split(".").at(-2);
  const [title, formula, text] = STATIONS[part] || [name, "", ""];
  const cross = kind === "cross" && part in { q: 1, k: 1, v: 1 };
  return { title: title + (OWN[kind] && part === "weights" ? `: ${OWN[kind]}` : ""), formula: cross && part !== "q" ? formula.replace("x ", "memory ") : formula,
    text: text + (cross && part !== "q" ? " In cross-attention, keys and values come from the encoder's output." : "") };
}

// Stations bottom up, as papers draw them.
function column(prefix, layer, layers, shapes) {
  const list = [[`${prefix}.embedded`, "Embedding + position", "norm"]];
  for (const kind of ["self", "cross"]) {
    const at = `${prefix}.${layer}.${kind}`;
    if (!shapes[`${at}.weights`]) continue;
    list.push([[`${at}.q`, "Q", ""], [`${at}.k`, "K", ""], [`${at}.v`, "V", ""]],
      [`${at}.weights`, kind === "self" ? "Self-attention" : "Cross-attention", "attention"], [`${at}.mixed`, "Mixed values · heads joined", "attention"]);
  }
  list.push([`${prefix}.${layer}.residual`, "Feed-forward + residual", "feed"], [`${prefix}.output`, "Output of the stack", "norm"]);
  return list;
}

function drawing(all, stacks, layer, open, choose, speaks = true) {
  const { logits, ...rest } = all, shapes = speaks ? all : rest;
  const names = Object.keys(stacks);
  const W = 300, GAP = 60, STEP = 62, TALL = 46;
  const lists = names.map((name) => column(name, Math.min(layer, stacks[name] - 1), stacks[name], shapes));
  const high = Math.max(...lists.map((l) => l.length)) + (shapes.logits ? 1 : 0);
  const height = high * STEP + 56, width = names.length * W + (names.length - 1) * GAP + 20;
  const y = (i) => height - 34 - (i + 1) * STEP + (STEP - TALL);
  const size = (name) => (shapes[name] || []).join(" × ");
  const station = (name, label, kind, x, top, w) => shapes[name] && s("g", { class: `station ${kind}${name === open ? " open" : ""}`, tabindex: 0, role: "button", "data-station": name, "aria-label": `${label}, ${name}, ${size(name)}`, "aria-pressed": String(name === open),
    onclick: () => choose(name), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(name); } } },
    s("rect", { x, y: top, width: w, height: TALL, rx: 9 }), s("text", { x: x + w / 2, y: top + 20, text: label }), s("text", { class: "shape", x: x + w / 2, y: top + 37, text: size(name) }));
  const arrow = (x, from, to) => [s("line", { class: "flow", x1: x, x2: x, y1: from, y2: to + 6 }), s("path", { class: "tip", d: `M${x - 5} ${to + 8}L${x} ${to}L${x + 5} ${to + 8}Z` })];
  const marks = [];
  lists.forEach((list, k) => {
    const x = 10 + k * (W + GAP), middle = x + W / 2;
    const last = list.length - 2;
    marks.push(s("rect", { class: "frame", x: x - 7, y: y(last) - 9, width: W + 14, height: y(1) + TALL - y(last) + 18, rx: 14 }));
    marks.push(s("text", { class: "label", x: middle, y: height - 8, "text-anchor": "middle", text: `${names[k]} · layer ${Math.min(layer, stacks[names[k]] - 1)} of ${stacks[names[k]]}` }));
    list.forEach((entry, i) => {
      if (i) marks.push(arrow(middle, y(i - 1), y(i) + TALL));
      if (Array.isArray(entry[0])) entry.forEach((each, j) => marks.push(station(...each, x + 12 + j * (W - 18) / 3, y(i), (W - 42) / 3)));
      else marks.push(station(...entry, x + 12, y(i), W - 24));
    });
    if (shapes.logits && k === names.length - 1) marks.push(arrow(middle, y(list.length - 1), y(list.length) + TALL), station("logits", "Vocabulary → next token", "feed", x + 12, y(list.length), W - 24));
  });
  const cross = lists[1]?.findIndex((entry) => Array.isArray(entry[0]) && entry[0][0].includes(".cross."));
  if (names.length === 2 && cross > 0) {
    const top = y(lists[0].length - 1) + TALL / 2, to = y(cross) + TALL / 2, a = 10 + W - 12, b = 10 + W + GAP + 2;
    marks.push(s("path", { class: "flow", d: `M${a} ${top}H${a + 12 + GAP / 2}V${to}H${b}` }), s("path", { class: "tip", d: `M${b} ${to - 5}L${b + 8} ${to}L${b} ${to + 5}Z` }));
  }
  return s("svg", { class: "anatomy", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Anatomy of the model" }, marks.flat(3).filter(Boolean));
}

// On a narrow screen the stacks stand on top of each other.
function anatomical(shapes, stacks, layer, open) {
  const choose = (station) => go({ station }), names = Object.keys(stacks);
  if (window.innerWidth >= 640) return drawing(shapes, stacks, layer, open, choose);
  return [...names].reverse().map((name, i) => drawing(shapes, { [name]: stacks[name] }, layer, open, choose, i === 0));
}

function numbers(found) {
  const signed = !found.name.endsWith(".weights");
  const most = Math.max(1e-9, ...found.values.flat().filter((v) => v !== null).map(Math.abs));
  const share = (v) => signed ? 0.5 + v / most / 2 : v;
  const columns = found.values[0]?.length || 0, few = Math.min(columns, 16);
  return h("div", { class: "scroll tall", tabindex: 0, "aria-label": "Values, scrolls" }, h("table", { class: "numbers" },
    found.columns.length ? h("tr", {}, h("th"), found.columns.slice(0, few).map((t) => h("th", { text: shown(t) }))) : null,
    found.values.map((row, i) => h("tr", {}, h("th", { class: "token", text: shown(found.rows[i] ?? String(i)) }),
      row.slice(0, few).map((v) => h("td", { style: { background: css(share(v ?? 0), signed), color: inkOn(share(v ?? 0), signed) }, text: v === null ? "–" : v.toFixed(2) })),
      columns > few || found.shape.at(-1) > few ? h("td", { class: "faint", text: "…" }) : null))));
}

// ------------------------------------------------------------------ the worked example

const WORDS = ["The", "cat", "sat", "on", "the", "mat"];
const KEYS = [[0, 0, 0, 1], [1, 0, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]];
const VALUES = [[0.1, 0, 0, 0.8], [0.9, 0, 0.1, 0.7], [0, 0.9, 0, 0.3], [0, 0, 0.5, 0], [0, 0, 0, 0.9], [0, 0, 0.9, 0.6]];
const QUERY = [0.9, 0.1, 0.2, 0.3];
const two = (v) => Math.abs(v) < 1e-9 ? "0" : (Math.round((v + 1e-9) * 100) / 100).toFixed(2).replace(/^(-?)0\./, "$1.");
const list = (row) => "[" + row.map((v) => String(v).replace(/^0\./, ".")).join(", ") + "]";

export function attend(query) {
  const scores = KEYS.map((key) => key.reduce((sum, v, i) => sum + v * query[i], 0));
  const powers = scores.map((score) => Math.exp(score / 2));
  const total = powers.reduce((a, b) => a + b, 0);
  const weights = powers.map((p) => p / total);
  const rounded = weights.map((w) => Math.round((w + 1e-9) * 100) / 100);
  const mix = (shares) => [0, 1, 2, 3].map((i) => shares.reduce((sum, w, k) => sum + w * VALUES[k][i], 0));
  return { scores, weights, output: mix(rounded), exact: mix(weights) };
}

function example() {
  const query = [...QUERY], body = h("div", { class: "scroll", tabindex: 0, "aria-label": "Worked example, scrolls" });
  function draw() {
    const { scores, weights, output, exact } = attend(query);
    put(body, h("table", { class: "example", id: "example" },
      h("tr", {}, ["token", "key k", "score q·k", "weight softmax(q·k / √4)", "", "value v"].map((t) => h("th", { text: t }))),
      WORDS.map((word, i) => h("tr", {}, h("td", { class: "token", text: word }), h("td", { class: "mono", text: list(KEYS[i]) }), h("td", { class: "score", text: two(scores[i]) }), h("td", { class: "weight", text: two(weights[i]) }),
        h("td", {}, h("div", { class: "meter" }, h("i", { style: { width: 100 * weights[i] + "%" } }))), h("td", { class: "mono", text: list(VALUES[i]) }))),
      h("tr", { class: "sum" }, h("td", { class: "token", text: "output" }), h("td"), h("td"), h("td", { text: "Σ" }), h("td"), h("td", { class: "mono", id: "mixed", text: "[" + output.map(two).join(" ") + "]" }))),
    h("p", { class: "note", text: `As by hand, with weights of two digits; unrounded weights give [${exact.map(two).join(" ")}].` }));
  }
  const sliders = h("div", { class: "bar" });
  const again = () => put(sliders, query.map((v, i) => {
    const field = slider(`q${"₁₂₃₄"[i]}`, v, [-3, 3, 0.1], () => {}, (x) => x.toFixed(1));
    field.querySelector("input").addEventListener("input", (event) => { query[i] = Number(event.target.value); draw(); });
    return field;
  }), h("button", { type: "button", text: "Back to q = [.9, .1, .2, .3]", onclick: () => { query.splice(0, 4, ...QUERY); again(); draw(); } }));
  again(); draw();
  return h("section", { class: "card", "aria-label": "Worked example" }, h("header", {}, h("h2", { text: "By hand: “The cat sat on the mat”" })),
    h("p", { text: "One query asks six tokens. Its product with each key is a score, softmax makes shares of the scores, and the output is the mean of the values in these shares. Here “cat” fits best. Move the query, and see where it looks." }),
    h("p", { class: "formula", text: "output = softmax(q Kᵀ / √d) V,   d = 4" }), sliders, body);
}

// How the model tells places apart: the vectors, and the product of each with each.
function placing(state, model, gone) {
  const body = h("div", {}, loading()), stacks = Object.keys(model.stacks);
  const stack = stacks.includes(state.places) ? state.places : stacks[0];
  const node = h("section", { class: "card", "aria-label": "Positions" }, h("header", {}, h("h2", { text: "Where a token stands" }),
    stacks.length > 1 ? segment("Stack", stacks.map((name) => [name, name]), stack, (places) => go({ places })) : null), body);
  const drawn = (rows, columns, values, title) => {
    const told = h("p", { class: "read faint", text: "Point at a cell for its number." });
    const map = heat(rows, columns, { signed: true, room: 470, say: (i, j) => { told.textContent = `${rows[i]}, ${columns[j]}: ${values[i * columns.length + j].toFixed(3)}`; } });
    map.show(values, { title, scale: values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9) });
    return h("div", {}, h("h3", { text: title }), told, map.node);
  };
  ask("positions", { model: state.model, stack, length: 32 }).then((found) => {
    if (gone()) return;
    if (found.what === null) { put(body, h("p", { class: "note", text: found.note })); return; }
    const count = (list) => list.map((_, i) => String(i));
    put(body, h("p", { text: `Attention alone does not see the order of its tokens. This model tells places apart by ${found.what}. ${found.note}` }),
      h("div", { class: "two" }, found.encodings ? drawn(count(found.encodings), count(found.encodings[0]), Float32Array.from(found.encodings.flat()), "A row a place, a column a dimension") : null,
        drawn(count(found.products), count(found.products), Float32Array.from(found.products.flat()), found.encodings ? "Dot products: each place with each" : "Added to the scores: each place with each")));
  }, (error) => { if (!gone()) put(body, failure(error)); });
  return node;
}

export default async function learn({ main, state, gone }) {
  const place = h("div", { class: "side" }, loading("The model reads…"));
  const model = await ask("model", { model: state.model });
  if (gone()) return;
  put(main, asking(state, model, "Follow it"), place, placing(state, model, gone), example());
  try {
    const { off, ...question } = asked(state, model);
    const anatomy = await ask("anatomy", question);
    if (gone()) return;
    const layers = Math.max(...Object.values(model.stacks)), layer = Math.min(Number(state.layer || 0), layers - 1);
    const usual = `${Object.keys(model.stacks)[0]}.${layer}.self.weights`;
    const open = anatomy.shapes[state.station] ? state.station : usual;
    const headed = anatomy.shapes[open]?.length === 3, heads = headed ? anatomy.shapes[open][0] : 0, head = Math.min(Number(state.head || 0), Math.max(0, heads - 1));
    const panel = h("section", { class: "card", id: "station", "aria-label": "Station" });
    const { title, formula, text } = about(open);
    const values = h("div", {}, loading());
    put(panel, h("header", {}, h("h2", { text: title }), h("code", { class: "faint", text: open })), h("p", { class: "formula", text: formula }), h("p", { text }),
      h("div", { class: "bar" }, h("span", { class: "note" }, "shape ", h("code", { id: "shape", text: anatomy.shapes[open].join(" × ") })), headed ? segment("Head", [...Array(heads).keys()].map((k) => [k, String(k)]), head, (k) => go({ head: k })) : null), values);
    const move = (to) => go({ layer: to, station: open.replace(/\.\d+\./, `.${Math.min(to, layers - 1)}.`) });
    put(place, h("section", { class: "card", "aria-label": "Anatomy" }, h("header", {}, h("h2", { text: `${state.model}: ${model.kind}` }), h("span", { class: "note", text: `${model.parameters.toLocaleString("en")} parameters` }),
      segment("Layer", [...Array(layers).keys()].map((k) => [k, String(k)]), layer, move)),
      anatomical(anatomy.shapes, model.stacks, layer, open), h("p", { class: "note", text: "Open a station to see what passes it. Read it from below." })), panel);
    const found = await ask("tensor", { ...question, name: open, head });
    if (gone()) return;
    put(values, numbers(found), h("p", { class: "note", text: found.name.endsWith(".weights") ? "One row a query, one column a key: shares of 1." : `One row a token${found.shape.at(-1) > 16 ? "; the first 16 columns" : ""}. Blue is above zero, brown (in the dark: amber) below.` }));
  } catch (error) {
    if (!gone()) put(place, failure(error));
  }
}
