// @ts-check
// Answers about what a model says: the output, the next token, each step of decoding.

import { shown } from "../web/dom.js";
import { beamSearch, decodeSteps, start, step } from "./decoding.js";
import { finish, forward, logitsOf } from "./network.js";
import { inputIds, labels, logitsAt, offHeads, record, Refusal, tokensOf } from "./recording.js";
import { largest, logSumExp, softmax } from "./tensors.js";

/** @typedef {import("./recording.js").Opened} Opened */
/** @typedef {import("./recording.js").Run} Run */

const TOP = 10; // alternatives of an answer
const FIRST = 64; // positions in one answer
const MAX_SPANS = 64;

// ------------------------------------------------------------------ distributions over tokens

/** The likeliest tokens of some logits. @param {Opened} opened @param {ArrayLike<number>} logits @param {number} top */
function shares(opened, logits, top, surface = false) {
  const probabilities = softmax(logits);
  const ids = largest(probabilities, top);
  const names = surface ? ids.map((id) => opened.input.surface(id)) : opened.output.tokens(ids);
  return ids.map((id, i) => ({ label: names[i], probability: probabilities[id] }));
}

/** The input with each of some tokens behind it; null for one that adds no text. @param {Opened} opened @param {Run} run @param {string[]} tokens */
function continuations({ output }, run, tokens) {
  const before = output.decode(run.ids.input);
  return tokens.map((token) => {
    const id = output.ids.get(token);
    const text = id === undefined ? before : output.decode([...run.ids.input, id]);
    return text.trim() === before.trim() || text.includes("\ufffd") ? null : text;
  });
}

/** @param {Opened} opened @param {any} question */
export function next_tokens(opened, question) {
  const { position = -1, temperature = 1, top = TOP } = question;
  const run = record(opened, question);
  const length = run.hidden.length;
  const at = position >= 0 && position < length ? position : length - 1;
  const logits = logitsAt(opened, run, [at])[0].map((z) => z / temperature);
  const found = shares(opened, logits, top);
  const goesOn = opened.network.writes && !opened.network.reads_target && at === length - 1;
  const names = found.map(({ label }) => label);
  return {
    position: at,
    length,
    shares: found,
    continued: goesOn ? continuations(opened, run, names) : null,
  };
}

/** What the head would read of the last stack before its first and after each layer. @param {Opened} opened @param {Run} run */
function layerOutputs({ network }, run) {
  const stack = network.stacks[network.stacks.length - 1];
  const names = ["embedded", ...stack.layers.map((_, i) => `${i}.residual`)];
  return names.map((name) => finish(network, stack, run.rows.get(`${stack.name}.${name}`) || []));
}

/** [layers][positions][top]: the likeliest tokens after each layer. @param {Opened} opened @param {Run} run @param {number[]} positions @param {number} top */
export function layerShares(opened, run, positions, top) {
  return layerOutputs(opened, run).map((hidden) =>
    logitsOf(
      opened.network,
      positions.map((i) => hidden[i]),
    ).map((logits) => shares(opened, logits, top)),
  );
}

/** @param {Opened} opened @param {any} question */
export function lens(opened, question) {
  const run = record(opened, question);
  const stack = opened.network.stacks[opened.network.stacks.length - 1].name;
  const names = tokensOf(run, stack).slice(0, FIRST);
  const found = layerShares(opened, run, [...names.keys()], 3);
  return {
    kind: "Lens",
    title: "logit lens: the most probable next token after each layer",
    note: "Final norm and vocabulary on the residual stream after each layer. The last layer is the output of the model.",
    layers: found.map((_, i) => (i ? `layer ${i - 1}` : "embedded")),
    positions: names,
    tokens: found.map((layer) => layer.map((best) => best.map(({ label }) => label))),
    probabilities: found.map((layer) =>
      layer.map((best) => best.map(({ probability }) => probability)),
    ),
  };
}

// ------------------------------------------------------------------ the answer

/** The loss of what is written with no head ablated, in nats a token. @param {Opened} opened @param {Run} usual @param {any} off */
function lossOf({ network }, usual, off) {
  const hidden = forward(network, usual.ids, { off: offHeads(off) });
  const logits = logitsOf(network, hidden.slice(0, usual.next.length));
  const losses = usual.next.map((id, i) => logSumExp(logits[i]) - logits[i][id]);
  return losses.length ? losses.reduce((a, b) => a + b, 0) / losses.length : null;
}

/** @param {Opened} opened @param {any} question */
export function look(opened, question) {
  const run = record(opened, question);
  /** @type {Record<string, any>} */
  const attentions = {};
  for (const [name, call] of run.calls) {
    attentions[name] = { heads: call.part.heads, ...labels(run, name) };
  }
  const said = {
    version: 0,
    source: run.source,
    target: run.decoderTokens.slice(1),
    attentions,
    unknown: opened.input.unknownWords(question.text),
    output: run.written,
    drawn: false,
    usual: /** @type {string | null} */ (null),
    surprise: /** @type {any} */ (null),
  };
  if (question.off?.length && opened.network.writes) {
    const usual = record(opened, { ...question, off: [] });
    said.usual = usual.written;
    said.surprise = {
      usual: lossOf(opened, usual, []),
      off: lossOf(opened, usual, question.off),
    };
  }
  return said;
}

const MODEL_ANSWER = {
  shares: [],
  spans: [],
  note: "",
  masked: null,
  distribution: true,
  words: [],
};

/** A text with the mask in place of a word; it takes the space before it where tokens do. @param {Opened} opened @param {string} text @param {number} from @param {number} to */
function maskedText({ input, model }, text, from, to) {
  const before = text.slice(0, from);
  const spaced = before + model.mask + text.slice(to);
  const tight = before.trimEnd() + model.mask + text.slice(to);
  return input.inputIds(tight).length < input.inputIds(spaced).length ? tight : spaced;
}

const WORD = /[\p{L}\p{N}_]+/gu;

/** Each other word with a mask in its place. @param {Opened} opened @param {string} text @param {string} word */
function wordsToMask(opened, text, word) {
  const mask = opened.model.mask;
  const [before, after] = [
    text.slice(0, text.indexOf(mask)),
    text.slice(text.indexOf(mask) + mask.length),
  ];
  const space = before && !before.endsWith(" ") && /^[\p{L}\p{N}]/u.test(word) ? " " : "";
  const whole = before + space + word + after;
  const hidden = (before + space).length;
  return [...whole.matchAll(WORD)]
    .filter((match) => match.index !== hidden)
    .map((match) => [
      match[0],
      maskedText(opened, whole, match.index, match.index + match[0].length),
    ])
    .slice(0, MAX_SPANS);
}

/** @param {Opened} opened @param {any} question */
function filled(opened, question) {
  const mask = opened.model.mask;
  let text = question.text;
  let masked = null;
  if (!text.includes(mask)) {
    const last = [...text.matchAll(WORD)].pop();
    if (!last) return { task: "fill", text: "", note: `Put ${mask} where a word is missing.` };
    masked = maskedText(opened, text, last.index, last.index + last[0].length);
    text = masked;
  }
  const run = record(opened, { ...question, text });
  const at = run.ids.input.indexOf(/** @type {number} */ (opened.input.roleId("mask")));
  const found = shares(opened, logitsAt(opened, run, [at])[0], TOP, true);
  const words = wordsToMask(opened, text, found[0].label);
  return { task: "fill", text: found[0].label, shares: found, masked, words };
}

/** @type {Record<string, (opened: Opened, question: any) => any>} */
const ANSWERS = {
  translate: (opened, question) => ({ text: (record(opened, question).written || "").trim() }),
  generate: (opened, question) => {
    const run = record(opened, question);
    const found = shares(opened, logitsAt(opened, run, [run.hidden.length - 1])[0], TOP);
    return { text: found[0].label, shares: found };
  },
  fill: filled,
  embed: (opened, question) => ({
    text: `a ${record(opened, question).hidden[0].length.toLocaleString("en")}-dimensional vector`,
    note: "This model has no task head: its output is one vector per token. Fine-tune it to get predictions.",
  }),
};

/** Whether training has seen these tokens, each behind the one before it. @param {Opened} opened @param {number[]} ids */
function isSeen({ input, coverage }, ids) {
  const unknown = input.roleId("unk");
  return ids.every((id, i) => {
    if (id === unknown) return false;
    if (coverage.unseen.has(id) && !input.data.special.includes(id)) return false;
    const spells = coverage.spellings && i > 0 && input.continuesWord(id);
    return !spells || coverage.spellings.has(ids[i - 1] * (1 << 20) + id);
  });
}

/** Words and lengths that training never had. @param {Opened} opened @param {string} text */
function warningsOf(opened, text) {
  const { input, coverage } = opened;
  const marks = Object.values(input.data.roles);
  const plain = input.data.plain
    ? text
    : marks.reduce((left, mark) => left.replaceAll(mark, " "), text);
  const words = plain
    .split(/\s+/u)
    .map((word) => word.replace(/^[.,;:!?"'()[\]„“”…«»]+|[.,;:!?"'()[\]„“”…«»]+$/gu, ""));
  const isKnown = (/** @type {string} */ word) =>
    isSeen(opened, input.encode(word)) || isSeen(opened, input.encode(` ${word}`));
  const unknown = [...new Set(words.filter((word) => word && !isKnown(word)))];
  const length = input.inputIds(text).length;
  const isLong = coverage.longest !== null && length > 1.25 * coverage.longest;
  return {
    unknown,
    tokens: isLong ? length : null,
    longest: isLong ? coverage.longest : null,
    silent: false,
  };
}

/** @param {Opened} opened @param {any} question */
export function answer(opened, question) {
  const say = (/** @type {any} */ asked) => {
    const { task } = opened.model;
    return { ...MODEL_ANSWER, task, ...ANSWERS[task](opened, asked) };
  };
  const usual = question.off?.length ? say({ ...question, off: [] }) : null;
  return { answer: say(question), usual, warnings: warningsOf(opened, question.text) };
}

// ------------------------------------------------------------------ decoding

/** @param {Opened} opened @param {any} question */
export function steps(opened, question) {
  const settings = {
    temperature: 1,
    top_k: 0,
    top_p: 1,
    seed: 0,
    sample: false,
    most: 60,
    ...question,
  };
  const { network, output } = opened;
  const found = decodeSteps(network, inputIds(opened, question.text), settings, {
    off: offHeads(question.off),
  });
  const candidatesOf = (/** @type {any} */ { logits, left, id }) => {
    const probabilities = softmax(logits);
    const ids = largest(probabilities, settings.top ?? 8);
    if (!ids.includes(id)) ids.push(id);
    const drawn = new Map(
      left.ids.map((/** @type {number} */ each, /** @type {number} */ i) => [each, left.shares[i]]),
    );
    const names = output.tokens(ids);
    return ids
      .map((each, i) => ({
        id: each,
        token: names[i],
        probability: probabilities[each],
        drawn: drawn.get(each) ?? 0,
      }))
      .filter(({ probability }) => probability > 0);
  };
  const written = output.decode(found.filter(({ isEnd }) => !isEnd).map(({ id }) => id));
  return {
    kind: "Steps",
    title: `${question.text} → ${written}`,
    note: "The chosen token, then the most probable tokens with their probabilities.",
    text: question.text,
    output: written,
    steps: found.map((each) => ({
      token: output.tokens([each.id])[0],
      id: each.id,
      candidates: candidatesOf(each),
    })),
  };
}

/** Every prefix of a search, from what happened at each step. @param {Opened} opened @param {any[]} events */
function treeOf({ output }, events) {
  /** @type {any[]} */
  const nodes = [
    { parent: -1, step: -1, id: -1, token: "", log_probability: 0, fate: "open", score: null },
  ];
  let slots = [0];
  for (const { step: at, found, scores, kept } of events) {
    const numbers = found.map(
      (/** @type {any} */ { parent, id, sum }, /** @type {number} */ rank) => {
        const fate = scores[rank] === null ? (kept.includes(rank) ? "open" : "pruned") : "finished";
        nodes.push({
          parent: slots[parent],
          step: at,
          id,
          token: output.tokens([id])[0],
          log_probability: sum,
          fate,
          score: scores[rank],
        });
        return nodes.length - 1;
      },
    );
    slots = kept.map((/** @type {number} */ rank) => numbers[rank]);
  }
  const extended = new Set(nodes.map(({ parent }) => parent));
  nodes.forEach((node, i) => {
    if (node.fate === "open" && !extended.has(i)) node.fate = "left";
  });
  let best = -1;
  nodes.forEach((node, i) => {
    if (node.score !== null && (best < 0 || node.score > nodes[best].score)) best = i;
  });
  for (let i = best; i >= 0; i = nodes[i].parent) nodes[i].fate = "best";
  return { nodes, answer: best };
}

/** @param {Opened} opened @param {any} question */
export function beam(opened, question) {
  const { text, width = 4, alpha = 0.6, most = 60, off = [] } = question;
  /** @type {any[]} */
  const events = [];
  const watch = (/** @type {any} */ event) => events.push(event);
  const probe = { off: offHeads(off) };
  const best = beamSearch(opened.network, inputIds(opened, text), {
    width,
    alpha,
    most,
    probe,
    watch,
  });
  const written = opened.output.decode(best.tokens);
  return {
    kind: "BeamTree",
    title: `beam of ${width}: ${text} → ${written}`,
    note: "Bold: the best hypothesis. Faint: pruned. ●: finished. Numbers are log-probabilities of the whole prefix.",
    text,
    output: written,
    width,
    ...treeOf(opened, events),
  };
}

const BYTES = 4; // of a float32
const CACHED = 32; // tokens

/** The KV cache after each of the first tokens. @param {Opened} opened @param {any} question */
export function cache({ network, input }, question) {
  const ids = input.inputIds(question.text);
  const stack = network.stacks[network.stacks.length - 1];
  const bytes = (/** @type {any} */ kept) =>
    kept ? BYTES * [...kept.k, ...kept.v].reduce((sum, row) => sum + row.length, 0) : 0;
  const left = network.decoding.positions;
  const used = network.reads_target ? network.decoding.start.length : ids.length;
  const count = left === null ? CACHED : Math.max(1, Math.min(CACHED, left - used));
  const { past, last } = start(network, ids, {});
  const source = past.caches.reduce((sum, layer) => sum + bytes(layer.cross), 0);
  const grown = [];
  let tokens = last;
  for (let i = 0; i < count; i++) {
    tokens = largest(step(network, past, tokens, {}), 1);
    grown.push([past.length, past.caches.reduce((sum, layer) => sum + bytes(layer.self), 0)]);
  }
  const sizes = grown.map(([, size]) => size);
  const each = (sizes[sizes.length - 1] - sizes[0]) / Math.max(1, sizes.length - 1);
  const words = (/** @type {number} */ n) => Math.round(n).toLocaleString("en");
  return {
    kind: "KVCacheGrowth",
    title: `KV cache: ${words(each)} bytes per token, ${words(source)} bytes for the source`,
    note: "Keys and values of one sequence. Beam search stores them once for each hypothesis, except those of the source, which all hypotheses share.",
    tokens: grown.map(([length]) => length),
    used: sizes,
    source,
    reserved: (sizes[0] / grown[0][0]) * (count + (network.reads_target ? 0 : ids.length)),
    parts: Object.fromEntries(
      stack.layers.map((_, i) => [`decoder.${i}`, bytes(past.caches[i].self)]),
    ),
  };
}

// ------------------------------------------------------------------ patching

const argmax = (/** @type {ArrayLike<number>} */ row) => largest(row, 1)[0];

/** Where which logit is read, and which one is subtracted. @param {Opened} opened @param {number[]} answers @param {number[]} others @param {number | null} at */
function metricOf({ network }, answers, others, at) {
  let position = at ?? answers.findIndex((id, i) => id !== others[i]);
  if (at === null && network.writes && !network.reads_target) position = others.length - 1;
  if (position < 0)
    throw new Refusal(
      "the model predicts the same tokens for both texts",
      "choose another second text",
    );
  const isOther = others[position] !== answers[position];
  return { position, answer: answers[position], contrast: isOther ? others[position] : null };
}

/** [layers][positions]: the score with one vector of the clean run in place. @param {Opened} opened @param {Run} clean @param {Run["ids"]} ids @param {any} what */
function patchedScores({ network }, clean, ids, { names, positions, score }) {
  return names.map((/** @type {string} */ name) => {
    const rows = clean.rows.get(name) || [];
    return positions.map((/** @type {string} */ _, /** @type {number} */ at) => {
      const edit = (/** @type {Float32Array[]} */ all) =>
        all.map((row, i) => (i === at ? rows[i] : row));
      return score(forward(network, ids, { edits: new Map([[name, edit]]) }));
    });
  });
}

/** @param {Opened} opened @param {any} question */
export function patching(opened, question) {
  const { network, input, output } = opened;
  const clean = record(opened, { text: question.text });
  const other = input.inputIds(question.other);
  const count = clean.source.length;
  if (other.length !== count)
    throw new Refusal(
      `the texts have ${count} and ${other.length} tokens, so their positions do not correspond`,
      "replace words only by words with the same number of tokens",
    );
  if (other.every((id, i) => id === clean.ids.input[i]))
    throw new Refusal("both texts have the same tokens", "change a word of the second text");
  const ids = { input: other, target: clean.ids.target };
  const hidden = forward(network, ids);
  const predictions = (/** @type {Float32Array[]} */ rows) => logitsOf(network, rows).map(argmax);
  const metric = metricOf(
    opened,
    predictions(clean.hidden),
    predictions(hidden),
    question.at ?? null,
  );
  const score = (/** @type {Float32Array[]} */ rows) => {
    const [logits] = logitsOf(network, [rows[metric.position]]);
    return logits[metric.answer] - (metric.contrast === null ? 0 : logits[metric.contrast]);
  };
  const stack = network.stacks.find(({ name }) => name === question.stack) || network.stacks[0];
  const names = ["embedded", ...stack.layers.map((_, i) => `${i}.residual`)].map(
    (each) => `${stack.name}.${each}`,
  );
  const positions = tokensOf(clean, stack.name);
  const scores = patchedScores(opened, clean, ids, { names, positions, score });
  const [right, wrong] = [score(clean.hidden), score(hidden)];
  const nameOf = (/** @type {number} */ id) => output.tokens([id])[0];
  const instead = metric.contrast === null ? null : nameOf(metric.contrast);
  const logit = `${shown(nameOf(metric.answer))}${instead ? ` − ${shown(instead)}` : ""}`;
  const others = stack.reads === "target" ? positions : input.tokens(other);
  return {
    kind: "Patching",
    title: `activation patching: logit of ${logit}, ${wrong.toFixed(3)} → ${right.toFixed(3)}`,
    note: "Effect of patching each layer and position: 1 restores the answer to the first text, 0 changes nothing.",
    layers: names.map((_, i) => (i ? `layer ${i - 1}` : "embedded")),
    tokens: positions,
    others,
    answer: nameOf(metric.answer),
    instead,
    at: metric.position,
    clean: right,
    corrupted: wrong,
    scores,
    effect: scores.map((/** @type {number[]} */ row) =>
      row.map((v) => (Math.abs(right - wrong) > 1e-12 ? (v - wrong) / (right - wrong) : 0)),
    ),
    target: clean.decoderTokens.slice(1),
  };
}
