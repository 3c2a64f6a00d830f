// @ts-check
// The studio without a server: what pages ask is answered by a forward pass in this file.

import { answerWith } from "../web/api.js";
import { answer, beam, cache, lens, look, next_tokens, patching, steps } from "./answer_views.js";
import * as attention from "./attention_views.js";
import { anatomy, path, positions, tensor } from "./layer_views.js";
import { Refusal } from "./recording.js";
import { unpackTensor } from "./tensors.js";
import { Tokenizer } from "./tokenizer.js";

/** @typedef {import("./recording.js").Opened} Opened */

/** @param {any} data @returns {Opened} */
function opened(data) {
  const { network, stored, coverage } = data;
  const [input, output] = data.tokenizers.map((/** @type {any} */ { json, ...framing }) => {
    return new Tokenizer({ json: data.vocabularies[json], ...framing });
  });
  // Differences of sorted numbers are short ones.
  let sum = 0;
  const spellings = coverage.spellings?.map((/** @type {number} */ step) => (sum += step));
  return {
    network: { ...network, weights: network.weights.map(unpackTensor) },
    input,
    output,
    model: stored.model,
    stored,
    coverage: {
      longest: coverage.longest_source,
      unseen: new Set(coverage.unseen_tokens),
      spellings: spellings && new Set(spellings),
    },
    cache: new Map(),
  };
}

/** What was computed when the page was written, because no input changes it. @type {Record<string, (opened: Opened) => any>} */
const STORED = {
  shelf: ({ stored }) => stored.shelf,
  model: ({ stored }) => stored.model,
  circuit: ({ stored }) => stored.circuit,
  roles: ({ stored }) => stored.roles,
};

// What pages ask, under the names that the server has.
/** @type {Record<string, (opened: Opened, question: any) => any>} */
const VIEWS = {
  ...STORED,
  ...{ answer, beam, cache, lens, look, next_tokens, patching, steps },
  ...{ anatomy, path, positions, tensor },
  alignment: attention.alignment,
  angles: attention.angles,
  attention: attention.attention,
  entropy: attention.entropy,
  grid: attention.grid,
  rollout: attention.rollout,
  scores: attention.scores,
};

/** @param {Opened} model @param {string} view @param {any} question */
export async function answered(model, view, question) {
  if (!Object.hasOwn(VIEWS, view)) {
    throw new Refusal("this page cannot compute that", "open the model with `regard studio`");
  }
  // The page draws what it has before the work begins.
  await new Promise((go) => setTimeout(go));
  return VIEWS[view](model, question);
}

const stored = document.getElementById("regard-model");
const model = opened(JSON.parse(stored?.textContent || "{}"));
answerWith((view, body) => answered(model, view, JSON.parse(body)));
import("../web/main.js");
