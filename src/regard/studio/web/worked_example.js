// The worked example: one query attends to six tokens, with numbers that can be followed by hand.

import { h, put, slider } from "./dom.js";
import { formula } from "./formula.js";

const WORDS = ["The", "cat", "sat", "on", "the", "mat"];
const KEYS = [
  [0, 0, 0, 1],
  [1, 0, 0.3, 0],
  [0, 1, 0, 0],
  [0, 0, 0, 0],
  [0, 0, 0, 1],
  [0, 0, 1, 0],
];
const VALUES = [
  [0.1, 0, 0, 0.8],
  [0.9, 0, 0.1, 0.7],
  [0, 0.9, 0, 0.3],
  [0, 0, 0.5, 0],
  [0, 0, 0, 0.9],
  [0, 0, 0.9, 0.6],
];
const QUERY = [0.9, 0.1, 0.2, 0.3];
const two = (v) =>
  Math.abs(v) < 1e-9
    ? "0"
    : (Math.round((v + 1e-9) * 100) / 100).toFixed(2).replace(/^(-?)0\./, "$1.");
const list = (row) => "[" + row.map((v) => String(v).replace(/^0\./, ".")).join(", ") + "]";

export function attend(query) {
  const scores = KEYS.map((key) => key.reduce((sum, v, i) => sum + v * query[i], 0));
  const powers = scores.map((score) => Math.exp(score / 2));
  const total = powers.reduce((a, b) => a + b, 0);
  const weights = powers.map((p) => p / total);
  const rounded = weights.map((w) => Math.round((w + 1e-9) * 100) / 100);
  const mix = (shares) =>
    [0, 1, 2, 3].map((i) => shares.reduce((sum, w, k) => sum + w * VALUES[k][i], 0));
  return { scores, weights, output: mix(rounded), exact: mix(weights) };
}

export function example() {
  const query = [...QUERY],
    body = h("div", { class: "scroll", tabindex: 0, "aria-label": "Worked example, scrollable" });
  function draw() {
    const { scores, weights, output, exact } = attend(query);
    put(
      body,
      h(
        "table",
        { class: "example", id: "example" },
        h(
          "tr",
          {},
          ["token", "key k", "score q·k", "weight softmax(q·k / √4)", "", "value v"].map((t) =>
            h(t ? "th" : "td", { text: t }),
          ),
        ),
        WORDS.map((word, i) =>
          h(
            "tr",
            {},
            h("td", { class: "token", text: word }),
            h("td", { class: "mono", text: list(KEYS[i]) }),
            h("td", { class: "score", text: two(scores[i]) }),
            h("td", { class: "weight", text: two(weights[i]) }),
            h(
              "td",
              {},
              h("div", { class: "meter" }, h("i", { style: { width: 100 * weights[i] + "%" } })),
            ),
            h("td", { class: "mono", text: list(VALUES[i]) }),
          ),
        ),
        h(
          "tr",
          { class: "sum" },
          h("td", { class: "token", text: "output" }),
          h("td"),
          h("td"),
          h("td", { text: "Σ" }),
          h("td"),
          h("td", { class: "mono", id: "mixed", text: "[" + output.map(two).join(" ") + "]" }),
        ),
      ),
      h("p", {
        class: "note",
        text: `Computed from weights rounded to two digits; unrounded weights give [${exact.map(two).join(" ")}].`,
      }),
    );
  }
  const sliders = h("div", { class: "bar" });
  const again = () =>
    put(
      sliders,
      query.map((v, i) => {
        const field = slider(
          `q${"₁₂₃₄"[i]}`,
          v,
          [-3, 3, 0.1],
          () => {},
          (x) => x.toFixed(1),
        );
        field.querySelector("input").addEventListener("input", (event) => {
          query[i] = Number(event.target.value);
          draw();
        });
        return field;
      }),
      h("button", {
        type: "button",
        text: "Reset to q = [.9, .1, .2, .3]",
        onclick: () => {
          query.splice(0, 4, ...QUERY);
          again();
          draw();
        },
      }),
    );
  again();
  draw();
  return h(
    "section",
    { class: "card", id: "worked", "aria-label": "Worked example" },
    h("header", {}, h("h2", { text: "Attention by hand: “The cat sat on the mat”" })),
    h("p", {
      text: "One query attends to six tokens. Its dot product with each key is a score, softmax turns the scores into attention weights, and the output is the sum of the values with these weights. Here “cat” gets the largest weight. Change the query to see the weights change.",
    }),
    h("p", {}, formula("output = softmax(q Kᵀ / √d) V, d = 4")),
    sliders,
    body,
  );
}
