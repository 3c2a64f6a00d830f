// @ts-check
// Who resolves "it": opens the head that attends to what the pronoun refers to, on two sentences that differ in one adjective.

import { ask } from "./api.js";
import { h, put } from "./dom.js";
import { go, offText } from "./route.js";

const TEXTS = ["tired", "wide"].map(
  (word) => `The animal did not cross the street because it was too ${word}.`,
);
const PRONOUNS = new Set(["er", "sie", "es"]);

// Of a translator whose folder has a circuit: the head is one that predicts the German pronoun.
/** @typedef {{reader: [string, number], heads: [string, number][], accuracy: number, ablated_accuracy: number, rest_accuracy: number, ablated_rest_accuracy: number}} Circuit */
/** @param {string} model @param {Circuit} circuit @param {[string, number][]} off */
async function openCircuit(model, circuit, off) {
  const { target } = await ask("look", { model, text: TEXTS[0], off: [] });
  const pin = target
    .map((/** @type {string} */ token) => PRONOUNS.has(token.replace("▁", "")))
    .lastIndexOf(true);
  go({
    text: TEXTS[0],
    text2: TEXTS[1],
    compare: 1,
    model2: "",
    at: circuit.reader[0],
    head: circuit.reader[1],
    pin: pin < 0 ? "" : pin,
    off: offText(off),
  });
}

/** @param {string} model @param {Circuit} circuit */
function circuitButtons(model, circuit) {
  const names = circuit.heads.map(([name, head]) => `${name} ${head}`).join(", ");
  const share = (/** @type {number} */ value) => `${Math.round(100 * value)} %`;
  return [
    h("button", {
      type: "button",
      id: "resolves",
      class: "main",
      text: "Who resolves “it”?",
      title: `${circuit.reader[0]} head ${circuit.reader[1]} attends to the noun that “it” refers to`,
      onclick: () => openCircuit(model, circuit, []),
    }),
    h("button", {
      type: "button",
      id: "unresolved",
      text: `Ablate ${circuit.heads.length} heads`,
      title: `The same two sentences without ${names}. Accuracy without them: pronouns ${share(circuit.accuracy)} → ${share(circuit.ablated_accuracy)}, other sentences ${share(circuit.rest_accuracy)} → ${share(circuit.ablated_rest_accuracy)}.`,
      onclick: () => openCircuit(model, circuit, circuit.heads),
    }),
  ];
}

// Fills its row, if the folder of the model has a circuit; a page without it is whole.
/** @param {Element} place @param {string} model */
export async function resolving(place, model) {
  const { circuit } = await ask("circuit", { model });
  if (circuit?.reader) put(place, circuitButtons(model, circuit));
}
