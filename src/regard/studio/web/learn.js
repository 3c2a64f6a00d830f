// @ts-check
// Learn: the path of one token through the model, with the numbers that flow. It has a beginning, a chapter for each layer, and an end.

import { ask } from "./api.js";
import { answerCard } from "./answer.js";
import { asked, asking } from "./ask_card.js";
import { clipped, failure, h, loading, put, shown } from "./dom.js";
import { drawPath } from "./flow.js";
import { formula } from "./formula.js";
import { nextTokens, pictured, placeNames, placing, writesTokens } from "./learn_cards.js";
import { stationPanel } from "./learn_panel.js";
import { count, go } from "./route.js";
import {
  about,
  columns,
  outNote,
  saidWhat,
  STREAMS,
  STRIPS,
  titleOf,
  wordsOf,
} from "./stations.js";
import { equation } from "./strips.js";
import { example } from "./worked_example.js";

/** @typedef {import("./answers.js").Path} Path */
/** @typedef {import("./answers.js").Model} Model */
/** @typedef {import("./answers.js").Anatomy} Anatomy */
/** @typedef {import("./answers.js").Question} Question */
/** @typedef {import("./stations.js").Column} Column */
/** @typedef {Record<string, any>} State */
/** One layer, or what is before or after all of them. @typedef {{id: string, stack: string, title: string, said: string, to: State}} Chapter */
/** What a page of Learn is about. @typedef {{path: Path, model: Model, question: Question, anatomy: Anatomy, list: Column[], open: string,
 *   marked: number, names: string[], memory: string[], place: any, picture: any, words: import("./stations.js").Words, head: number,
 *   state: State, gone: () => boolean, atEnd: (end: () => void) => void}} Scene */

const TOUR = 3200; // milliseconds at a station
const STILL = window.matchMedia("(prefers-reduced-motion: reduce)");

// ------------------------------------------------------------------ chapters

/** The stacks that this input runs through: of a dual encoder one of the towers. @param {Model} model @param {Anatomy} anatomy */
const stacksOf = (model, anatomy) =>
  Object.keys(model.stacks).filter((stack) => anatomy.shapes[`${stack}.embedded`]);

/** From the input to the output, a chapter for each layer. @param {Scene} scene @returns {Chapter[]} */
function chapters({ path, model, anatomy, marked }) {
  const stacks = stacksOf(model, anatomy);
  const [first, last] = [stacks[0], stacks[stacks.length - 1]];
  const layers = stacks.flatMap((stack) =>
    Array.from({ length: model.stacks[stack] }, (_, layer) => {
      // With what the model would say after each layer, at the row that is followed.
      const guess = stack === path.stack ? path.words?.[layer + 1][marked] : null;
      const to = {
        stack,
        layer,
        row: stack === path.stack ? undefined : "",
        station: `${stack}.embedded`,
      };
      if (layer) to.station = `${stack}.${layer - 1}.residual`;
      else if (stack === first) to.station = firstStation(anatomy, `${stack}.0.`);
      const said = guess ? clipped(shown(guess[0]), 12) : "";
      return { id: `${stack}.${layer}`, stack, title: String(layer), said, to };
    }),
  );
  const top = model.stacks[last] - 1;
  const words = path.stack === last ? path.words : path.stack !== last && writesTokens(model);
  const end = words ? `${last}.${top}.words` : `${last}.output`;
  return [
    {
      id: "input",
      stack: "",
      title: "Input",
      said: "",
      to: {
        stack: first,
        layer: 0,
        row: first === path.stack ? undefined : "",
        station: `${first}.embedded`,
      },
    },
    ...layers,
    {
      id: "output",
      stack: "",
      title: "Output",
      said: "",
      to: { stack: last, layer: top, row: last === path.stack ? undefined : "", station: end },
    },
  ];
}

/** @param {Anatomy} anatomy @param {string} prefix */
const firstStation = (anatomy, prefix) =>
  Object.keys(anatomy.shapes).find(
    (name) => name.startsWith(prefix) && !name.endsWith(".weights"),
  ) ?? "";

/** The chapter of the station that is open. @param {Scene} scene @returns {string} */
function chapterOf({ path, model, anatomy, open }) {
  const stacks = stacksOf(model, anatomy);
  const last = stacks[stacks.length - 1];
  if (open === `${stacks[0]}.embedded`) return "input";
  const isTop = path.stack === last && path.layer === model.stacks[last] - 1;
  if (isTop && (open === `${last}.output` || open.endsWith(".words"))) return "output";
  return `${path.stack}.${path.layer}`;
}

/** One line for the whole model: each chapter is a button. @param {Scene} scene */
function contents(scene) {
  const { model } = scene;
  const current = chapterOf(scene);
  const word = (/** @type {string} */ stack) =>
    model.layers[stack] === "memory" ? "hop" : "layer";
  let stack = "";
  return h(
    "nav",
    { class: "chapters", "aria-label": "Chapters" },
    chapters(scene).map((chapter) => {
      const isNew = chapter.stack !== stack;
      stack = chapter.stack;
      const label = stack ? `${titleOf(stack)} ${word(stack)} ${chapter.title}` : chapter.title;
      return [
        isNew ? h("span", { class: "label", text: stack ? `→ ${titleOf(stack)}` : "→" }) : null,
        h("button", {
          type: "button",
          "data-chapter": chapter.id,
          "aria-current": chapter.id === current ? "step" : null,
          "aria-label": `${label} ${chapter.said}`.trim(),
          text: `${chapter.title} ${chapter.said}`.trim(),
          onclick: () => go({ ...chapter.to, play: "" }),
        }),
      ];
    }),
  );
}

// ------------------------------------------------------------------ the tour

/** The station before or after: behind the last one of a layer stands the first one of the next. @param {Scene} scene @param {number} by @returns {State | null} */
function neighbour({ path, model, list, open }, by) {
  const to = list.findIndex(({ name }) => name === open) + by;
  if (to >= 0 && to < list.length) return { station: list[to].name };
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

/** How far one has come. @param {Scene} scene */
function progress(scene) {
  const here = chapterOf(scene);
  const all = chapters(scene);
  const steps = scene.list.filter(({ name }) => chapterOf({ ...scene, open: name }) === here);
  const at = steps.findIndex(({ name }) => name === scene.open);
  return `Chapter ${all.findIndex(({ id }) => id === here) + 1} of ${all.length} · step ${at + 1} of ${steps.length}`;
}

/** Goes from station to station, by hand or by itself, through all layers to the end, as one would in a lecture. @param {Scene} scene */
function tour(scene) {
  const { open, state, atEnd } = scene;
  const playing = state.play;
  const [before, after] = [neighbour(scene, -1), neighbour(scene, 1)];
  const to = (/** @type {State | null} */ there, more = {}) => {
    settle();
    go({ ...there, ...more });
  };
  // However many stations were played, one step back leads to where it began.
  const timer = playing ? setTimeout(() => go(after ?? { play: "" }, { instead: true }), TOUR) : 0;
  atEnd(() => clearTimeout(timer));
  const first = chapters(scene)[0].to; // from the end, playing begins again
  const play = () =>
    playing
      ? go({ play: "" }, { instead: true })
      : to(after ? { station: open } : first, { play: 1 });
  const button = (
    /** @type {string} */ id,
    /** @type {string} */ text,
    /** @type {() => void} */ onclick,
    more = {},
  ) => h("button", { type: "button", id, text, onclick, ...more });
  return h(
    "div",
    { class: "bar tour" },
    button("back", "◂ Back", () => to(before), { disabled: !before }),
    button("forward", "Next step ▸", () => to(after), { class: "main", disabled: !after }),
    button("play", playing ? "Pause" : "Play", play, { "aria-pressed": String(Boolean(playing)) }),
    after ? null : button("again", "From the beginning", () => to(first, { play: "" })),
    h("span", { class: "note", id: "progress", text: progress(scene) }),
  );
}

// ------------------------------------------------------------------ the words

/** What is said at the beginning and at the end of the path. @param {Scene} scene */
function frame({ open, path, model, anatomy, names, marked }) {
  const chapter = chapterOf(/** @type {any} */ ({ open, path, model, anatomy }));
  const isToken = open.endsWith(".embedded") && path.ids;
  const id = isToken
    ? ` “${shown(names[marked])}” has token id ${/** @type {number[]} */ (path.ids)[marked].toLocaleString("en")}.`
    : "";
  if (chapter !== "output" || !writesTokens(model) || saidWhat(model) !== "token") return id;
  if (model.task === "fill")
    return `${id} The path ends here: the most probable token fills the mask.`;
  return `${id} The path ends here. The token that is chosen is appended, and the path begins again for the next one.`;
}

/** What a station is: its formula and a few words, above the drawing. @param {Scene} scene */
function caption(scene) {
  const { title, formula: line, text } = about(scene.open, scene.path, scene.model, scene.words);
  return h(
    "div",
    { id: "caption", "aria-live": "polite" },
    h("p", { class: "what" }, h("strong", { text: title.split(":")[0] }), formula(line)),
    h("p", { text: text + frame(scene) }),
  );
}

/** @param {Scene} scene */
function heading({ path, model, names, marked, words }) {
  const layered = model.layers[path.stack] === "memory" ? "hop" : "layer";
  const few =
    path.count > path.rows.length
      ? ` Showing ${path.rows.length} of ${path.count} ${words.many}.`
      : "";
  const size = model.parameters.toLocaleString("en");
  return [
    h("h2", {
      title: `${model.kind}, saved as ${model.family}, ${size} parameters.`,
      text: `The path of “${shown(names[marked])}” through ${titleOf(path.stack)} ${layered} ${path.layer}`,
    }),
    few ? h("span", { class: "note", text: few }) : null,
  ];
}

// ------------------------------------------------------------------ the page

/** A linear map has no path to follow. @param {Model} model */
const linearMap = (model) =>
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
    h("p", {}, formula(model.linear)),
    h("p", {
      text: "Each forecast value is a weighted sum of the window, with the same weights for every channel. There is no attention, no norm and no residual stream: it is the baseline that a Transformer for time series has to beat.",
    }),
  );

/** Followed at first: the class token, the masked word, a letter, or the last place, from which the next token comes. @param {Path} path @param {Model} model */
function usualRow(path, model) {
  const mask = path.rows.findIndex(([, label]) => label === model.mask);
  if (mask >= 0) return mask;
  // Of a recording, the first moment at which a letter is heard.
  const heard = saidWhat(model) === "letter" ? (path.words?.[path.words.length - 1] ?? []) : [];
  const letter = heard.findIndex((guess) => guess && guess[0] !== "(blank)");
  if (letter >= 0) return letter;
  if (model.medium === "image" || model.task === "classify") return 0;
  if (path.stack === "decoder" && model.task === "generate") return path.rows.length - 1;
  return Math.min(1, path.rows.length - 1);
}

/** What the address leads to. @param {State} state @param {Model} model @param {Question} question @param {any} here @returns {Promise<Scene>} */
async function sceneOf(state, model, question, here) {
  const stacks = Object.keys(model.stacks);
  const head = count(state.head, 0);
  const row = count(state.row, NaN);
  // Without an address of its own the path begins at the input.
  const named = stacks.find((stack) => state.station?.startsWith(`${stack}.`));
  const stack = stacks.includes(state.stack)
    ? state.stack
    : (named ?? stacks[state.layer === undefined ? 0 : stacks.length - 1]);
  const [, inside] = /\.(\d+)\.\w+\.?\w*$/.exec(state.station ?? "") ?? [];
  const layer = count(state.layer ?? inside, 0);
  const [path, anatomy] = await Promise.all([
    ask("path", { ...question, stack, layer, head, ...(Number.isNaN(row) ? {} : { row }) }),
    ask("anatomy", question),
  ]);
  const found = await placeNames(path, model, question);
  const chosen = path.rows.findIndex((/** @type {[number, string]} */ [index]) => index === row);
  const list = columns(path, model);
  const open = list.some(({ name }) => name === state.station) ? state.station : list[0].name;
  return {
    ...here,
    ...found,
    state,
    model,
    question,
    path,
    anatomy,
    list,
    open,
    head,
    marked: chosen >= 0 ? chosen : usualRow(path, model),
    words: wordsOf(model, question, path.stack),
  };
}

/** @param {Scene} scene @param {number} room */
function drawn(scene, room) {
  const { path, model, list, open, marked, names, memory, picture, state } = scene;
  const choose = {
    station: (/** @type {string} */ station) => {
      settle();
      // An open station is closed by pressing it again: the way back to the overview.
      go({
        station:
          station === open && /\.(self|cross|feedforward)\./.test(open) ? list[0].name : station,
        play: "",
      });
    },
    token: (/** @type {number} */ i) => go({ row: path.rows[i][0], play: "" }),
  };
  const every = state.values === "all";
  const norms = model.norms[path.stack];
  const kind = model.layers[path.stack];
  return drawPath({
    path,
    list,
    names,
    memory,
    marked,
    open,
    norms,
    kind,
    every,
    room,
    choose,
    picture,
  });
}

/** The card of the path. @param {HTMLElement} stage @param {Scene} scene */
function showStage(stage, scene) {
  const { path, model, question, list, open, marked, names, memory, state, anatomy, gone } = scene;
  const ownHead = Math.min(scene.head, ...Object.values(path.weights).map((each) => each.head));
  const out = nextTokens(state, model, question, path, marked, names, gone);
  const picture = pictured(path, model, question, { anatomy, marked, head: ownHead, gone });
  const drawing = drawn(scene, stage.clientWidth - 38);
  const every = state.values === "all";
  const column = list.find(({ name }) => name === open);
  const { layers, norms } = model;
  put(
    stage,
    h("header", {}, heading(scene), tour(scene)),
    contents(scene),
    caption(scene),
    drawing.node,
    h(
      "div",
      { class: "bar" },
      h("button", {
        type: "button",
        class: "small",
        id: "every",
        "aria-pressed": String(every),
        text: "Values of all rows",
        onclick: () => go({ values: every ? "" : "all" }),
      }),
      h("p", {
        class: "note wide",
        text: `${STREAMS[layers[path.stack]]} ${STRIPS}${path.words ? ` ${outNote(model)}` : ""}`,
      }),
    ),
    h(
      "div",
      { class: "below" },
      equation(column, list, path, { marked, names, memory, norms: norms[path.stack] }),
      out,
      picture,
    ),
  );
  drawing.reveal();
}

/** @param {{main: HTMLElement, state: State, gone: () => boolean, atEnd: (end: () => void) => void}} page */
export default async function learn({ main, state, gone, atEnd }) {
  /** @type {Model} */
  const model = await ask("model", { model: state.model });
  if (gone()) return;
  const question = { ...asked(state, model), off: undefined };
  const answered = answerCard(state, model, question, { gone, bars: !writesTokens(model) });
  const asks = asking(state, model, "Trace");
  const worked = () => main.querySelector("#worked") ?? example();
  if (!Object.keys(model.stacks).length) {
    put(main, asks, answered.node, linearMap(model), example());
    await answered.ready;
    return;
  }
  const stage = h(
    "section",
    { class: "card", "aria-label": "Path" },
    loading("Running the model…"),
  );
  const panel = h("section", { class: "card", id: "station", "aria-label": "Step" }, loading(""));
  const positions = placing(state, model, question, gone);
  if (!main.querySelector("#station"))
    put(main, asks, answered.node, stage, panel, positions, worked());
  try {
    const scene = await sceneOf(state, model, question, { gone, atEnd });
    if (gone()) return;
    put(main, asks, answered.node, stage, panel, positions, worked());
    showStage(stage, scene);
    await Promise.all([answered.ready, stationPanel(panel, scene.open, scene)]);
  } catch (caught) {
    const error = /** @type {any} */ (caught);
    if (gone()) return;
    // An input that cannot be read is refused by the card of the answer; what else fails is shown in place of the path.
    const refused = error.problem && !(await answered.ready);
    if (gone()) return;
    put(
      main,
      asks,
      answered.node,
      refused ? null : put(stage, failure(error)),
      positions,
      worked(),
    );
    if (!error.problem) throw error;
  }
}
