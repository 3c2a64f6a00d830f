// What the model answers: the translation, the class, the filled word, the next token, the transcript, the matching caption.

import { ask } from "./api.js";
import { clipped, failure, h, loading, percent, put, shareBars, shown } from "./dom.js";
import { go, offList, offText } from "./route.js";

const MOST = 240; // letters of a heading

const TITLES = {
  translate: "Translation",
  transcribe: "Transcript",
  generate: "Next token",
  fill: "Masked word",
  classify: "Predicted class",
  answer: "Answer",
  caption: "Best caption",
  embed: "Embedding",
  tag: "Labels",
  detect: "Replaced tokens",
  follows: "Next sentence prediction",
  regress: "Predicted value",
  forecast: "Forecast",
};

export const captionsOf = (state, model) =>
  state.captions
    ? state.captions
        .split("|")
        .map((each) => each.trim())
        .filter(Boolean)
    : model.captions;

// The words of an answer, those marked that it did not have before.
export const difference = (usual, now) => {
  const before = new Set(usual.split(" "));
  return now
    .split(" ")
    .flatMap((word, i) => [
      i ? " " : "",
      before.has(word) ? word : h("span", { class: "changed", text: word }),
    ]);
};

// The end of a long prompt: what is generated follows it.
const lastOf = (text, most) => (text.length > most ? "…" + text.slice(1 - most) : text);

// The answer itself, large.
function headline(answer, usual, question, model) {
  const output = (content) => h("span", { id: "output" }, content);
  const changed = usual && usual.text !== answer.text;
  const text = clipped(answer.text, MOST);
  const long = question.text.length + answer.text.length > 160 ? " long" : "";
  const arrow = h("span", { class: "arrow", text: "→" });
  if (answer.task === "fill" && answer.text) {
    const [before, after] = (answer.masked ?? question.text).split(model.mask);
    return h(
      "p",
      { class: `model-output${long}` },
      clipped(before, MOST),
      /\w$/.test(before) ? " " : "",
      output(h("mark", { text: shown(answer.text) })),
      clipped(after ?? "", MOST),
    );
  }
  if (answer.task === "generate")
    return h(
      "p",
      { class: `model-output${long}` },
      lastOf(question.text, MOST),
      " ",
      output(h("mark", { text: shown(answer.text) })),
    );
  if (answer.task === "transcribe")
    return h(
      "p",
      { class: "model-output" },
      "“",
      output(text || " "),
      "”",
      text ? null : h("span", { class: "note", text: " empty transcript" }),
    );
  // A text embedding has no words; a translation may have none.
  const writes = answer.text || answer.task === "translate";
  const source = question.text
    ? h(
        "span",
        { class: "source" },
        clipped(question.text, MOST),
        writes ? [arrow, h("wbr")] : null,
      )
    : [];
  return h(
    "p",
    { class: `model-output${long}` },
    source,
    output(changed && answer.task === "translate" ? difference(usual.text, text) : text),
    writes && !text ? h("span", { class: "note", text: "(empty)" }) : null,
  );
}

// Where heads are off: what the answer was with all of them.
function ablation(answer, usual, surprise, off, compares) {
  if (!off.length) return null;
  const best = (one) =>
    one.shares[0] ? `${one.text} (${percent(one.shares[0].probability)})` : one.text;
  const same = usual && usual.text === answer.text;
  const changedShare =
    same && answer.shares[0]
      ? ` (${percent(usual.shares[0].probability)} before, ${percent(answer.shares[0].probability)} now)`
      : "";
  const cost =
    surprise && surprise.usual !== null && surprise.off !== null
      ? h("span", {
          class: "note",
          text: ` Loss of the original output: +${Math.max(0, surprise.off - surprise.usual).toFixed(2)} nats per token (0: no effect).`,
        })
      : null;
  return [
    h(
      "p",
      { id: "switched" },
      h("strong", { text: `${off.length} head${off.length > 1 ? "s" : ""} ablated. ` }),
      usual
        ? same
          ? `The answer${compares ? " to the first sentence" : ""} is unchanged${changedShare}.`
          : `With all heads: ${best(usual)}`
        : "",
      cost,
    ),
    h(
      "div",
      { class: "chips" },
      off.map(([name, head]) =>
        h("button", {
          type: "button",
          text: `${name} ${head} ×`,
          "aria-label": `restore ${name} head ${head}`,
          onclick: () => go({ off: offText(off.filter(([n, k]) => n !== name || k !== head)) }),
        }),
      ),
      h("button", { type: "button", text: "restore all", onclick: () => go({ off: "" }) }),
    ),
  ];
}

// A masked language model can be asked for any word: each is a button that hides it.
function hiding(answer) {
  if (answer.task !== "fill" || !answer.words.length) return null;
  return h(
    "div",
    { class: "chips" },
    h("span", { class: "label", text: "Mask another word" }),
    answer.words.map(([word, text]) =>
      h("button", { type: "button", text: word, onclick: () => go({ text, pin: "" }) }),
    ),
  );
}

// Captions are matched with the picture, also where a sentence was looked at before.
function captions(state, model) {
  if (model.task !== "caption") return null;
  const input = h("textarea", {
    id: "captions",
    rows: 4,
    "aria-label": "Captions, one per line",
    value: captionsOf(state, model).join("\n"),
  });
  return h(
    "form",
    {
      class: "captions",
      onsubmit: (event) => {
        event.preventDefault();
        go({
          text: "",
          captions: input.value
            .split("\n")
            .map((each) => each.trim())
            .filter(Boolean)
            .join("|"),
        });
      },
    },
    h("label", { class: "label", for: "captions", text: "Captions, one per line" }),
    input,
    h("button", { class: "main", text: "Match" }),
  );
}

const spans = (answer) =>
  answer.spans.length
    ? h(
        "p",
        { class: "spans" },
        answer.spans.map(([token, label, probability]) =>
          h(
            "span",
            {
              class: label === "O" || label === "original" ? "" : "marked",
              title: `${label}, ${percent(probability)}`,
            },
            shown(token),
            label === "O" || label === "original" ? null : h("sub", { text: label }),
          ),
        ),
      )
    : null;

// Words and lengths that the model has never met: it answers them as fluently as all others.
export function inputWarnings({ unknown, tokens, longest, silent }) {
  const named = unknown
    .slice(0, 12)
    .map((word, i) => [i ? ", " : "", h("b", {}, "“", h("bdi", { text: word }), "”")]);
  return [
    silent
      ? h(
          "p",
          { class: "warning", role: "alert", id: "silent" },
          h("strong", { text: "This recording is silent. " }),
          "Any output is made up.",
        )
      : null,
    unknown.length
      ? h(
          "p",
          { class: "warning", role: "alert", id: "unknown" },
          h("strong", { text: "Not seen in training: " }),
          named,
          unknown.length > 12 ? ` and ${unknown.length - 12} more` : "",
          ". The output may be wrong.",
        )
      : null,
    longest
      ? h(
          "p",
          { class: "warning", role: "alert", id: "overlong" },
          h("strong", { text: "Longer than any training example: " }),
          `${tokens.toLocaleString("en")} tokens; the longest had ${longest.toLocaleString("en")}. Split it into sentences.`,
        )
      : null,
  ];
}

// The likeliest answers; the others are opened.
const FEW = 3;
const fewBars = (shares) =>
  shares.length <= FEW + 1
    ? shareBars(shares)
    : [
        shareBars(shares.slice(0, FEW)),
        h(
          "details",
          { class: "others" },
          h("summary", { text: `${shares.length - FEW} more` }),
          shareBars(shares.slice(FEW), { taken: -1 }),
        ),
      ];

// The card, and a promise of the answer in it. Without `bars`, a page draws the alternatives itself.
export function answerCard(
  state,
  model,
  question,
  { surprise = null, gone = /** @returns {boolean} */ () => false, bars = true } = {},
) {
  const card = h(
    "section",
    { class: "card answer", "aria-label": "Answer" },
    loading("Running the model…"),
  );
  const body = h("div");
  const captionList = model.task === "caption" ? { captions: captionsOf(state, model) } : {};
  const off = offList(state);
  const ready = ask("answer", { ...question, ...captionList }).then(
    ({ answer, usual, warnings }) => {
      if (gone()) return null;
      put(
        body,
        h(
          "div",
          {},
          headline(answer, usual, question, model),
          answer.note ? h("p", { class: "note", text: answer.note }) : null,
          inputWarnings(warnings),
          spans(answer),
          hiding(answer),
          ablation(answer, usual, surprise, off, Boolean(state.compare)),
        ),
      );
      put(
        card,
        h(
          "header",
          {},
          h("h2", { text: TITLES[answer.task] ?? "Answer" }),
          answer.masked
            ? h("span", {
                class: "note",
                text: `No ${model.mask} in the sentence, so its last word is masked.`,
              })
            : null,
        ),
        body,
      );
      const alternatives = [
        bars && answer.shares.length ? fewBars(answer.shares) : null,
        captions(state, model),
      ].filter(Boolean);
      if (alternatives.length) {
        body.className = "two";
        body.append(h("div", {}, alternatives));
      }
      return answer;
    },
    (error) => {
      if (!gone()) put(card, failure(error));
      return null;
    },
  );
  return { node: card, ready };
}
