// Who resolves "it": opens the head that looks at what the pronoun stands for, on two sentences that differ in one adjective.

import { ask } from "./api.js";
import { h } from "./dom.js";
import { go, offText } from "./route.js";

const TEXTS = ["tired", "wide"].map((word) => `The animal did not cross the street because it was too ${word}.`);
const PRONOUNS = new Set(["er", "sie", "es"]);

async function opened(model, found, off) {
  const { target } = await ask("look", { model, text: TEXTS[0], off: [] });
  const pin = target.map((token) => PRONOUNS.has(token.replace("▁", ""))).lastIndexOf(true);
  go({ text: TEXTS[0], text2: TEXTS[1], compare: 1, model2: "", at: found.reader[0], head: found.reader[1], pin: pin < 0 ? "" : pin, off: offText(off) });
}

// Adds its buttons to a row of chips, if the model came with a circuit.
export async function resolving(place, model) {
  const { circuit: found } = await ask("circuit", { model });
  if (!found?.reader || !place) return;
  const names = found.heads.map(([name, head]) => `${name} ${head}`).join(", ");
  const share = (value) => `${Math.round(100 * value)} %`;
  place.append(
    h("button", { type: "button", id: "resolves", text: "Who resolves “it”?", title: `${found.reader[0]} head ${found.reader[1]} looks at what “it” stands for`, onclick: () => opened(model, found, []) }),
    h("button", { type: "button", id: "unresolved", text: `… without ${names}`, title: `pronouns ${share(found.whole)} → ${share(found.without)} right, other sentences ${share(found.rest_whole)} → ${share(found.rest)}`, onclick: () => opened(model, found, found.heads) }));
}
