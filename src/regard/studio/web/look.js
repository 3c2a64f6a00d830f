// Look: what a model looks at while it reads a sentence, head by head.

import { FRESH, ask } from "./api.js";
import { resolving } from "./circuit.js";
import { failure, fixed, h, loading, put, segment, shown } from "./dom.js";
import { dark, heat, scale, thumb } from "./heat.js";
import { alignment, links } from "./links.js";
import { go, offList, offText } from "./route.js";

export const EXAMPLES = [
  "The cat sat on the mat.", "The dog does not enter the house because it is too tired.",
  "The dog does not enter the house because it is too empty.", "In my house the happy queen wants to work.",
];
const KINDS = { "encoder.self": "Encoder", "decoder.self": "Decoder", "decoder.cross": "Decoder → encoder" };
const CELLS = 1 << 19;
let kept = {}; // the small pictures of the last run: another head only marks another one of them
const kindOf = (name) => { const parts = name.split("."); return [...parts.slice(0, -2), parts.at(-1)].join("."); };
const layerOf = (name) => Number(name.split(".").at(-2));
const titled = (kind) => KINDS[kind] || kind;

export function sentence(state, button, changes = {}) {
  const input = h("input", { type: "text", name: "text", value: state.text, "aria-label": "Sentence", maxlength: 8000, autocomplete: "off", spellcheck: "false" });
  return h("section", { class: "card asks" },
    h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); go({ text: input.value.trim(), pin: "", step: "", ...changes }); } },
      input, h("button", { class: "main", text: button })),
    h("div", { class: "chips" }, h("span", { class: "label", text: "Try" }),
      EXAMPLES.map((text) => h("button", { type: "button", text, onclick: () => go({ text, pin: "", step: "", ...changes }) }))));
}

function difference(usual, now) {
  const before = new Set(usual.split(" "));
  return now.split(" ").flatMap((word, i) => [i ? " " : "", before.has(word) ? word : h("span", { class: "changed", text: word })]);
}

function result(found, state, off) {
  const said = h("p", { class: "said", id: "said" }, state.text);
  if (found.output !== null) said.append(h("span", { class: "arrow", text: "→" }), h("span", { id: "output" }, found.usual === null ? found.output : difference(found.usual, found.output)));
  const parts = [said];
  if (off.length) {
    const worth = found.surprise && found.surprise.off !== null ? ` What it usually says costs ${fixed(found.surprise.off, 2)} nats a token now, ${fixed(found.surprise.usual, 2)} with all heads.` : "";
    parts.push(h("p", { id: "switched" }, h("strong", { text: `${off.length} head${off.length > 1 ? "s" : ""} off. ` }),
      found.usual === null ? "" : found.usual === found.output ? "The output stays the same." : `With all heads on: ${found.usual}`, worth),
    h("div", { class: "chips" }, off.map(([name, head]) => h("button", { type: "button", text: `${name} ${head} ×`, "aria-label": `switch ${name} head ${head} on`,
      onclick: () => go({ off: offText(off.filter(([n, k]) => n !== name || k !== head)) }) })),
    h("button", { type: "button", text: "all on", onclick: () => go({ off: "" }) })));
  }
  return parts;
}

// Many weights come as bytes, which are a tenth of the work to read.
function unpacked(text, columns) {
  const all = new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  return Array.from({ length: all.length / columns }, (_, i) => all.subarray(i * columns, (i + 1) * columns));
}

async function pane(place, state, question, name, head, compare) {
  put(place, loading());
  const found = await ask("look", question);
  const part = found.attentions[name];
  if (!part) return put(place, failure({ problem: `this model has no ${name}`, repair: "choose an attention that both models have" }));
  const most = Math.max(1, Math.floor(CELLS / part.columns.length));
  const rows = part.rows.length > most ? [...Array(most).keys()] : null;
  const map = await ask("attention", { ...question, name, heads: [Math.min(head, part.heads - 1)], rows });
  const weights = map.weights?.[0] ?? unpacked(map.packed, map.columns.length);
  const pinned = state.pin === undefined || state.pin === "" ? -1 : Math.min(Number(state.pin), map.rows.length - 1);
  const told = h("p", { class: "read faint", text: "Point at a cell for its weight." });
  const crossing = name.endsWith(".cross");
  const lines = links(weights, map.rows, map.columns, { pinned, pin: (i) => go({ pin: i < 0 ? "" : i }), label: map.title, names: crossing ? ["writes", "reads"] : ["looks", "is looked at"] });
  const picture = h("div", {}, told, heat(weights, map.rows, map.columns, { marked: pinned, pick: (i) => go({ pin: i === pinned ? "" : i }),
    say: (i, j) => { told.textContent = `“${shown(map.rows[i])}” → “${shown(map.columns[j])}”: ${weights[i][j].toFixed(4)}`; } }), scale());
  const heading = compare ? h("p", { class: "said", text: found.output === null ? question.text : `${question.text} → ${found.output}` }) : null;
  put(place, heading, compare && question.model !== state.model ? h("p", { class: "note", text: question.model }) : null,
    h("div", { class: compare ? "" : "two" }, lines, picture),
    rows ? h("p", { class: "note", text: `The first ${most} of ${part.rows.length} rows.` }) : null, h("p", { class: "note", text: map.note }));
}

function grid(pictures, name, head, off) {
  const kinds = new Map();
  for (const each of Object.keys(pictures.pictures)) kinds.set(kindOf(each), [...(kinds.get(kindOf(each)) || []), each]);
  return [...kinds].map(([kind, names]) => h("div", { class: "heads kind" }, h("h3", { text: titled(kind) }),
    names.map((each) => h("div", { class: "layer" }, h("span", { class: "label", text: `layer ${layerOf(each)}` }),
      h("div", { class: "cells" }, pictures.pictures[each].heads.map((data, k) => {
        const out = off.some(([n, i]) => n === each && i === k);
        const share = pictures.entropy[each]?.[k];
        const flag = pictures.flags[`${each} head ${k}`];
        return h("button", { type: "button", class: `head${out ? " out" : ""}`, "aria-pressed": String(each === name && k === head), "data-head": `${each}.${k}`,
          "aria-label": `${each}, head ${k}${out ? ", off" : ""}${flag ? ", " + flag : ""}`, title: `${each} head ${k} · entropy ${fixed(share, 2)}${flag ? " · " + flag : ""}`,
          onclick: () => go({ at: each, head: k }) },
        thumb(data, pictures.pictures[each].rows, pictures.pictures[each].columns), `head ${k}${flag ? " ⚑" : ""}`);
      }))))));
}

// The layer that looks most sharply, unless one is chosen.
async function aligning(question, state) {
  const { entropy } = await ask("grid", question);
  const mean = (values) => values.reduce((sum, v) => sum + (v ?? 1), 0) / values.length;
  const layers = Object.entries(entropy).filter(([name]) => name.endsWith(".cross")).map(([name, values]) => [layerOf(name), mean(values)]);
  const sharpest = layers.reduce((best, each) => (each[1] < best[1] ? each : best))[0];
  const chosen = layers.some(([k]) => String(k) === state.aligned) ? Number(state.aligned) : sharpest;
  return [await ask("alignment", { ...question, layer: chosen }), layers.map(([k]) => k)];
}

function comparing(state, shelf) {
  const text = h("input", { type: "text", value: state.text2 || "", "aria-label": "Second sentence", placeholder: "another sentence (or leave it, and choose another model)" });
  const models = h("select", { "aria-label": "Second model" }, shelf.models.map((name) => h("option", { value: name, text: name })));
  models.value = state.model2 || state.model;
  return h("details", { class: "card", open: Boolean(state.compare) }, h("summary", { text: "Compare two sentences or two models" }),
    h("form", { class: "ask", style: { marginTop: ".7rem" }, onsubmit: (event) => { event.preventDefault(); go({ text2: text.value.trim(), model2: models.value, compare: 1 }); } },
      text, shelf.models.length > 1 ? models : null, h("button", { class: "main", text: "Compare" }),
      state.compare ? h("button", { type: "button", text: "Stop", onclick: () => go({ compare: "", text2: "", model2: "" }) }) : null));
}

export default async function look({ main, state, shelf, gone }) {
  const off = offList(state);
  const question = { model: state.model, text: state.text, off };
  const card = h("section", { class: "card", "aria-label": "Result" }, loading("The model reads…"));
  if (!main.querySelector("section.asks") || main.querySelector(".error")) put(main, sentence(state, "Look"), card);
  const found = await ask("look", question);
  const names = Object.keys(found.attentions);
  if (gone()) return;
  const usual = names.filter((each) => each.endsWith(".cross")).at(-1) || names[0];
  const name = found.attentions[state.at] ? state.at : usual;
  const heads = found.attentions[name].heads;
  const head = Math.min(Number(state.head || 0), heads - 1);
  const kinds = [...new Set(names.map(kindOf))];
  const same = names.filter((each) => kindOf(each) === kindOf(name));
  const isOff = off.some(([n, k]) => n === name && k === head);
  put(card, result(found, state, off));
  const controls = h("div", { class: "bar" },
    segment("Attention", kinds.map((kind) => [kind, titled(kind)]), kindOf(name), (kind) => go({ at: names.find((n) => kindOf(n) === kind && layerOf(n) === layerOf(name)) || names.find((n) => kindOf(n) === kind), pin: "" })),
    segment("Layer", same.map((each) => [each, String(layerOf(each))]), name, (at) => go({ at })),
    segment("Head", [...Array(heads).keys()].map((k) => [k, String(k)]), head, (k) => go({ head: k })),
    h("button", { type: "button", class: "off", id: "switch", "aria-pressed": String(isOff), text: isOff ? `Head ${head} is off` : `Switch head ${head} off`,
      onclick: () => go({ at: name, head, off: offText(isOff ? off.filter(([n, k]) => n !== name || k !== head) : [...off, [name, head]]) }) }));
  const first = h("div", {}, loading());
  const second = state.compare ? h("div", {}, loading()) : null;
  const key = JSON.stringify([question, dark()]);
  const drawn = kept.key === key && Date.now() - kept.time < FRESH;
  const all = drawn ? kept.all : h("section", { class: "card", "aria-label": "All heads" }, h("header", {}, h("h2", { text: "All heads" }), h("span", { class: "note", text: "Each map is scaled to its own largest weight. ⚑: collapsed, even or idle." })), loading());
  const aligned = found.target.length && names.some((n) => n.endsWith(".cross")) ? h("section", { class: "card", "aria-label": "Alignment" }, loading()) : null;
  if (drawn) for (const each of all.querySelectorAll("[data-head]")) each.setAttribute("aria-pressed", String(each.dataset.head === `${name}.${head}`));
  const panes = second ? h("div", { class: "two" }, first, second) : first;
  put(main, sentence(state, "Look"), card, aligned, h("section", { class: "card", "aria-label": "Attention" }, h("header", {}, h("h2", { text: "Who looks at whom" }), controls), panes), all, comparing(state, shelf));
  const other = { model: state.model2 || state.model, text: state.text2 || state.text, off: state.model2 && state.model2 !== state.model ? [] : off };
  const shown = (place, work) => work.catch((error) => { if (!gone()) put(place, failure(error)); });
  resolving(main.querySelector(".asks .chips"), state.model).catch(() => {}); // a page without it is whole
  await Promise.all([
    shown(first, pane(first, state, question, name, head, Boolean(second))),
    second && shown(second, pane(second, state, other, name, head, true)),
    aligned && shown(aligned, aligning(question, state).then(([map, layers]) => put(aligned, h("header", {}, h("h2", { text: "Alignment" }),
      segment("Decoder layer", layers.map((k) => [k, String(k)]), map.layer, (k) => go({ aligned: k })), h("span", { class: "note", text: map.note })), alignment(map)))),
    !drawn && shown(all, ask("grid", question).then((pictures) => {
      all.querySelector(".loading").replaceWith(h("div", { class: "kinds" }, grid(pictures, name, head, off)));
      kept = { key, all, time: Date.now() };
    })),
  ]);
}
