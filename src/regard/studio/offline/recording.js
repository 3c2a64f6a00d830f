// @ts-check
// One forward pass of a question, with everything that the pages ask about it.

import { shown } from "../web/dom.js";
import { beamSearch } from "./decoding.js";
import { attentionWeights, forward, logitsOf } from "./network.js";

/** @typedef {import("./network.js").Network} Network */
/** @typedef {import("./network.js").Probe} Probe */
/** @typedef {import("./network.js").Rows} Rows */
/** @typedef {{network: Network, input: import("./tokenizer.js").Tokenizer, output: import("./tokenizer.js").Tokenizer, model: any, stored: any, coverage: any, cache: Map<string, Run>}} Opened */
/** @typedef {{ids: {input: number[], target: number[]}, next: number[], source: string[], decoderTokens: string[], written: string | null, rows: Map<string, Rows>, calls: Map<string, import("./network.js").Call>, hidden: Rows}} Run */

const KEPT = 6;

export class Refusal extends Error {
  /** @param {string} problem @param {string} repair */
  constructor(problem, repair) {
    super(problem);
    Object.assign(this, { type: "SettingError", problem, repair });
  }
}

/** Heads to switch off, as a probe takes them. @param {[string, number][]} [off] */
export function offHeads(off = []) {
  /** @type {Map<string, Set<number>>} */
  const heads = new Map();
  for (const [name, head] of off) heads.set(name, new Set([...(heads.get(name) || []), head]));
  return heads;
}

/** @param {Opened} opened @param {string} text */
export function inputIds(opened, text) {
  if (!text.trim()) throw new Refusal("the text is empty", "pass at least one word");
  return opened.input.inputIds(text);
}

/** What the last stack of an encoder–decoder reads, and what it is to predict. @param {Opened} opened @param {number[]} input @param {any} question */
function target(opened, input, { target: given = null, off = [] }) {
  const { network, output } = opened;
  if (!network.reads_target) return { target: [], next: network.writes ? input.slice(1) : [] };
  const { start, ends } = network.decoding;
  const ids =
    given === null
      ? [...beamSearch(network, input, { probe: { off: offHeads(off) } }).tokens, ends[0]]
      : output.inputIds(given);
  const read = [...start, ...ids];
  return { target: read.slice(0, -1), next: read.slice(1), read };
}

/** The recording of a question, from the cache if it was asked before. @param {Opened} opened @param {any} question @returns {Run} */
export function record(opened, question) {
  const { text, off = [], target: given = null } = question;
  const key = JSON.stringify([text, off, given]);
  const known = opened.cache.get(key);
  if (known) return known;
  const input = inputIds(opened, text);
  const { read = [], next, ...ids } = target(opened, input, question);
  /** @type {Probe} */
  const probe = { off: offHeads(off), rows: new Map(), calls: new Map() };
  const hidden = forward(opened.network, { input, ...ids }, probe);
  const run = {
    ids: { input, ...ids },
    next,
    source: opened.input.tokens(input),
    decoderTokens: opened.output.tokens(read),
    written: opened.network.reads_target ? opened.output.decode(next.slice(0, -1)) : null,
    rows: /** @type {Map<string, Rows>} */ (probe.rows),
    calls: /** @type {Map<string, any>} */ (probe.calls),
    hidden,
  };
  opened.cache.set(key, run);
  if (opened.cache.size > KEPT) opened.cache.delete([...opened.cache.keys()][0]);
  return run;
}

/** The tokens that a stack reads. @param {Run} run @param {string} stack */
export const tokensOf = (run, stack) =>
  stack === "decoder" && run.decoderTokens.length ? run.decoderTokens.slice(0, -1) : run.source;

/** The names of a stack's positions: what each reads and predicts, where it has a target. @param {Run} run @param {string} stack */
export function queriesOf(run, stack) {
  if (stack !== "decoder" || !run.decoderTokens.length) return tokensOf(run, stack);
  const names = run.decoderTokens.map(shown);
  return names.slice(1).map((name, i) => `${names[i]} → ${name}`);
}

/** The names of the queries and keys of an attention. @param {Run} run @param {string} name */
export function labels(run, name) {
  const stack = name.split(".")[0];
  const keys = name.endsWith(".cross") ? run.source : tokensOf(run, stack);
  return { rows: queriesOf(run, stack), columns: keys };
}

/** The call of an attention that was recorded. @param {Run} run @param {string} name */
export function callOf(run, name) {
  const call = run.calls.get(name);
  if (!call) throw new Refusal(`this model has no attention '${name}'`, "choose another one");
  return call;
}

/** All weights of one head: [queries][keys]. @param {Run} run @param {string} name @param {number} head */
export function headWeights(run, name, head) {
  const call = callOf(run, name);
  return call.q.map((_, row) => attentionWeights(call, head, row));
}

/** [queries][keys]: the mean of all heads. @param {Run} run @param {string} name */
export function meanWeights(run, name) {
  const { heads } = callOf(run, name).part;
  const all = Array.from({ length: heads }, (_, head) => headWeights(run, name, head));
  return all[0].map((row, i) =>
    row.map((_, j) => all.reduce((sum, weights) => sum + weights[i][j], 0) / heads),
  );
}

/** The logits at some positions of the last stack. @param {Opened} opened @param {Run} run @param {number[]} positions */
export const logitsAt = (opened, run, positions) =>
  logitsOf(
    opened.network,
    positions.map((i) => run.hidden[i]),
  );
