// Learn: the path of one token through the model, with the numbers that flow. Each station has its formula and its values.

import { ask } from "./api.js";
import { answerCard } from "./answer.js";
import { asked, asking, unit } from "./ask_card.js";
import {
  clipped,
  failure,
  h,
  loading,
  percent,
  put,
  segment,
  shareBars,
  shown,
  slider,
  subscripts,
} from "./dom.js";
import { css, heat, inkOn } from "./heat.js";
import { columns, drawPath, saidWhat } from "./token_path.js";
import { placeNamer, seen } from "./media.js";
import { count, go, number } from "./route.js";
import { equation } from "./strips.js";
import { example } from "./worked_example.js";

const TOUR = 3200; // milliseconds at a station

// ------------------------------------------------------------------ what the stations are

// Of each part: title, formula, text. {one} and {many} are what the model reads: tokens, patches, moments.
const STATIONS = {
  embedded: [
    "Embedding",
    "x = E[token]",
    "Each {one} becomes a vector, and the input a matrix with one row per {one}. This row is the start of the residual stream.",
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

const titleOf = (stack) => stack.replace(".", " "); // image.encoder

// The formula of a station as the model's own parts have it, or undefined.
function ownFormula(name, path, model) {
  const parts = name.split("."),
    [kind, part] = parts.slice(-2),
    own = model.formulas[path.stack];
  if (name === `${path.stack}.output`) return own.output;
  if (kind === "feedforward") return part === "output" ? own.feedforward : own[part];
  if (kind === "cross" && (part === "q" || part === "k")) return undefined; // no rotation between two sequences
  if (part === "residual") return model.layers[path.stack] === "transformer" ? own.sum : undefined;
  return part === "output" ? undefined : own[part];
}

const SAID_OF = {
  token: "token of the vocabulary",
  letter: "letter",
  class: "class",
  label: "label",
};

function about(name, path, model, words) {
  const parts = name.split("."),
    part = parts.at(-1),
    kind = parts.at(-2);
  const layered = model.layers[path.stack];
  const baseline = BASELINE_ATTENTION[layered]?.[part];
  let entry = baseline ?? STATIONS[part] ?? [name, "", ""];
  if (part === "words" && path.layer < model.stacks[path.stack] - 1) entry = SO_FAR;
  if (kind === "feedforward") entry = FEED[part];
  else if (name === `${path.stack}.output`) entry = STACK_OUTPUT;
  else if (part === "residual" && layered !== "transformer") entry = OTHERS[layered];
  else if (part === "embedded" && layered === "memory")
    entry = [
      "The question",
      "u = Σ l ∘ B[word]",
      "The word embeddings of the question, weighted by position and summed. This vector is the query for the sentences of the story.",
    ];
  let [title, formula, text] = entry;
  if (!baseline && !(part === "embedded" && layered === "memory"))
    formula = ownFormula(name, path, model) ?? formula;
  for (const [sign, remark] of REMARKS) if (sign.test(formula)) text += ` ${remark}`;
  if (name === "encoder.output" && model.stacks.decoder) text += " The decoder attends to it.";
  if (kind === "cross" && (part === "k" || part === "v") && !baseline) {
    formula = formula.replace("x ", "memory ");
    text += " In cross-attention, keys and values come from the encoder output.";
  }
  if (part === "weights") {
    formula = path.weights[parts.slice(0, -1).join(".")].formula;
    if (formula.includes(" B "))
      text += " B is a bias that depends on the distance between query and key.";
  }
  if (part === "weights" && layered === "memory") title += ": from the question to the story";
  else if (part === "weights")
    title +=
      kind === "self"
        ? `: self-attention between ${words.many}`
        : ": cross-attention to the encoder";
  text = text.replaceAll("{hidden}", hiddenBy(kind, path, words));
  return {
    title,
    formula,
    text: text
      .replaceAll("{said}", SAID_OF[saidWhat(model)])
      .replaceAll("{one}", words.one)
      .replaceAll("{many}", words.many)
      .replaceAll("{input}", words.input),
  };
}

// What the mask of an attention hides.
function hiddenBy(kind, path, words) {
  if (words.one === "node") return "nodes without an edge from the query";
  return path.stack === "decoder" && kind === "self" ? "padding and later {many}" : "padding";
}

// What a stack reads. A decoder behind an encoder reads the tokens that it has written, whatever the encoder reads.
function wordsOf(model, question, stack) {
  const ofText = stack.startsWith("text.") || (stack === "decoder" && model.stacks.encoder);
  const reads = { file: stack.startsWith("image.") || (question.file && !ofText) };
  return { one: unit(model, reads), many: unit(model, reads, 2), input: unit(model, question) };
}

const STRIPS =
  "Each strip shows entries of a vector: blue is positive, brown (amber in dark mode) is negative.";
const outNote = (model) =>
  saidWhat(model) === "class"
    ? "On the right: the most probable class after this layer, read from the class token."
    : `On the right: the most probable ${saidWhat(model)} of each row after this layer.`;
const STREAMS = {
  transformer:
    "The line along a row is the residual stream; arcs show where it bypasses a sublayer, ⊕ where the output of the sublayer is added.",
  recurrent:
    "The arrows from row to row are the state that the cell passes on; no residual stream bypasses it.",
  convolutional:
    "The line along a row is the residual stream; each layer also reads the neighbouring rows, and ⊕ adds its output.",
  memory: "The line is the question; ⊕ adds the output of the hop.",
};

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
            h("th"),
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
function scoreTable({ width, scale, dots, bias, visible, weights }, who, labels, key) {
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
          ].map((text) => h("th", { class: { mask: "mask", "": "bar" }[text], text })),
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

// ------------------------------------------------------------------ what comes out

// Whether it has shares over a vocabulary at every place.
const writesTokens = (model) =>
  ["translate", "transcribe", "generate", "fill"].includes(model.task) &&
  model.speaks &&
  (model.medium !== "sound" || model.writes);

// The likeliest tokens at the row that is followed, by word, at a temperature. Null for a model that writes no tokens.
function nextTokens(state, model, question, path, marked, names, gone) {
  if (!writesTokens(model)) return null;
  const isLast = path.stack === Object.keys(model.stacks).at(-1);
  const bars = h("div", { id: "next" }, loading("")),
    title = h("h3"),
    hint = h("span", { class: "note" });
  let temperature = number(state.temperature, 1, [0.1, 3]),
    last = 0;
  async function draw() {
    const mine = ++last;
    try {
      const position = isLast ? path.rows[marked][0] : -1;
      const result = await ask("next_tokens", { ...question, position, temperature, top: 6 });
      if (gone() || mine !== last) return;
      const [read] = (names[marked] ?? "").split(" → "); // what it predicts is the title of the bars
      const name = isLast ? `“${shown(read)}”` : "the last decoder position";
      put(title, model.task === "fill" ? `Prediction at ${name}` : `Next token after ${name}`);
      put(
        bars,
        shareBars(result.shares, {
          texts: result.continued,
          write: (text) => go({ text, row: "", pin: "", step: "" }),
        }),
      );
      put(hint, result.continued?.some(Boolean) ? "Click a token to append it." : "");
    } catch (error) {
      if (!gone()) put(bars, failure(error));
    }
  }
  const change = (value) => {
    temperature = value;
    go({ temperature: value }, { quietly: true });
    draw();
  };
  draw();
  return h(
    "div",
    { id: "out" },
    h("div", { class: "bar" }, title, hint),
    bars,
    h(
      "div",
      { class: "bar" },
      slider("Temperature", temperature, [0.1, 3, 0.1], change, (v) => v.toFixed(1), {
        live: true,
      }),
      h("span", {
        class: "note",
        text: "p = softmax(W x / T): low temperature sharpens the distribution, high temperature flattens it.",
      }),
    ),
  );
}

// ------------------------------------------------------------------ pictures and sound

// Labels of rows by what they are, and of an image the patches themselves.
async function placeNames(path, model, question) {
  const rows = path.rows.map(([, label]) => label),
    memory = path.columns.map(([, label]) => label);
  if (!question.file) return { names: rows, memory, place: null };
  const ofInput = path.stack !== "decoder" || model.layers.encoder === undefined;
  const inputs = path.columns.length ? path.columns.at(-1)[0] + 1 : path.count; // the last place is always among them
  const place = await placeNamer(question, inputs);
  const result = {
    names: ofInput ? path.rows.map(([index]) => place(index)) : rows,
    memory: path.columns.map(([index]) => place(index)),
    place,
  };
  if (model.medium !== "image" || !ofInput) return result;
  const found = await ask("picture", {
    model: question.model,
    text: question.text,
    file: question.file,
  });
  const draw = (context, box) =>
    path.rows.forEach(([index], i) => patch(context, box(i), found, index - found.extras));
  draw.first = path.rows.findIndex(([index]) => index >= found.extras);
  return { ...result, picture: draw };
}

function patch(context, [x, y, size], found, number) {
  if (number < 0) return;
  const [high, wide] = found.shape,
    side = Math.floor(wide / found.side);
  const left = (number % found.side) * side,
    top = Math.floor(number / found.side) * side;
  const image = context.createImageData(side, side);
  for (let i = 0; i < side * side; i++) {
    const from = ((top + Math.floor(i / side)) * wide + left + (i % side)) * (found.shape[2] ?? 1);
    for (let c = 0; c < 3; c++)
      image.data[4 * i + c] = found.values[from + (found.shape[2] ? c : 0)];
    image.data[4 * i + 3] = 255;
  }
  const small = document.createElement("canvas");
  small.width = small.height = side;
  small.getContext("2d").putImageData(image, 0, 0);
  if (top < high) context.drawImage(small, x, y, size, size);
}

// The picture or the spectrogram itself, and on it what the followed row looks at; a place of it can be followed instead.
const PICTURE = { image: 250, sound: 430 }; // pixels
function pictured(path, model, question, { anatomy, marked, head, gone }) {
  const at = `${path.stack}.${path.layer}`,
    ofInput = path.stack !== "decoder" || model.layers.encoder === undefined;
  const name = ofInput ? `${at}.self` : `${at}.cross`;
  if (!question.file || !PICTURE[model.medium] || !path.weights[name]) return null;
  const node = h("div", { id: "pictured" }, loading(""));
  async function draw() {
    const map = await ask("attention", {
      ...question,
      name,
      heads: [head],
      rows: null,
      relative: true,
    });
    const picture = await seen(question, ofInput ? map.rows : anatomy.target, map.columns, {
      pin: (row) => go({ row, play: "" }),
      own: ofInput,
      size: PICTURE[model.medium],
    });
    if (gone()) return;
    const { values, shades, title } = map;
    picture.show(values, { marked: path.rows[marked][0], shades, title });
    put(node, picture.node);
  }
  draw().catch((error) => {
    if (!gone()) put(node, failure(error));
  });
  return node;
}

// ------------------------------------------------------------------ positions

// How the model tells places apart: the vectors, and the product of each with each.
const PLACES = 32;
const CELL = 19; // pixels at most, so that both maps are seen whole
function placing(state, model, question, gone) {
  const body = h("div", {}, loading()),
    stacks = Object.keys(model.stacks);
  const tower = stacks.find((name) => name.startsWith(question.file ? "image." : "text.")); // of two, the one that reads
  const stack = stacks.includes(state.places) ? state.places : (tower ?? stacks[0]);
  const words = wordsOf(model, question, stack);
  const node = h(
    "section",
    { class: "card", "aria-label": "Positions" },
    h(
      "header",
      {},
      h("h2", { text: `Position encoding of ${words.many}` }),
      stacks.length > 1
        ? segment(
            "Stack",
            stacks.map((name) => [name, titleOf(name)]),
            stack,
            (places) => go({ places }),
          )
        : null,
    ),
    body,
  );
  const drawn = (rows, columns, values, title) => {
    const wide = body.clientWidth; // beside each other where there is room for two
    const half = wide > 876 ? (wide - 16) / 2 : wide;
    const status = h("p", {
      class: "read faint",
      role: "status",
      text: "Point at a cell to see its value.",
    });
    const map = heat(rows, columns, {
      signed: true,
      room: Math.min(620, half || 620, 100 + CELL * columns.length),
      say: (i, j) => {
        status.textContent = `${rows[i]}, ${columns[j]}: ${values[i * columns.length + j].toFixed(3)}`;
      },
    });
    map.show(values, { title, scale: values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9) });
    return h("div", {}, h("h3", { text: title }), status, map.node);
  };
  const ofPicture = question.file && model.medium === "image" && words.one === "patch";
  ask("positions", { model: state.model, stack, length: PLACES }).then(
    async (found) => {
      const count = (list) => list.map((_, i) => String(i));
      // 2D sinusoidal encodings are of the patches alone; tables begin with the class token.
      const namer =
        ofPicture && found.what && !found.what.startsWith("2D sinusoidal")
          ? await placeNamer(question, PLACES)
          : String;
      if (gone()) return;
      if (found.what === null) {
        put(body, h("p", { class: "note", text: found.note }));
        return;
      }
      const places = found.products.map((_, i) => namer(i));
      const few = places.length === PLACES ? ` First ${PLACES} positions shown.` : "";
      const note = ofPicture
        ? "Patches are in reading order: if there is a band parallel to the diagonal, one row of patches away, vertical neighbours are similar."
        : found.note;
      put(
        body,
        h("p", {
          text: `Attention alone ignores the order of its ${words.many}. Position encoding of this model: ${found.what.replace(stack, titleOf(stack))}. ${note}${few}`,
        }),
        h(
          "div",
          { class: "two" },
          found.encodings
            ? drawn(
                places,
                count(found.encodings[0]),
                Float32Array.from(found.encodings.flat()),
                "One row per position, one column per dimension",
              )
            : null,
          drawn(
            places,
            places,
            Float32Array.from(found.products.flat()),
            found.encodings
              ? "Dot products of all pairs of positions"
              : "Added to the scores of all pairs of positions",
          ),
        ),
      );
    },
    (error) => {
      if (!gone()) put(body, failure(error));
    },
  );
  return node;
}

// ------------------------------------------------------------------ the page

// One line for the whole model: each layer is a button.
function overview(model, path, marked) {
  const stacks = Object.entries(model.stacks);
  const word = (kind) => (kind === "memory" ? "hop" : "layer");
  // With what the model would say after each layer, at the row that is followed.
  const guess = (stack, k) => {
    const said = stack === path.stack && path.words?.[k + 1][marked];
    return said ? ` ${clipped(shown(said[0]), 12)}` : "";
  };
  return h(
    "nav",
    { class: "whole-model", "aria-label": "Layers" },
    stacks.map(([stack, layers]) => [
      segment(
        `${titleOf(stack)} · ${layers} ${word(model.layers[stack])}${layers > 1 ? "s" : ""}${stack === path.stack && path.words?.[0][marked] ? ", with the prediction after each (logit lens)" : ""}`,
        [...Array(layers).keys()].map((k) => [`${stack}.${k}`, `${k}${guess(stack, k)}`]),
        stack === path.stack ? `${stack}.${path.layer}` : null,
        (name) => {
          const [to, layer] = [
            name.slice(0, name.lastIndexOf(".")),
            name.slice(name.lastIndexOf(".") + 1),
          ];
          go({ stack: to, layer, row: to === path.stack ? undefined : "", station: "" });
        },
      ),
      h("span", { class: "arrow", "aria-hidden": "true", text: "→" }),
    ]),
    h("span", { class: "label", text: "output" }),
  );
}

// The names of a tensor's rows, and of its columns where these are places too: what each place reads.
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
        h("th"),
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

// What a station is: its formula and a few words, above the drawing.
function caption(name, { path, model, words, names, marked }) {
  const { title, formula, text } = about(name, path, model, words);
  const isToken = name.endsWith(".embedded") && path.ids;
  return h(
    "div",
    { id: "caption", "aria-live": "polite" },
    h(
      "p",
      { class: "what" },
      h("strong", { text: title.split(":")[0] }),
      h("span", { class: "formula" }, subscripts(formula)),
    ),
    h("p", {
      text: isToken
        ? `${text} “${shown(names[marked])}” has token id ${path.ids[marked].toLocaleString("en")}.`
        : text,
    }),
  );
}

// The panel of a station: the numbers that pass it.
async function stationPanel(
  panel,
  name,
  { path, model, question, anatomy, place, words, names, marked, head, gone },
) {
  const { title } = about(name, path, model, words);
  const values = h("div", {}, loading());
  const heads = OF_HEADS.has(name.split(".").at(-1))
    ? (path.weights[name.split(".").slice(0, -1).join(".")]?.heads ?? 0)
    : 0;
  const station = path.stations[name],
    sum = name.endsWith(".sum"),
    out = name.endsWith(".words");
  const shape = sum ? [path.count, station.width] : anatomy.shapes[out ? "logits" : name];
  put(
    panel,
    h(
      "header",
      {},
      h("h2", { text: title }),
      h("code", { class: "faint", text: name }),
      shape
        ? h(
            "span",
            { class: "note" },
            "shape ",
            h("code", { id: "shape", text: shape.join(" × ") }),
          )
        : null,
      heads > 1
        ? segment(
            "Head",
            [...Array(heads).keys()].map((k) => [k, String(k)]),
            head,
            (k) => go({ head: k }),
          )
        : null,
    ),
    values,
  );
  if (out) {
    put(values, guesses(path, names, marked));
    return;
  }
  if (sum) {
    // a sum is no probe: some of its numbers came with the drawing
    put(values, numbers(station.values, names, [], { marked, cut: true }));
    return;
  }
  const found = await ask("tensor", { ...question, name, head });
  if (gone()) return;
  const isWeights = name.endsWith(".weights"),
    followed = path.rows[marked]?.[0] ?? 0;
  const [rows, labels] = axes(name, path, anatomy, place, found);
  let looked = null;
  if (isWeights) {
    const { scores } = await ask("scores", {
      ...question,
      name: name.slice(0, -8),
      head,
      row: followed,
    });
    if (gone()) return;
    const key = name.includes(".cross.") ? words.input : words.one;
    looked = scores
      ? scoreTable(scores, names[marked] ?? "", labels, key)
      : lookedAt(found.values[followed], names[marked] ?? "", labels);
  }
  const table = [
    numbers(found.values, rows, labels, {
      shades: found.shades,
      marked: followed,
      cut: found.shape.at(-1) > 16,
    }),
    h("p", {
      class: "note",
      text: isWeights
        ? "One row per query, one column per key; each row sums to 1."
        : `One row per ${/cross\.[kv]$/.test(name) ? words.input : words.one}${found.shape.at(-1) > 16 ? "; the first 16 columns" : ""}. Blue is positive, brown (amber in dark mode) is negative.`,
    }),
  ];
  put(
    values,
    looked ? h("div", { class: "two" }, h("div", {}, looked), h("div", {}, table)) : table,
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
function neighbour(stations, at, by, path, model) {
  const to = at + by;
  if (to >= 0 && to < stations.length) return { station: stations[to] };
  const layer = path.layer + by;
  if (layer >= 0 && layer < model.stacks[path.stack])
    // What leaves a layer is what the next one reads: there it is the first column.
    return { layer, station: `${path.stack}.${Math.min(layer, path.layer)}.residual` };
  // From the encoder to the decoder; the towers of a dual encoder do not follow each other.
  const [from, into] = by > 0 ? ["encoder", "decoder"] : ["decoder", "encoder"];
  if (path.stack !== from || !model.stacks[into]) return null;
  return by > 0
    ? { stack: into, layer: 0, row: "", station: `${into}.embedded` }
    : { stack: into, layer: model.stacks[into] - 1, row: "", station: `${into}.output` };
}

// Brings the drawing to the top of the page, where the panel below it would be out of sight.
function settle() {
  const panel = document.getElementById("station");
  if (!panel || panel.getBoundingClientRect().top < window.innerHeight - 220) return;
  const narrow = window.innerWidth < 980;
  document
    .querySelector(narrow ? ".tour" : "[aria-label=Path]")
    ?.scrollIntoView({ block: "start", behavior: STILL.matches ? "auto" : "smooth" });
}
const STILL = window.matchMedia("(prefers-reduced-motion: reduce)");

// Goes from station to station, by hand or by itself, through all layers to the end, as one would in a lecture.
function tour(stations, open, { path, model, atEnd, playing }) {
  const at = stations.indexOf(open),
    before = neighbour(stations, at, -1, path, model),
    after = neighbour(stations, at, 1, path, model);
  const to = (there, more = {}) => {
    settle();
    go({ ...there, ...more });
  };
  // However many stations were played, one step back leads to where it began.
  const timer = playing ? setTimeout(() => go(after ?? { play: "" }, { instead: true }), TOUR) : 0;
  atEnd(() => clearTimeout(timer));
  const first = { layer: 0, station: `${path.stack}.embedded` }; // from the end, playing begins again
  return h(
    "div",
    { class: "bar tour" },
    h("button", {
      type: "button",
      id: "back",
      text: "◂ Back",
      disabled: !before,
      onclick: () => to(before),
    }),
    h("button", {
      type: "button",
      id: "forward",
      class: "main",
      text: "Next step ▸",
      disabled: !after,
      onclick: () => to(after),
    }),
    h("button", {
      type: "button",
      id: "play",
      "aria-pressed": String(Boolean(playing)),
      text: playing ? "Pause" : "Play",
      onclick: () =>
        playing
          ? go({ play: "" }, { instead: true })
          : to(after ? { station: open } : first, { play: 1 }),
    }),
    h("span", {
      class: "note",
      text: `Step ${at + 1} of ${stations.length}. Select a row to follow it.`,
    }),
  );
}

export default async function learn({ main, state, gone, atEnd }) {
  const model = await ask("model", { model: state.model });
  if (gone()) return;
  const question = (({ off, ...rest }) => rest)(asked(state, model));
  const stage = h(
    "section",
    { class: "card", "aria-label": "Path" },
    loading("Running the model…"),
  );
  const panel = h("section", { class: "card", id: "station", "aria-label": "Step" }, loading(""));
  const answered = answerCard(state, model, question, { gone, bars: !writesTokens(model) });
  const asks = asking(state, model, "Trace");
  if (!Object.keys(model.stacks).length) {
    // a linear map has no path to follow
    put(
      main,
      asks,
      answered.node,
      h(
        "section",
        { class: "card", "aria-label": "Path" },
        h(
          "header",
          {},
          h("h2", { text: "A linear map without layers" }),
          h("span", {
            class: "note",
            text: `${model.kind}, saved as ${model.family}, ${model.parameters.toLocaleString("en")} parameters.`,
          }),
        ),
        h("p", { class: "formula" }, subscripts(model.linear)),
        h("p", {
          text: "Each forecast value is a weighted sum of the window, with the same weights for every channel. There is no attention, no norm and no residual stream: it is the baseline that a Transformer for time series has to beat.",
        }),
      ),
      example(),
    );
    await answered.ready;
    return;
  }
  if (!main.querySelector("#station"))
    put(main, asks, answered.node, stage, panel, placing(state, model, question, gone), example());
  try {
    const stacks = Object.keys(model.stacks),
      head = count(state.head, 0);
    const layer = count(state.layer, 0),
      row = count(state.row, NaN);
    const stack = stacks.includes(state.stack) ? state.stack : stacks.at(-1);
    const [path, anatomy] = await Promise.all([
      ask("path", { ...question, stack, layer, head, ...(Number.isNaN(row) ? {} : { row }) }),
      ask("anatomy", question),
    ]);
    const words = wordsOf(model, question, path.stack);
    const { names, memory, place, picture } = await placeNames(path, model, question);
    if (gone()) return;
    const chosen = path.rows.findIndex(([index]) => index === row),
      marked = chosen >= 0 ? chosen : usualRow(path, model);
    const list = columns(path, model),
      stations = list.filter((column) => column.name).map((column) => column.name);
    const open = stations.includes(state.station)
      ? state.station
      : (stations.find((name) => name.endsWith(".weights")) ?? stations[0]);
    const choose = {
      station: (station) => {
        settle();
        go({ station, play: "" });
      },
      token: (i) => go({ row: path.rows[i][0], play: "" }),
    };
    const few =
      path.count > path.rows.length
        ? ` Showing ${path.rows.length} of ${path.count} ${words.many}.`
        : "";
    const ownHead = Math.min(head, ...Object.values(path.weights).map((each) => each.head));
    const out = nextTokens(state, model, question, path, marked, names, gone),
      seenPicture = pictured(path, model, question, { anatomy, marked, head: ownHead, gone });
    const drawing = drawPath(path, model, { names, memory, marked, open, choose, picture });
    put(
      stage,
      h(
        "div",
        { class: "stage-top" },
        h(
          "div",
          {},
          h(
            "header",
            {},
            h("h2", {
              text: `The path of “${shown(names[marked])}” through ${titleOf(path.stack)} ${model.layers[path.stack] === "memory" ? "hop" : "layer"} ${path.layer}`,
            }),
            h("span", {
              class: "note",
              text: `${model.kind}, saved as ${model.family}, ${model.parameters.toLocaleString("en")} parameters.${few}`,
            }),
          ),
          overview(model, path, marked),
          tour(stations, open, { path, model, atEnd, playing: state.play }),
          caption(open, { path, model, words, names, marked }),
          equation(
            list.find((column) => column.name === open),
            list,
            path,
            { marked, names, memory, norms: model.norms[path.stack] },
          ),
          out && seenPicture,
        ),
        out ?? seenPicture,
      ),
      drawing.node,
      h("p", {
        class: "note wide",
        text: `${STREAMS[model.layers[path.stack]]} ${STRIPS}${path.words ? ` ${outNote(model)}` : ""}`,
      }),
    );
    put(
      main,
      asks,
      answered.node,
      stage,
      panel,
      placing(state, model, question, gone),
      main.querySelector("#worked") ?? example(),
    );
    drawing.reveal();
    await Promise.all([
      answered.ready,
      stationPanel(panel, open, {
        path,
        model,
        question,
        anatomy,
        place,
        words,
        names,
        marked,
        head,
        gone,
      }),
    ]);
  } catch (error) {
    if (gone()) return;
    // An input that cannot be read is refused by the card of the answer; what else fails is shown in place of the path.
    const refused = error.problem && !(await answered.ready);
    if (gone()) return;
    put(
      main,
      asks,
      answered.node,
      refused ? null : put(stage, failure(error)),
      placing(state, model, question, gone),
      main.querySelector("#worked") ?? example(),
    );
    if (!error.problem) throw error;
  }
}

// Followed at first: the class token, the masked word, a letter, or the last place, from which the next token comes.
function usualRow(path, model) {
  const mask = path.rows.findIndex(([, label]) => label === model.mask);
  if (mask >= 0) return mask;
  // Of a recording, the first moment at which a letter is heard.
  const heard = saidWhat(model) === "letter" ? (path.words?.at(-1) ?? []) : [];
  const letter = heard.findIndex((guess) => guess && guess[0] !== "(blank)");
  if (letter >= 0) return letter;
  if (model.medium === "image" || model.task === "classify") return 0;
  if (path.stack === "decoder" && model.task === "generate") return path.rows.length - 1;
  return Math.min(1, path.rows.length - 1);
}
