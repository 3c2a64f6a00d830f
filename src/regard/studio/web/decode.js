// Decode: how the next token is chosen, step by step, and what a beam search pruned.

import { ask } from "./api.js";
import { answerCard, inputWarnings } from "./answer.js";
import {
  clipped,
  failure,
  h,
  loading,
  percent,
  put,
  roving,
  s,
  segment,
  shown,
  slider,
  textWidth,
} from "./dom.js";
import { asked, asking } from "./ask_card.js";
import { count, go, number } from "./route.js";
import { takeAway } from "./take_away.js";

const MOST = 240; // letters of a heading

// On the logarithmic scale, a millionth is the left edge.
const LEAST = 1e-6;
const logarithmic = (share) => (share <= LEAST ? 0 : 1 - Math.log(share) / Math.log(LEAST));

// What is left to draw from is another number only where a token is drawn.
function bars(step, width, sample) {
  const sorted = [...step.candidates].sort((a, b) => b.probability - a.probability);
  return h(
    "div",
    { class: "candidates" },
    sorted.map((c) => [
      h("span", {
        class: `word${c.id === step.id ? " taken" : ""}`,
        text: (c.id === step.id ? "▸ " : "") + shown(c.token),
      }),
      h(
        "span",
        {
          class: "track",
          role: "img",
          "aria-label": `${(100 * c.probability).toFixed(1)} percent`,
        },
        h("span", { class: "own", style: { width: 100 * width(c.probability) + "%" } }),
        sample ? h("span", { class: "drawn", style: { width: 100 * width(c.drawn) + "%" } }) : null,
      ),
      h("span", { class: "number", text: percent(c.probability) }),
    ]),
  );
}

// What has been written after some tokens; at the last one the model's own text, whatever its tokenizer joins.
function writtenSoFar(found, at) {
  if (at >= found.steps.length - 1) return found.output;
  const tokens = found.steps.slice(0, at + 1).map(({ token }) => token);
  const joined = tokens.some((token) => /^[▁Ġ]/.test(token))
    ? tokens.join("").replaceAll(/[▁Ġ]/g, " ")
    : tokens.join(" ").replaceAll(" ##", "");
  return `${joined.trim()} …`;
}

// What was asked and what is written: another sentence, or how the first one goes on.
function heading(question, model, output) {
  const goesOn = model.task === "generate";
  const written = h(goesOn ? "mark" : "span", {
    id: "output",
    text: goesOn ? output.trim() : output,
  });
  const between = goesOn ? " " : h("span", { class: "arrow", text: "→" });
  return h(
    "p",
    { class: "model-output" },
    clipped(question.text, MOST),
    question.text ? between : null,
    written,
  );
}

async function stepping(place, { state, model, question, gone, atEnd }) {
  const sample = state.how === "sample";
  const settings = {
    sample,
    temperature: number(state.temperature, 1, [0.1, 3]),
    top_k: count(state.topk, 0),
    top_p: number(state.topp, 1, [0.05, 1]),
    seed: count(state.seed, 0),
  };
  const scales = h("span");
  const controls = h(
    "div",
    { class: "bar" },
    scales,
    segment(
      "Method",
      [
        ["greedy", "greedy"],
        ["sample", "sampling"],
      ],
      sample ? "sample" : "greedy",
      (how) => go({ how, step: "" }),
    ),
    sample
      ? [
          slider(
            "Temperature",
            settings.temperature,
            [0.1, 3, 0.1],
            (v) => go({ temperature: v, step: "" }),
            (v) => v.toFixed(1),
          ),
          slider(
            "Top-k",
            settings.top_k,
            [0, 50, 1],
            (v) => go({ topk: v, step: "" }),
            (v) => (v === 0 ? "off" : String(v)),
          ),
          slider(
            "Top-p",
            settings.top_p,
            [0.05, 1, 0.05],
            (v) => go({ topp: v, step: "" }),
            (v) => (v === 1 ? "off" : v.toFixed(2)),
          ),
          h("button", {
            type: "button",
            text: `Sample again (seed ${settings.seed})`,
            onclick: () => go({ seed: settings.seed + 1, step: "" }),
          }),
        ]
      : null,
  );
  const body = h("div", {}, loading("Decoding…"));
  put(place, controls, body);
  const found = await ask("steps", { ...question, ...settings });
  if (gone()) return;
  const second = (step) => step.candidates.map((c) => c.probability).sort((a, b) => b - a)[1] ?? 1;
  const isSure = found.steps.every((step) => second(step) < 0.01);
  const isLog = (state.scale ?? (isSure ? "log" : "")) === "log";
  const kinds = ["linear", "log"].map((kind) => [kind, kind]);
  put(
    scales,
    segment("Scale", kinds, isLog ? "log" : "linear", (scale) => go({ scale })),
  );
  let at = Math.min(count(state.step, 0), found.steps.length - 1),
    timer = 0;
  const words = h("div", { class: "words", role: "group", "aria-label": "Generated tokens" });
  const picture = h("div", { id: "bars" });
  const title = h("h2", { id: "which" }),
    said = h("div", { "aria-live": "polite" });
  const back = h("button", { type: "button", text: "◂ Back", onclick: () => move(at - 1) });
  const next = h("button", {
    type: "button",
    class: "main",
    text: "Next ▸",
    onclick: () => move(at + 1),
  });
  const play = h("button", {
    type: "button",
    text: "Play",
    onclick: () => (timer ? stop() : start()),
  });
  const all = h("button", {
    type: "button",
    text: "All",
    onclick: () => move(found.steps.length - 1),
  });
  const start = () => {
    if (at === found.steps.length - 1) move(0);
    play.textContent = "Pause";
    timer = setInterval(() => (at < found.steps.length - 1 ? move(at + 1) : stop()), 800);
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  atEnd(stop);
  function move(to) {
    at = Math.max(0, Math.min(found.steps.length - 1, to));
    go({ step: at }, { quietly: true });
    const step = found.steps[at];
    put(
      words,
      found.steps.map((each, i) =>
        h("button", {
          type: "button",
          class: i > at ? "later" : "",
          "aria-pressed": String(i === at),
          "aria-label": i > at ? `step ${i + 1}` : shown(each.token),
          text: i > at ? "·" : shown(each.token),
          onclick: () => move(i),
        }),
      ),
    );
    put(said, heading(question, model, writtenSoFar(found, at)));
    title.textContent = `Step ${at + 1} of ${found.steps.length}: “${shown(step.token)}” is chosen`;
    // Bars reach to the largest of the step; of a model that is sure, the others are seen on a logarithmic scale only.
    const most = Math.max(...step.candidates.map((c) => Math.max(c.probability, c.drawn)));
    put(picture, bars(step, isLog ? logarithmic : (share) => share / most, sample));
    back.disabled = at === 0;
    next.disabled = all.disabled = at === found.steps.length - 1;
  }
  put(
    body,
    said,
    words,
    h("div", { class: "bar", style: { margin: ".9rem 0" } }, back, next, play, all, title),
    picture,
    sample
      ? [
          h(
            "p",
            { class: "bar" },
            h("span", { class: "key" }, h("i", { class: "own" }), "model probability"),
            h("span", { class: "key" }, h("i", { class: "drawn" }), "sampling distribution"),
          ),
          h("p", {
            class: "note",
            text: "A low temperature sharpens the distribution, a high one flattens it. Top-k and top-p then remove improbable tokens, and one of the others is sampled.",
          }),
        ]
      : h("p", {
          class: "note",
          text: `Each step chooses the most probable token.${model.task === "translate" ? " Look uses beam search, which may find a more probable sentence." : ""}`,
        }),
  );
  move(at);
}

// What became of a prefix.
const FATES = {
  open: "extended",
  finished: "finished hypothesis",
  pruned: "pruned",
  left: "unfinished when the search stopped",
  best: "best hypothesis",
};

const rankOf = (node) => (node.fate === "best" ? 0 : node.faint ? 2 : 1);

// A column a step, in the order of the parents: the answer is the first line, and no branch crosses another. As wide as its
// widest word, so that a search fits the page.
const NODE = { tall: 32, gap: 20, pad: 9 };
function placedTree(nodes, name) {
  const columns = new Map();
  for (const node of nodes) columns.set(node.step, [...(columns.get(node.step) || []), node]);
  const at = new Map();
  let x = 6;
  for (const step of [...columns.keys()].sort((a, b) => a - b)) {
    const column = columns.get(step);
    const above = (node) => at.get(node.parent)?.row ?? 0;
    column.sort(
      (a, b) =>
        above(a) - above(b) || rankOf(a) - rankOf(b) || b.log_probability - a.log_probability,
    );
    const width =
      Math.max(...column.map((node) => textWidth(name(node), "700 14px"))) + 2 * NODE.pad;
    column.forEach((node, row) => at.set(node.i, { row, x, y: 20 + row * NODE.tall, width }));
    x += width + NODE.gap;
  }
  const rows = Math.max(...[...columns.values()].map((column) => column.length));
  return { at, width: x - NODE.gap + 8, height: rows * NODE.tall + 14 };
}

// A hypothesis in words, from the start to a node.
function hypothesis(nodes, node) {
  const path = [];
  for (let each = node; each.i; each = nodes[each.parent]) path.unshift(each);
  return path;
}

function tree(found, pruned) {
  const nodes = found.nodes.map((node, i) => ({
    ...node,
    i,
    faint: node.fate === "pruned" || node.fate === "left",
  }));
  const list = nodes.filter((node) => pruned || !node.faint);
  const name = (node) =>
    node.i ? clipped(shown(node.token), 14) + (node.score !== null ? " ●" : "") : "start";
  const { at, width, height } = placedTree(list, name);
  const told = h("p", { class: "read", role: "status", id: "hypothesis" });
  const drawn = new Map();
  function tell(node) {
    const path = hypothesis(nodes, node);
    for (const [i, element] of drawn) element.classList.toggle("chosen", path.some((each) => each.i === i)); // prettier-ignore
    const words = path.map((each) => shown(each.token)).join(" ") || "start";
    const score = node.score === null ? "" : `, score ${node.score.toFixed(3)}`;
    put(told, h("strong", { text: words }), ` · ${FATES[node.fate]} · log-probability ${node.log_probability.toFixed(3)}${score}`); // prettier-ignore
  }
  const edge = (node) => {
    const [a, b] = [at.get(node.parent), at.get(node.i)];
    const kind = node.fate === "best" ? "best" : node.faint ? "faint" : "";
    const [x, bend] = [a.x + a.width, NODE.gap * 0.6];
    const d = `M${x} ${a.y}C${x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`;
    return s("path", { class: `edge ${kind}`, d, "stroke-width": 1.6 });
  };
  const box = (node) => {
    const { x, y, width: wide } = at.get(node.i);
    const element = s(
      "g",
      {
        class: node.fate === "best" ? "best" : node.faint ? "faintly" : "",
        "data-fate": node.fate,
        role: "button",
        tabindex: -1,
        "aria-label": `${name(node)}, ${FATES[node.fate]}`,
        onclick: () => tell(node),
        onfocus: () => tell(node),
      },
      s("title", {
        text: `${FATES[node.fate]}; log-probability ${node.log_probability.toFixed(3)}${node.score === null ? "" : `, score ${node.score.toFixed(3)}`}`,
      }),
      s("rect", { x, y: y - 12, width: wide, height: 24, rx: 7 }),
      s("text", { class: "name", x: x + NODE.pad, y: y + 5, text: name(node) }),
    );
    drawn.set(node.i, element);
    return element;
  };
  const drawing = s(
    "svg",
    {
      class: "tree",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": found.title,
    },
    list.filter((node) => node.i).map(edge),
    list.map(box),
  );
  const byRow = Map.groupBy(list, (node) => at.get(node.i).row);
  roving(drawing, [...byRow.values()].map((row) => row.map((node) => drawn.get(node.i)))); // prettier-ignore
  tell(nodes.findLast((node) => node.fate === "best") ?? nodes[0]);
  return h(
    "div",
    { class: "figure" },
    told,
    h("div", { class: "scroll tall tree-room" }, drawing),
    takeAway(drawing, "beam search"),
  );
}

async function searching(place, { state, model, question, gone }) {
  const width = Math.floor(number(state.width, 4, [1, 10])),
    alpha = number(state.alpha, 0.6, [0, 2]),
    pruned = state.pruned !== "no";
  const body = h("div", {}, loading("Running beam search…"));
  put(
    place,
    h(
      "div",
      { class: "bar" },
      slider("Beam width", width, [1, 10, 1], (v) => go({ width: v })),
      slider(
        "Length penalty α",
        alpha,
        [0, 2, 0.1],
        (v) => go({ alpha: v }),
        (v) => v.toFixed(1),
      ),
      h("button", {
        type: "button",
        "aria-pressed": String(pruned),
        text: "Pruned hypotheses",
        onclick: () => go({ pruned: pruned ? "no" : "" }),
      }),
    ),
    body,
  );
  const found = await ask("beam", { ...question, width, alpha });
  if (gone()) return;
  put(
    body,
    heading(question, model, found.output),
    tree(found, pruned),
    h("p", {
      class: "note",
      text: "The first line is the best hypothesis. ●: finished. Dashed: pruned, or unfinished when the search stopped. Select a node for its hypothesis and log-probability.",
    }),
  );
}

const bytes = (n) =>
  n >= 1e6
    ? `${(n / 1e6).toFixed(2)} MB`
    : n >= 1e4
      ? `${(n / 1e3).toFixed(1)} kB`
      : `${n.toLocaleString("en")} bytes`;

// What is remembered between steps: it grows with every token that is written.
// Of a decoder that remembers the same, however much it has written.
const FIXED = {
  recurrent: [
    "Each step reads only the newest token and the state of the cell, which summarizes all tokens before it.",
    "The state of one sequence",
  ],
  convolutional: [
    "Each step reads only the newest token and those before it within the window of each layer.",
    "The layer inputs within the windows, for one sequence",
  ],
};
// It grows in a straight line: some lengths show it.
const SHOWN = 6;
function few(list) {
  const count = Math.min(SHOWN, list.length);
  const last = list.length - 1;
  return Array.from({ length: count }, (_, i) => Math.round((i * last) / Math.max(1, count - 1)));
}

async function remembering(place, { model, question, gone }) {
  put(place, loading("Decoding…"));
  const found = await ask("cache", question);
  if (gone()) return;
  const most = Math.max(...found.used, found.source);
  const row = (name, value, kind = "own") => [
    h("span", { class: "word", text: name }),
    h(
      "span",
      { class: "track" },
      h("span", { class: kind, style: { width: (100 * value) / most + "%" } }),
    ),
    h("span", { class: "number", text: bytes(value) }),
  ];
  const fixed = FIXED[model.layers.decoder];
  if (fixed) {
    const [text, what] = fixed;
    put(
      place,
      h("p", { text }),
      h("p", {
        class: "model-output",
        id: "cached",
        text: `${bytes(found.used.at(-1))}, independent of the length`,
      }),
      h(
        "div",
        { class: "candidates memory" },
        found.source ? row("source", found.source, "drawn") : null,
        row("state", found.used.at(-1)),
      ),
      h("p", {
        class: "note",
        text: `${what}. Beam search needs as much for each hypothesis.${found.source ? " The encoder output is stored as well, for attention." : ""}`,
      }),
    );
    return;
  }
  const each =
    (found.used.at(-1) - found.used[0]) / Math.max(1, found.tokens.at(-1) - found.tokens[0]);
  put(
    place,
    h("p", {
      text: "Each step reads only the newest token. The keys and values of earlier tokens are cached, so nothing is computed twice; in return, memory grows with the length.",
    }),
    h("p", {
      class: "model-output",
      id: "cached",
      text: `${bytes(Math.round(each))} per generated token`,
    }),
    h(
      "div",
      { class: "candidates memory" },
      found.source ? row("source", found.source, "drawn") : null,
      few(found.tokens).map((i) => {
        const n = found.tokens[i];
        return row(`${n} token${n > 1 ? "s" : ""}`, found.used[i]);
      }),
    ),
    h("p", {
      class: "note",
      text: `${found.note}${found.source ? " The part of the source does not grow." : ""}`,
    }),
    await calculating(model, question, found),
  );
}

// With the sizes of this model's own keys, where its decoder has self-attention.
async function calculating(model, question, found) {
  const { shapes } = await ask("anatomy", question);
  const [heads, , width] = shapes["decoder.0.self.k"] ?? [];
  if (!width) return null;
  return calculator({ layers: model.stacks.decoder, heads, width, length: found.tokens.at(-1), batch: 1, dtype: "float32" }); // prettier-ignore
}

// ------------------------------------------------------------------ the cache of other models

const DTYPES = { float32: 4, "float16, bfloat16": 2, "int8, float8": 1 };
const FIELDS = [
  ["layers", "Layers", 1, 200],
  ["heads", "Key–value heads", 1, 256],
  ["width", "Head size", 1, 1024],
  ["length", "Tokens", 1, 10_000_000],
  ["batch", "Sequences", 1, 100_000],
];
// Key–value heads and sizes as their papers give them.
const KNOWN = {
  "GPT-2 (124M)": { layers: 12, heads: 12, width: 64, length: 1024, dtype: "float16, bfloat16" },
  "LLaMA 2 7B": { layers: 32, heads: 32, width: 128, length: 4096, dtype: "float16, bfloat16" },
  "LLaMA 2 70B, grouped queries": { layers: 80, heads: 8, width: 128, length: 4096, dtype: "float16, bfloat16" },
}; // prettier-ignore

export const cacheBytes = ({ layers, heads, width, length, batch, dtype }) =>
  2 * layers * heads * width * length * batch * DTYPES[dtype];

// Keys and values of any decoder, by its sizes; it begins with those of this model.
function calculator(own) {
  const sizes = { batch: 1, ...own };
  const output = h("output", { id: "calculated" });
  const form = h("div", { class: "bar calculator" });
  const large = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(2)} GB` : bytes(n));
  const tell = () => {
    const { layers, heads, width, length, batch, dtype } = sizes;
    const product = `2 · ${layers} · ${heads} · ${width} · ${length.toLocaleString("en")} · ${batch} · ${DTYPES[dtype]} bytes`;
    put(output, h("strong", { text: large(cacheBytes(sizes)) }), h("span", { class: "note", text: ` = ${product}` })); // prettier-ignore
  };
  const field = ([key, label, least, most]) =>
    h(
      "label",
      { class: "field" },
      label,
      h("input", {
        type: "number",
        min: least,
        max: most,
        value: sizes[key],
        "data-size": key,
        oninput: (event) => {
          sizes[key] = Math.min(
            most,
            Math.max(least, Math.floor(Number(event.target.value)) || least),
          );
          tell();
        },
      }),
    );
  const choice = (label, options, chosen, change) => {
    const list = h("select", { "aria-label": label, onchange: (event) => change(event.target.value) }, options.map((text) => h("option", { value: text, text }))); // prettier-ignore
    list.value = chosen;
    return h("label", { class: "field" }, label, list);
  };
  const names = ["this model", ...Object.keys(KNOWN)];
  const draw = (name) => {
    Object.assign(sizes, name === "this model" ? own : KNOWN[name]);
    put(
      form,
      choice("Sizes of", names, name, draw),
      FIELDS.map(field),
      choice("Numbers", Object.keys(DTYPES), sizes.dtype, (dtype) => {
        sizes.dtype = dtype;
        tell();
      }),
    );
    tell();
  };
  draw("this model");
  return [
    h("h2", {
      text: "Any decoder: keys and values · layers · heads · head size · tokens · sequences · bytes of a number",
    }),
    form,
    h("p", {}, output),
    h("p", {
      class: "note",
      text: "With grouped queries several query heads share one key–value head. A beam of four has four sequences.",
    }),
  ];
}

export default async function decode({ main, state, gone, atEnd }) {
  const model = await ask("model", { model: state.model });
  if (gone()) return;
  if (!model.writes) {
    const question = asked(state, model),
      answered = answerCard(state, model, question, { gone });
    put(
      main,
      asking(state, model, "Run"),
      answered.node,
      h(
        "section",
        { class: "card" },
        h("h2", { text: "This model does not generate tokens" }),
        h("p", {
          text: `${state.model} (${model.kind}) computes its output in one pass, shown above. To see decoding step by step, open a translation or language model.`,
        }),
      ),
    );
    await answered.ready;
    return;
  }
  const question = asked(state, model);
  const views = {
    steps: ["Step by step", stepping],
    beam: ["Beam search", searching],
    cache: [FIXED[model.layers.decoder] ? "State" : "KV cache", remembering],
  };
  const how = Object.hasOwn(views, state.view) ? state.view : "steps";
  const place = h("div", {}, loading()),
    warned = h("div");
  put(
    main,
    asking(state, model, "Decode"),
    h(
      "section",
      { class: "card", "aria-label": "Decoding" },
      h(
        "header",
        {},
        segment(
          "View",
          Object.entries(views).map(([name, [title]]) => [name, title]),
          how,
          (view) => go({ view }),
        ),
      ),
      warned,
      place,
    ),
  );
  // A refusal of the input is shown by the view itself.
  ask("answer", question).then(
    ({ warnings }) => {
      if (!gone()) put(warned, inputWarnings(warnings));
    },
    () => {},
  );
  await views[how][1](place, { state, model, question, gone, atEnd }).catch((error) => {
    if (!gone()) put(place, failure(error));
  });
}
