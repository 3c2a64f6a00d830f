// @ts-check
// How a model writes: beam search, greedy decoding and sampling, one token after the other, with caches of keys and values.

import { keysAndValues, logitsOf, runStack } from "./network.js";
import { largest, logSumExp, softmax } from "./tensors.js";

/** @typedef {import("./network.js").Network} Network */
/** @typedef {import("./network.js").Probe} Probe */
/** @typedef {{length: number, caches: any[]}} Past what a hypothesis has read, and its keys and values */

const lastStack = (/** @type {Network} */ network) => network.stacks[network.stacks.length - 1];

/** What is read before the first step. @param {Network} network @param {number[]} input @param {Probe} probe */
export function start(network, input, probe) {
  const stack = lastStack(network);
  let memory = null;
  for (const before of network.stacks.slice(0, -1)) {
    memory = runStack(network, before, input, { memory, probe });
  }
  const caches = stack.layers.map((layer) => {
    const cross = layer.find((part) => part.kind === "cross");
    const across = cross && memory ? keysAndValues(network, cross, memory) : null;
    return { self: { k: [], v: [] }, cross: across };
  });
  const past = { length: 0, caches };
  if (network.reads_target) return { past, last: network.decoding.start };
  // All of a prompt but its last token.
  if (input.length > 1) read(network, past, input.slice(0, -1), probe);
  return { past, last: input.slice(-1) };
}

/** Reads tokens, and remembers them; the hidden states. @param {Network} network @param {Past} past @param {number[]} tokens @param {Probe} probe */
function read(network, past, tokens, probe) {
  const { caches, length } = past;
  past.length += tokens.length;
  return runStack(network, lastStack(network), tokens, { first: length, caches, probe });
}

/** The logits of the next token. @param {Network} network @param {Past} past @param {number[]} tokens @param {Probe} probe */
export function step(network, past, tokens, probe) {
  const hidden = read(network, past, tokens, probe);
  return logitsOf(network, hidden.slice(-1))[0];
}

/** A copy that goes on by itself: vectors are shared, and never change. @param {Past} past */
const fork = (past) => ({
  length: past.length,
  caches: past.caches.map(({ self, cross }) => ({
    self: { k: self.k.slice(), v: self.v.slice() },
    cross,
  })),
});

/** The logits of a step without the tokens that are never chosen. @param {Network} network @param {Float32Array} logits */
function allowed(network, logits) {
  const left = logits.slice();
  for (const id of network.decoding.banned) left[id] = -Infinity;
  return left;
}

/** The most tokens of an output. @param {Network} network @param {number} source @param {number | null} most */
function limitOf(network, source, most) {
  const { limit, positions, start: first } = network.decoding;
  const usual = Math.max(1, Math.floor(limit.factor * source)) + limit.extra;
  const wanted = most ?? usual;
  if (positions === null) return wanted;
  const used = network.reads_target ? first.length : source;
  return Math.min(wanted, Math.max(1, positions - used));
}

// ------------------------------------------------------------------ beam search

/** @param {number} tokens @param {number} alpha */
const penalty = (tokens, alpha) => ((5 + tokens) / 6) ** alpha;

/** The best continuations of all hypotheses: twice as many as there are slots. @param {Network} network @param {any[]} beam @param {number} width @param {Probe} probe */
function candidates(network, beam, width, probe) {
  const all = beam.flatMap((hypothesis, parent) => {
    const raw = step(network, hypothesis.past, hypothesis.last, probe);
    const logits = allowed(network, raw);
    const normalizer = logSumExp(logits);
    return largest(logits, 2 * width).map((id) => ({
      parent,
      id,
      sum: hypothesis.sum + logits[id] - normalizer,
    }));
  });
  return all
    .filter((candidate) => candidate.sum > -Infinity)
    .sort((a, b) => b.sum - a.sum)
    .slice(0, 2 * width);
}

/**
 * Beam search whose finished hypotheses give up their slots; it stops when no other can still win.
 * @param {Network} network @param {number[]} input
 * @param {{width?: number, alpha?: number, most?: number | null, probe?: Probe, watch?: (event: any) => void}} settings
 */
export function beamSearch(network, input, settings = {}) {
  const { most = null, probe = {}, watch = () => {} } = settings;
  const { width = network.decoding.width, alpha = network.decoding.alpha } = settings;
  const limit = limitOf(network, input.length, most);
  const begin = start(network, input, probe);
  let beam = [{ past: begin.past, last: begin.last, sum: 0, tokens: /** @type {number[]} */ ([]) }];
  /** @type {any[]} */
  let finished = [];
  for (let t = 0; t < limit && beam.length; t++) {
    const found = candidates(network, beam, width, probe);
    const slots = width - finished.length;
    const isLast = t + 1 === limit;
    const ends = found.map(({ id }) => network.decoding.ends.includes(id));
    const scores = found.map(({ sum }, rank) =>
      rank < slots && (ends[rank] || isLast) ? sum / penalty(t + 1, alpha) : null,
    );
    found.forEach((candidate, rank) => {
      if (scores[rank] === null) return;
      const before = beam[candidate.parent].tokens;
      const tokens = ends[rank] ? before : [...before, candidate.id];
      finished.push({ tokens, score: scores[rank], ended: ends[rank] });
    });
    finished = finished.sort((a, b) => b.score - a.score).slice(0, width);
    const free = isLast ? 0 : width - finished.length;
    const survivors = found.map((_, rank) => rank).filter((rank) => !ends[rank]);
    const kept = survivors.slice(0, Math.max(0, free));
    watch({ step: t, found, scores, kept });
    beam = kept.map((rank) => {
      const { parent, id, sum } = found[rank];
      const tokens = [...beam[parent].tokens, id];
      return { past: fork(beam[parent].past), last: [id], sum, tokens };
    });
    // log P only falls: the best that is still possible is at the next length, or at the limit.
    const reach = Math.max(penalty(limit, alpha), penalty(Math.min(t + 2, limit), alpha));
    if (finished.length && beam.length && finished[0].score >= beam[0].sum / reach) break;
  }
  return finished[0] || { tokens: [], score: 0, ended: false };
}

// ------------------------------------------------------------------ one token after the other

const LOW = (1n << 64n) - 1n;

/** numpy's Philox, whose numbers in [0, 1) sampling draws with. @param {number} seed @param {number} count */
export function noise(seed, count) {
  /** @type {number[]} */
  const numbers = [];
  for (let block = 1n; numbers.length < count; block++) {
    let [a, b, c, d] = [block, 0n, 0n, 0n];
    let [key, other] = [BigInt(seed) & LOW, 0n];
    for (let round = 0; round < 10; round++) {
      const left = a * 0xd2e7470ee14c6c93n;
      const right = c * 0xca5a826395121157n;
      [a, b, c, d] = [(right >> 64n) ^ b ^ key, right & LOW, (left >> 64n) ^ d ^ other, left & LOW];
      key = (key + 0x9e3779b97f4a7c15n) & LOW;
      other = (other + 0xbb67ae8584caa73bn) & LOW;
    }
    for (const word of [a, b, c, d]) numbers.push(Number(word >> 11n) * 2 ** -53);
  }
  return numbers.slice(0, count);
}

/** Probabilities after temperature, top-k and top-p, the largest first. @param {Float32Array} logits @param {any} settings */
function filtered(logits, { temperature, top_k: topK, top_p: topP }) {
  const ids = largest(logits, topK || logits.length);
  let shares = softmax(ids.map((id) => Math.fround(logits[id] / temperature)));
  let before = 0;
  shares = shares.map((share) => {
    const isLeft = before < topP;
    before += share;
    return isLeft ? share : 0;
  });
  const total = shares.reduce((sum, share) => sum + share, 0);
  return { ids, shares: shares.map((share) => share / total) };
}

/** @param {any} distribution @param {number} at */
function draw({ ids, shares }, at) {
  let sum = 0;
  const rank = shares.findIndex((/** @type {number} */ share) => (sum += share) > at);
  const left = shares.filter((/** @type {number} */ share) => share > 0).length;
  return ids[rank < 0 ? left - 1 : Math.min(rank, left - 1)];
}

/**
 * Greedy decoding, or sampling: every step with its logits and what was left to draw from.
 * @param {Network} network @param {number[]} input @param {any} settings @param {Probe} probe
 */
export function decodeSteps(network, input, settings, probe) {
  const limit = limitOf(network, input.length, settings.most);
  const numbers = settings.sample ? noise(settings.seed, limit) : [];
  const { past, last: first } = start(network, input, probe);
  let last = first;
  const steps = [];
  for (let t = 0; t < limit; t++) {
    const logits = allowed(network, step(network, past, last, probe));
    const left = settings.sample
      ? filtered(logits, settings)
      : { ids: largest(logits, 1), shares: [1] };
    const id = settings.sample ? draw(left, numbers[t]) : left.ids[0];
    const isEnd = network.decoding.ends.includes(id);
    // An end is shown as the first of the end tokens.
    steps.push({ id: isEnd ? network.decoding.ends[0] : id, logits, left, isEnd });
    if (isEnd) break;
    last = [id];
  }
  return steps;
}
