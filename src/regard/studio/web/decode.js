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
  s,
  segment,
  shown,
  slider,
  textWidth,
} from "./dom.js";
import { asked, asking } from "./ask_card.js";
import { scaleSegment } from "./chart.js";
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
  const controls = h(
    "div",
    { class: "bar" },
    scaleSegment(state),
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
  let at = Math.min(count(state.step, 0), found.steps.length - 1),
    timer = 0;
  const words = h("div", { class: "words", role: "group", "aria-label": "Generated tokens" });
  const picture = h("div", { id: "bars" });
  const title = h("h3", { id: "which" });
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
          text: shown(each.token),
          onclick: () => move(i),
        }),
      ),
    );
    title.textContent = `Step ${at + 1} of ${found.steps.length}: “${shown(step.token)}” is chosen`;
    put(picture, bars(step, state.scale === "log" ? logarithmic : (share) => share, sample));
    back.disabled = at === 0;
    next.disabled = at === found.steps.length - 1;
  }
  put(
    body,
    heading(question, model, found.output),
    words,
    h("div", { class: "bar", style: { margin: ".9rem 0" } }, back, next, play, title),
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

function tree(found, pruned) {
  const nodes = found.nodes.map((node, i) => ({
    ...node,
    i,
    faint: node.fate === "pruned" || node.fate === "left",
  }));
  const shownNodes = nodes.filter((node) => pruned || !node.faint);
  // A column a step, in the order of the parents: the answer is the first line, and no branch crosses another.
  const rank = (node) => (node.fate === "best" ? 0 : node.faint ? 2 : 1);
  const row = new Map([[0, 0]]);
  const steps = new Map();
  for (const node of shownNodes)
    if (node.i) steps.set(node.step, [...(steps.get(node.step) || []), node]);
  for (const column of steps.values()) {
    column.sort(
      (a, b) =>
        row.get(a.parent) - row.get(b.parent) ||
        rank(a) - rank(b) ||
        b.log_probability - a.log_probability,
    );
    column.forEach((node, i) => row.set(node.i, i));
  }
  const following = Math.max(1, ...[...steps.values()].map((column) => column.length));
  const name = (node) =>
    node.i ? clipped(shown(node.token), 14) + (node.score !== null ? " ●" : "") : "start";
  const box = Math.max(46, ...shownNodes.map((node) => textWidth(name(node), "700 14px"))) + 66; // and the number behind it
  const column = box + 30,
    tall = 32;
  const x = (node) => 8 + (node.step + 1) * column,
    y = (node) => 20 + row.get(node.i) * tall;
  const width = 8 + (Math.max(...shownNodes.map((n) => n.step)) + 2) * column,
    height = following * tall + 14;
  const kind = (node) => (node.fate === "best" ? "best" : node.faint ? "faint" : "");
  const drawing = s(
    "svg",
    {
      class: "tree",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": found.title,
    },
    shownNodes
      .filter((node) => node.i)
      .map((node) => {
        const p = nodes[node.parent],
          a = x(p) + box,
          b = x(node);
        return s("path", {
          class: `edge ${kind(node)}`,
          d: `M${a} ${y(p)}C${a + 18} ${y(p)} ${b - 18} ${y(node)} ${b} ${y(node)}`,
          "stroke-width": 1.6,
        });
      }),
    shownNodes.map((node) =>
      s(
        "g",
        {
          class: node.fate === "best" ? "best" : node.faint ? "faintly" : "",
          "data-fate": node.fate,
        },
        s("title", {
          text: `${FATES[node.fate]}; log-probability ${node.log_probability.toFixed(3)}${node.score === null ? "" : `, score ${node.score.toFixed(3)}`}`,
        }),
        s("rect", { x: x(node), y: y(node) - 12, width: box, height: 24, rx: 7 }),
        s("text", { class: "name", x: x(node) + 9, y: y(node) + 5, text: name(node) }),
        node.i
          ? s("text", {
              class: "sum",
              x: x(node) + box - 7,
              y: y(node) + 4,
              "text-anchor": "end",
              text: node.log_probability.toFixed(2),
            })
          : null,
      ),
    ),
  );
  return h(
    "div",
    { class: "figure" },
    h(
      "div",
      { class: "scroll tall", tabindex: 0, "aria-label": "Beam search tree, scrollable" },
      drawing,
    ),
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
      text: `${found.note} Dashed: pruned, or unfinished when the search stopped.`,
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
      found.tokens.map((n, i) => row(`${n} token${n > 1 ? "s" : ""}`, found.used[i])),
    ),
    h("p", {
      class: "note",
      text: `${found.note}${found.source ? " The part of the source does not grow." : ""}`,
    }),
  );
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
