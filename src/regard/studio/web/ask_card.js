// What a page begins with: the sentence or the file that the model is asked about.

import { h, put } from "./dom.js";
import { chooser } from "./media.js";
import { go, offList } from "./route.js";

export const textOf = (state, model) => state.text ?? model.examples[0] ?? "";

// A model that takes both is shown the picture until a sentence is written.
const readsFile = (state, model) =>
  Boolean(model.medium && (state.file || !model.reads || state.text === undefined));

const HINTS = {
  fill: (model) => `a sentence with ${model.mask ?? "[MASK]"} for the missing word`,
  generate: () => "the beginning of a sentence",
  forecast: () => "the path of a CSV file",
  answer: (model) =>
    model.kind === "memory network"
      ? "a story, then a question"
      : "a question ending in “?”, then the text with the answer",
};

function sentence(state, model, button, extras) {
  const text = textOf(state, model);
  const [what] = readsWhat(model);
  const hint =
    model.unit === "node"
      ? "the folder of a graph, a colon and a node number"
      : (HINTS[model.task]?.(model) ?? "a sentence");
  const input = h("input", {
    type: "text",
    name: "text",
    value: text,
    "aria-label": what[0].toUpperCase() + what.slice(1),
    placeholder: hint,
    maxlength: 8000,
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": "empty",
  });
  const problem = h("p", { id: "empty", class: "problem", role: "alert" });
  const there = (text) => go({ text, pin: "", step: "", row: "", file: "", name: "" });
  function submit(event) {
    event.preventDefault();
    if (input.value.trim()) {
      there(input.value.trim());
      return;
    }
    put(problem, `The input is empty: enter ${hint}.`);
    input.focus();
  }
  return h(
    "section",
    { class: "card asks", "aria-label": "Input" },
    h(
      "form",
      { class: "ask", onsubmit: submit, oninput: () => put(problem) },
      input,
      h("button", { class: "main", text: button }),
    ),
    problem,
    h(
      "div",
      { class: "chips" },
      h("span", { class: "label", text: "Examples" }),
      model.examples.map((each) =>
        h("button", {
          type: "button",
          text: each,
          "aria-pressed": String(each === text && !readsFile(state, model)),
          onclick: () => there(each),
        }),
      ),
    ),
    extras,
  );
}

// A sentence, a file, or both, as the model takes them; `extras` are placed below the sentence.
export function asking(state, model, button, extras = null) {
  const reads = model.reads || !model.medium;
  return [
    reads ? sentence(state, model, button, extras) : null,
    model.medium ? chooser(model.medium, state, model.reads, reads ? null : extras) : null,
  ];
}

// The question of most views.
export function asked(state, model) {
  const file = readsFile(state, model) ? state.file || "example" : undefined;
  return { model: state.model, text: file ? "" : textOf(state, model), file, off: offList(state) };
}

// The words for what a model reads, one place at a time.
const MEDIA_UNITS = { image: "patch", sound: "frame" };
export const unit = (model, question, count = 1) => {
  const usual = model.kind === "memory network" ? "sentence" : model.unit;
  const one = question.file ? (MEDIA_UNITS[model.medium] ?? usual) : usual;
  if (count === 1) return one;
  return one === "patch" ? "patches" : `${one}s`;
};

// What is written into the field, one and many.
export function readsWhat(model) {
  if (model.unit === "node") return ["graph", "graphs"];
  return model.task === "forecast" ? ["series", "series"] : ["sentence", "sentences"];
}
