// @ts-check
// The stations of a layer: which there are, in what order, with the formula and the text of each.

import { unit } from "./ask_card.js";

/** @typedef {import("./answers.js").Path} Path */
/** @typedef {import("./answers.js").Model} Model */
/** @typedef {import("./answers.js").Question} Question */
/**
 * A station of the drawing. `own`: it has the rows of the stack, not those of its memory. `links`: the attention whose weights
 * it shows. `stream`: it stands on the residual stream. `adds`: it is a sum. `branch`: it reads from the stream.
 * @typedef {{name: string, title: string, own: boolean, kind?: string, links?: string, stream?: boolean, adds?: boolean,
 *   branch?: boolean, recurrent?: boolean, words?: boolean}} Column
 */

// ------------------------------------------------------------------ what the stations are

// Of each part: title, formula, text. {one} and {many} are what the model reads: tokens, patches, moments.
/** @type {Record<string, string[]>} */
const STATIONS = {
  embedded: [
    "Embedding",
    "x = E[token]",
    "Each {one} becomes a vector: here its residual stream begins. Everything that follows reads from this line and adds to it.",
  ],
  input: [
    "Norm",
    "norm(x)",
    "Each vector is normalized before the sublayer reads it. The residual stream itself stays unchanged.",
  ],
  q: [
    "Queries",
    "Q = x W_Q",
    "What each {one} looks for. Each head has its own projection, so heads can look for different things.",
  ],
  k: [
    "Keys",
    "K = x W_K",
    "What each {one} is matched by. A query and a key that point in the same direction have a high score.",
  ],
  v: ["Values", "V = x W_V", "What each {one} passes on to those that attend to it."],
  weights: [
    "Attention weights",
    "A = softmax(Q Kᵀ / √d + mask)",
    "Softmax turns the scores of each query into weights that sum to 1. The mask sets some weights to 0: {hidden}.",
  ],
  mixed: [
    "Weighted sum of the values",
    "A V",
    "Each {one} gets the mean of all values, weighted by its attention weights.",
  ],
  output: [
    "Output projection",
    "concat(heads) W_O",
    "The outputs of all heads are concatenated and projected back to the width of the residual stream.",
  ],
  sum: [
    "Residual connection",
    "x + sublayer(x)",
    "The output of the sublayer is added to the residual stream. Nothing is overwritten: later layers can still read what was there before.",
  ],
  residual: [
    "Output of the layer",
    "x + sublayer(x)",
    "The residual stream after this layer: its input plus the output of each sublayer.",
  ],
  words: [
    "Output probabilities",
    "p = softmax(W x)",
    "W has one row per {said}. Softmax turns the dot products of the vector with these rows into probabilities.",
  ],
};
const SO_FAR = [
  "Logit lens: the prediction after this layer",
  "p = softmax(W norm(x))",
  "Final norm and output head are applied to the residual stream after this layer, as if no layer followed. Only the last layer was trained for this, so early predictions may be odd.",
];
/** @type {Record<string, string[]>} */
const FEED = {
  input: STATIONS.input,
  hidden: [
    "Hidden layer of the feed-forward network",
    "activation(W₁ x)",
    "Each {one} is projected to a wider vector, independently of the others. Each entry (a neuron) responds to its own pattern; the activation suppresses those that do not match.",
  ],
  output: [
    "Feed-forward",
    "FFN(x)",
    "The hidden layer is projected back to the width of the residual stream. The same network is applied to every {one} separately.",
  ],
};
// What a formula of the model itself adds to the words.
/** @type {[RegExp, string][]} */
const REMARKS = [
  [/^x = .*\bposition/, "It includes an encoding of the position."],
  [/R\(x/, "R rotates each pair of entries by an angle proportional to the position (RoPE)."],
  [
    /^BatchNorm/,
    "Mean and standard deviation are those of each feature in training, not of the vector.",
  ],
  [/^InstanceNorm/, "Mean and standard deviation are those of each feature over all positions."],
  [/⊙ V x$/, "It is gated: each entry is multiplied by one of a second projection."],
  [/experts$/, "A router chooses the experts for each {one}."],
];
/** @type {Record<string, string[]>} */
const OTHERS = {
  recurrent: [
    "Recurrent cell",
    "hₜ = cell(xₜ, hₜ₋₁)",
    "The state is passed from {one} to {one}: each step reads its input and the previous state, so the steps cannot run in parallel.",
  ],
  convolutional: [
    "Gated convolution",
    "x + (A ⊙ σ(B)),  [A B] = conv(x)",
    "Each {one} reads its neighbours within a window; the receptive field grows with each layer. Half of the channels gate the other half.",
  ],
  memory: [
    "Next hop",
    "u + o",
    "The output of the hop is added to the question. The sum is the query of the next hop.",
  ],
};
// Attention before the Transformer: where its queries, keys and values come from.
/** @type {Record<string, Record<string, string[]>>} */
const BASELINE_ATTENTION = {
  recurrent: {
    q: [
      "Queries",
      "Q = s W_Q",
      "The query is the decoder state, projected unless the score is a plain dot product (Luong's “dot”).",
    ],
    k: [
      "Keys",
      "K = h W_K",
      "The keys are the encoder states, projected likewise: one per {input}.",
    ],
    v: ["Values", "V = h", "The values are the encoder states themselves."],
    mixed: [
      "Context vector",
      "c = A V",
      "The mean of the encoder states, weighted by attention. The cell reads it together with its input.",
    ],
  },
  convolutional: {
    q: [
      "Queries",
      "Q = (h W_Q + g) / √2",
      "The output of the convolution, plus the embedding g of the previous token.",
    ],
    k: ["Keys", "K = z", "The encoder output at each {input}."],
    v: [
      "Values",
      "V = (z + e) / √2",
      "The encoder output, plus the embedding e of the {input} itself.",
    ],
  },
  memory: {
    q: ["Query", "Q = u", "The query is the vector of the question."],
    k: [
      "Keys",
      "K = Σ l ∘ A[word] + T_A",
      "The word embeddings of each sentence, weighted by position and summed, plus a vector for the age of the sentence.",
    ],
    v: [
      "Values",
      "V = Σ l ∘ C[word] + T_C",
      "The same sentences with a second embedding table, which also gives the keys of the next hop.",
    ],
    mixed: [
      "Output of the hop",
      "o = A V",
      "The mean of the values of all sentences, weighted by attention.",
    ],
  },
};
const STACK_OUTPUT = [
  "Output of the stack",
  "x",
  "The output of the last layer: one vector per {one}.",
];

export const titleOf = (/** @type {string} */ stack) => stack.replace(".", " "); // image.encoder

/** The formula of a station as the model's own parts have it. @param {string} name @param {Path} path @param {Model} model @returns {string | undefined} */
function ownFormula(name, path, model) {
  const [kind, part] = name.split(".").slice(-2);
  const own = model.formulas[path.stack];
  if (name === `${path.stack}.output`) return own.output;
  if (kind === "feedforward") return part === "output" ? own.feedforward : own[part];
  if (kind === "cross" && (part === "q" || part === "k")) return undefined; // no rotation between two sequences
  if (part === "residual") return model.layers[path.stack] === "transformer" ? own.sum : undefined;
  return part === "output" ? undefined : own[part];
}

/** @type {Record<string, string>} */
const SAID_OF = {
  token: "token of the vocabulary",
  letter: "letter",
  class: "class",
  label: "label",
};
const THE_QUESTION = [
  "The question",
  "u = Σ l ∘ B[word]",
  "The word embeddings of the question, weighted by position and summed. This vector is the query for the sentences of the story.",
];

/** Title, formula and text of a station, before its model is asked. @param {string} name @param {Path} path @param {Model} model */
function entryOf(name, path, model) {
  const [kind, part] = name.split(".").slice(-2);
  const layered = model.layers[path.stack];
  if (part === "words" && path.layer < model.stacks[path.stack] - 1) return SO_FAR;
  if (kind === "feedforward") return FEED[part];
  if (name === `${path.stack}.output`) return STACK_OUTPUT;
  if (part === "residual" && layered !== "transformer") return OTHERS[layered];
  if (part === "embedded" && layered === "memory") return THE_QUESTION;
  return BASELINE_ATTENTION[layered]?.[part] ?? STATIONS[part] ?? [name, "", ""];
}

/** What the weights of an attention are called. @param {string} title @param {string} kind @param {string} layered @param {Words} words */
function titleOfWeights(title, kind, layered, words) {
  if (layered === "memory") return `${title}: from the question to the story`;
  const between =
    kind === "self" ? `self-attention between ${words.many}` : "cross-attention to the encoder";
  return `${title}: ${between}`;
}

/** What a stack reads, one, many, and one of the input. @typedef {{one: string, many: string, input: string}} Words */

/** The title, the formula and the text of a station. @param {string} name @param {Path} path @param {Model} model @param {Words} words */
export function about(name, path, model, words) {
  const [kind, part] = name.split(".").slice(-2);
  const layered = model.layers[path.stack];
  const isBaseline = Boolean(BASELINE_ATTENTION[layered]?.[part]);
  const entry = entryOf(name, path, model);
  let [title, formula, text] = entry;
  if (!isBaseline && entry !== THE_QUESTION) formula = ownFormula(name, path, model) ?? formula;
  for (const [sign, remark] of REMARKS) if (sign.test(formula)) text += ` ${remark}`;
  if (name === "encoder.output" && model.stacks.decoder) text += " The decoder attends to it.";
  if (/cross\.[kv]$/.test(name) && !isBaseline) {
    formula = formula.replace("x ", "memory ");
    text += " In cross-attention, keys and values come from the encoder output.";
  }
  if (part === "weights") {
    formula = path.weights[name.slice(0, -".weights".length)].formula;
    title = titleOfWeights(title, kind, layered, words);
    if (formula.includes(" B "))
      text += " B is a bias that depends on the distance between query and key.";
  }
  return { title, formula, text: worded(text, name, path, model, words) };
}

/** A text in the words of what the model reads. @param {string} text @param {string} name @param {Path} path @param {Model} model @param {Words} words */
function worded(text, name, path, model, words) {
  const [kind] = name.split(".").slice(-2);
  return text
    .replaceAll("{hidden}", hiddenBy(kind, path, words))
    .replaceAll("{said}", SAID_OF[saidWhat(model)])
    .replaceAll("{one}", words.one)
    .replaceAll("{many}", words.many)
    .replaceAll("{input}", words.input);
}

/** What the mask of an attention hides. @param {string} kind @param {Path} path @param {Words} words */
function hiddenBy(kind, path, words) {
  if (words.one === "node") return "nodes without an edge from the query";
  return path.stack === "decoder" && kind === "self" ? "padding and later {many}" : "padding";
}

/** What a stack reads. A decoder behind an encoder reads the tokens that it has written, whatever the encoder reads.
 * @param {Model} model @param {Question} question @param {string} stack @returns {Words} */
export function wordsOf(model, question, stack) {
  const ofText = stack.startsWith("text.") || (stack === "decoder" && model.stacks.encoder);
  const reads = { file: stack.startsWith("image.") || (question.file && !ofText) };
  return { one: unit(model, reads), many: unit(model, reads, 2), input: unit(model, question) };
}

export const STRIPS =
  "Each strip shows entries of a vector: blue is positive, brown (amber in dark mode) is negative.";
export const outNote = (/** @type {Model} */ model) =>
  saidWhat(model) === "class"
    ? "On the right: the most probable class after this layer, read from the class token."
    : `On the right: the most probable ${saidWhat(model)} of each row after this layer.`;
/** @type {Record<string, string>} */
export const STREAMS = {
  transformer:
    "Each straight line is the residual stream of one row. A sublayer branches off: it reads from the stream, and ⊕ adds what it found. Curves show from which rows attention takes it.",
  recurrent:
    "The cell stands on the line, because no residual stream bypasses it: it passes a state on from row to row. Curves show what attention takes.",
  convolutional:
    "Each straight line is the residual stream of one row; a layer also reads the neighbouring rows, and ⊕ adds its output.",
  memory:
    "The line is the question; ⊕ adds the output of the hop. Curves show from which sentences it comes.",
};

// ------------------------------------------------------------------ which there are

/** Adds the stations of an attention, if the layer has it. @param {Column[]} list @param {Path} path @param {string} attention @param {string} norms */
function attentionColumns(list, path, attention, norms) {
  const isCross = attention.endsWith(".cross");
  /** @param {string} part @param {string} title @param {Partial<Column>} [more] */
  const add = (part, title, more = {}) => {
    const name = `${attention}.${part}`;
    if (path.stations[name] || more.links)
      list.push({ name, title, own: true, kind: "attention", ...more });
  };
  if (norms === "pre" || norms === "parallel") add("input", "Norm", { kind: "norm", branch: true });
  add("q", "Q");
  add("k", "K", { own: !isCross });
  add("v", "V", { own: !isCross });
  add("weights", isCross ? "Cross-attention" : "Self-attention", { links: attention });
  add("mixed", "A V");
  add("output", "W_O");
  const sum = norms === "post" ? "Add & Norm" : "Add";
  add("sum", sum, { kind: "sum", stream: true, adds: true });
}

/** The stations of a layer in the order in which they are computed. @param {Path} path @param {Model} model */
export function columns(path, model) {
  const { stack, layer } = path;
  const at = `${stack}.${layer}`;
  const norms = model.norms[stack];
  const kind = model.layers[stack];
  const isLast = layer === model.stacks[stack] - 1;
  const isPre = norms === "pre" || norms === "parallel";
  /** @type {Column[]} */
  const list = [];
  /** @param {string} name @param {string} title @param {Partial<Column>} more */
  const add = (name, title, more) => {
    if (path.stations[name]) list.push({ name, title, own: true, ...more });
  };
  if (layer) add(`${stack}.${layer - 1}.residual`, `After layer ${layer - 1}`, { stream: true });
  else add(`${stack}.embedded`, kind === "memory" ? "Question" : "Embedding", { stream: true });
  for (const part of ["self", "cross"])
    if (path.weights[`${at}.${part}`]) attentionColumns(list, path, `${at}.${part}`, norms);
  if (isPre) add(`${at}.feedforward.input`, "Norm", { kind: "norm", branch: true });
  add(`${at}.feedforward.hidden`, "Hidden", { kind: "feed" });
  add(`${at}.feedforward.output`, "Feed-forward", { kind: "feed" });
  // The state of a recurrent cell is not added to its input: it goes from row to row.
  add(`${at}.residual`, residualTitle(kind, norms, layer), {
    kind: kind === "recurrent" ? "feed" : "sum",
    stream: true,
    recurrent: kind === "recurrent",
    adds: kind === "memory" || (kind === "transformer" && norms !== "none"),
  });
  if (isLast) add(`${stack}.output`, isPre ? "Final norm" : "Output", { kind: "norm" });
  if (path.words)
    list.push({
      name: `${at}.words`,
      title: isLast ? outTitle(model) : "Logit lens",
      own: true,
      words: true,
      kind: "words",
    });
  return list;
}

/** What is said at a place: mostly a token of the vocabulary. @type {Record<string, string>} */
const SAID = { classify: "class", tag: "label" };
export const saidWhat = (/** @type {Model} */ model) =>
  SAID[model.task] ?? (model.task === "transcribe" && !model.stacks.decoder ? "letter" : "token");
/** @param {Model} model */
function outTitle(model) {
  const what = saidWhat(model);
  if (what === "token") return model.stacks.decoder ? "Next token" : "Token";
  return what[0].toUpperCase() + what.slice(1);
}
/** @param {string} kind @param {string} norms @param {number} layer */
function residualTitle(kind, norms, layer) {
  if (kind === "recurrent") return `Cell ${layer}`;
  if (kind === "convolutional") return `Layer ${layer}`;
  if (kind === "memory") return `Hop ${layer}: add`;
  return norms === "post" ? "Add & Norm" : "Add";
}
