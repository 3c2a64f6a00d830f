// Look: what a model looks at while it reads, head by head.

import { ask } from "./api.js";
import { resolving } from "./circuit.js";
import { clipped, failure, fixed, h, loading, put, segment, shown } from "./dom.js";
import { dark, fullest, heat, scale, thumb } from "./heat.js";
import { alignment, links } from "./links.js";
import { chooser, seen } from "./media.js";
import { more } from "./more.js";
import { go, offList, offText } from "./route.js";

export const EXAMPLES = [
  "The cat sat on the mat.", "The dog does not enter the house because it is too tired.",
  "The dog does not enter the house because it is too empty.", "In my house the happy queen wants to work.",
];
const KINDS = { "encoder.self": "Encoder", "decoder.self": "Decoder", "decoder.cross": "Decoder → encoder", "image.encoder.self": "Image", "text.encoder.self": "Text" };
const CELLS = 5 << 19;
let drawn = { key: null }; // what is on the page: another head or pin changes only that
const kindOf = (name) => { const parts = name.split("."); return [...parts.slice(0, -2), parts.at(-1)].join("."); };
const layerOf = (name) => Number(name.split(".").at(-2));
const titled = (kind) => KINDS[kind] || kind;

function sentence(state, button) {
  const input = h("input", { type: "text", name: "text", value: state.text, "aria-label": "Sentence", maxlength: 8000, autocomplete: "off", spellcheck: "false" });
  const there = (text) => go({ text, pin: "", step: "", file: "", name: "" });
  return h("section", { class: "card asks" },
    h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); there(input.value.trim()); } },
      input, h("button", { class: "main", text: button })),
    h("div", { class: "chips" }, h("span", { class: "label", text: "Try" }),
      EXAMPLES.map((text) => h("button", { type: "button", text, onclick: () => there(text) }))));
}

// What a page begins with: a sentence, a file, or both, as the model takes them.
export function asking(state, model, button) {
  return [model.reads || !model.medium ? sentence(state, button) : null, model.medium ? chooser(model.medium, state, model.reads) : null];
}

// What a model is asked: a sentence, or a file where it takes one.
export function asked(state, model) {
  const file = model.medium && (state.file || !model.reads) ? state.file || "example" : undefined;
  return { model: state.model, text: file ? "" : state.text, file, off: offList(state) };
}

function difference(usual, now) {
  const before = new Set(usual.split(" "));
  return now.split(" ").flatMap((word, i) => [i ? " " : "", before.has(word) ? word : h("span", { class: "changed", text: word })]);
}

function result(found, question, off) {
  const said = h("p", { class: `said${question.text.length + (found.output?.length ?? 0) > 300 ? " long" : ""}`, id: "said" }, clipped(question.text, 240));
  if (found.output !== null) said.append(question.text ? h("span", { class: "arrow", text: "→" }) : "", h("span", { id: "output" }, found.usual === null ? found.output : difference(found.usual, found.output)));
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

// One model on one input. Tokens are drawn once for each kind of attention; another head only joins them otherwise.
function pane(place, question, found, { compare, titles }) {
  let kind = null, left = null, right = null, weights = null, map = null;
  const told = h("p", { class: "read faint", text: "Point at a cell for its weight." });
  const note = h("p", { class: "note" }), key = h("div");
  const pin = (i) => go({ pin: i < 0 ? "" : i });
  async function build(name) {
    const part = found.attentions[name], media = question.file && !(name.startsWith("decoder.") && name.endsWith(".self"));
    const names = name.endsWith(".cross") ? ["writes", "reads"] : ["looks", "is looked at"];
    left = media ? await seen(question, part.rows, part.columns, { pin, own: !name.endsWith(".cross"), id: "seen" }) : links(map.rows, map.columns, { pin, names });
    right = heat(map.rows, map.columns, { pick: (i) => pin(String(i) === drawn.pin ? -1 : i),
      say: (i, j) => { told.textContent = `“${shown(map.rows[i])}” → “${shown(map.columns[j])}”: ${weights[i * map.columns.length + j].toFixed(4)}`; } });
    put(place, titles, h("div", { class: compare || left.wide ? "" : "two" }, left.node, h("div", {}, told, right.node, key)), note);
    kind = kindOf(name);
  }
  return async (name, head, asked, late) => {
    const part = found.attentions[name];
    if (!part) { kind = null; put(place, titles, failure({ problem: `this model has no ${name}`, repair: "choose an attention that both models have" })); return true; }
    const most = Math.max(1, Math.floor(CELLS / part.columns.length));
    const rows = part.rows.length > most ? [...Array(most).keys()] : null;
    const answer = await ask("attention", { ...question, name, heads: [Math.min(head, part.heads - 1)], rows });
    if (late()) return true;
    if (answer.version !== found.version) return false; // the weights were written anew
    [map, weights] = [answer, answer.values];
    if (kindOf(name) !== kind) await build(name);
    const marked = asked === undefined || asked === "" ? -1 : Math.min(Number(asked), map.rows.length - 1);
    const view = { marked, title: map.title, scale: fullest(weights) };
    left.show(weights, view);
    right.show(weights, view);
    put(key, scale(view.scale));
    note.textContent = (rows ? `The first ${most} of ${part.rows.length} rows. ` : "") + map.note;
    return true;
  };
}

// All heads as small pictures, an attention at a time, so that nobody waits for the last one.
function overview(names, found, off) {
  const buttons = new Map(), rows = new Map(), kinds = new Map();
  for (const each of names) kinds.set(kindOf(each), [...(kinds.get(kindOf(each)) || []), each]);
  const node = h("section", { class: "card", "aria-label": "All heads" }, h("header", {}, h("h2", { text: "All heads" }),
    h("span", { class: "note", text: "Each map is scaled to its own largest weight. ⚑: collapsed, even or idle." })),
  h("div", { class: "kinds" }, [...kinds].map(([kind, list]) => h("div", { class: "heads kind" }, h("h3", { text: titled(kind) }),
    list.map((each) => h("div", { class: "layer" }, h("span", { class: "label", text: `layer ${layerOf(each)}` }), rows.set(each, h("div", { class: "cells" }, loading(""))).get(each)))))));
  let pressed = null, last = null;
  function press(name, head) {
    last = `${name}.${head}`;
    pressed?.setAttribute("aria-pressed", "false");
    pressed = buttons.get(last);
    pressed?.setAttribute("aria-pressed", "true");
  }
  async function load(question, late) {
    for (const each of names) {
      const found = await ask("grid", { ...question, name: each });
      if (late()) return;
      put(rows.get(each), found.heads.map((data, k) => {
        const out = off.some(([n, i]) => n === each && i === k), flag = found.flags[k];
        const button = h("button", { type: "button", class: `head${out ? " out" : ""}${flag ? " flagged" : ""}`, "aria-pressed": String(last === `${each}.${k}`), "data-head": `${each}.${k}`,
          "aria-label": `${each}, head ${k}${out ? ", off" : ""}${flag ? ", " + flag : ""}`, title: `${each} head ${k} · entropy ${fixed(found.entropy[k], 2)}${flag ? " · " + flag : ""}`,
          onclick: () => go({ at: each, head: k }) },
        thumb(data, found.rows, found.columns), `head ${k}${flag ? " ⚑" : ""}`);
        buttons.set(`${each}.${k}`, button);
        if (last === `${each}.${k}`) pressed = button;
        return button;
      }));
    }
  }
  return { node, press, load };
}

async function aligning(place, question, state) {
  const map = await ask("alignment", { ...question, layer: state.aligned === undefined || state.aligned === "" ? null : Number(state.aligned) });
  put(place, h("header", {}, h("h2", { text: "Alignment" }),
    segment("Decoder layer", [...Array(map.layers).keys()].map((k) => [k, String(k)]), map.layer, (k) => go({ aligned: k })), h("span", { class: "note", text: map.note })), alignment(map));
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

export default async function look(here) {
  const { main, state } = here;
  const key = JSON.stringify([state.model, state.text, state.file, state.name, state.off, state.compare, state.text2, state.model2, state.aligned, dark(), window.innerWidth]);
  if (drawn.key !== key || !drawn.root.isConnected || !(await drawn.choose(here))) await whole(here, key);
}

async function whole({ main, state, shelf, gone }, key) {
  const mine = drawn = { key: null };
  const late = () => drawn !== mine;
  const off = offList(state);
  const model = await ask("model", { model: state.model });
  if (gone()) return;
  const question = asked(state, model);
  const asks = asking(state, model, "Look");
  const card = h("section", { class: "card", "aria-label": "Result" }, loading("The model reads…"));
  const before = main.querySelectorAll(":scope > section.asks");
  if (!before.length || main.querySelector(":scope > .error")) put(main, asks, card);
  else { before.forEach((each) => each.remove()); main.prepend(...asks.filter(Boolean)); } // the rest stays until there is another
  const found = await ask("look", question);
  if (gone()) return;
  const names = Object.keys(found.attentions), kinds = [...new Set(names.map(kindOf))];
  const second = { model: state.model2 || state.model, text: state.text2 || question.text, file: state.text2 ? undefined : question.file, off: state.model2 && state.model2 !== state.model ? [] : off };
  const heading = (asked, said) => state.compare ? [h("p", { class: "said", text: said.output === null ? clipped(asked.text, 240) : `${clipped(asked.text, 240)} → ${said.output}` }), asked.model !== state.model ? h("p", { class: "note", text: asked.model }) : null].filter(Boolean) : [];
  const places = [h("div", {}, loading()), ...(state.compare ? [h("div", {}, loading())] : [])];
  const panes = [pane(places[0], question, found, { compare: state.compare, titles: heading(question, found) })];
  const controls = h("div", { class: "bar" });
  const all = overview(names, found, off);
  const other = more(model, question, found);
  const crossing = !question.file && found.target.length && names.some((n) => n.endsWith(".cross"));
  const aligned = crossing ? h("section", { class: "card", "aria-label": "Alignment" }, loading()) : null;
  const root = h("section", { class: "card", "aria-label": "Attention" }, h("header", {}, h("h2", { text: "Who looks at whom" }), controls), h("div", { class: places.length > 1 ? "two" : "" }, places));

  // Another head, layer or pin: the only things of the address that may differ while this stands.
  async function choose({ state, gone }) {
    const usual = names.filter((each) => each.endsWith(".cross")).at(-1) || names[0];
    const name = found.attentions[state.at] ? state.at : usual, heads = found.attentions[name].heads;
    const head = Math.max(0, Math.min(Number(state.head) || 0, heads - 1)), same = names.filter((each) => kindOf(each) === kindOf(name));
    const isOff = off.some(([n, k]) => n === name && k === head);
    drawn.pin = state.pin;
    put(controls, kinds.length > 1 ? segment("Attention", kinds.map((kind) => [kind, titled(kind)]), kindOf(name), (kind) => go({ at: names.find((n) => kindOf(n) === kind && layerOf(n) === layerOf(name)) || names.find((n) => kindOf(n) === kind), pin: "" })) : null,
      segment("Layer", same.map((each) => [each, String(layerOf(each))]), name, (at) => go({ at })),
      segment("Head", [...Array(heads).keys()].map((k) => [k, String(k)]), head, (k) => go({ head: k })),
      h("button", { type: "button", class: "off", id: "switch", "aria-pressed": String(isOff), text: isOff ? `Head ${head} is off` : `Switch head ${head} off`,
        onclick: () => go({ at: name, head, off: offText(isOff ? off.filter(([n, k]) => n !== name || k !== head) : [...off, [name, head]]) }) }));
    all.press(name, head);
    const fresh = await Promise.all(panes.map((each, i) => each(name, head, state.pin, gone).catch((error) => { if (!gone()) put(places[i], failure(error)); return true; })));
    other.choose(state, name);
    return fresh.every(Boolean);
  }

  put(card, result(found, question, off));
  put(main, asks, found.output !== null || off.length ? card : null, aligned, root, all.node, other.node, question.file ? null : comparing(state, shelf));
  Object.assign(mine, { key, root, choose });
  resolving(main.querySelector(".asks .chips"), state.model).catch(() => {}); // a page without it is whole
  const guarded = (place, work) => work.catch((error) => { if (!late()) put(place, failure(error)); });
  if (state.compare) panes.push(await ask("look", second).then((said) => pane(places[1], second, said, { compare: true, titles: heading(second, said) }),
    (error) => async () => { put(places[1], failure(error)); return true; }));
  await choose({ state, gone });
  await Promise.all([aligned && guarded(aligned, aligning(aligned, question, state)), guarded(all.node, all.load(question, late))]);
}
