// Look: what a model answers, and its attention, head by head.

import { ask } from "./api.js";
import { answerCard, difference } from "./answer.js";
import { asked, asking, readsWhat, textOf } from "./ask_card.js";
import { clipped, failure, fixed, h, loading, put, roving, segment, shown } from "./dom.js";
import { attentionScale, dark, heat, thumb } from "./heat.js";
import { alignment, links } from "./links.js";
import { picture } from "./marks.js";
import { placeNamer, seen } from "./media.js";
import { more } from "./more.js";
import { resolving } from "./pronoun.js";
import { count, go, offList, offText } from "./route.js";

const KINDS = {
  "encoder.self": "Encoder",
  "decoder.self": "Decoder",
  "decoder.cross": "Cross-attention",
  "image.encoder.self": "Image",
  "text.encoder.self": "Text",
  "memory.cross": "Question → story",
};
const CELLS = 5 << 19; // weights in one answer
const MOST = 240; // letters of a heading
let drawn = { key: null }; // what is on the page: another head or pin changes only that
const kindOf = (name) => {
  const parts = name.split(".");
  return [...parts.slice(0, -2), parts.at(-1)].join(".");
};
const layerOf = (name) => Number(name.split(".").at(-2));
// The same attention of another model: that of the same layer, in whatever stack it has.
const inLayer = (name) => name.split(".").slice(-2).join(".");
const twin = (name, attentions) =>
  attentions[name] ? name : Object.keys(attentions).find((each) => inLayer(each) === inLayer(name));
const titled = (kind) => KINDS[kind] || kind;

// An unknown word is shown as it was written, with a mark.
const named = (tokens, unknown) =>
  tokens.map((token, i) => (unknown?.[i] ? `${unknown[i]} ⁇` : token));

// A series or a graph with what a head sees drawn on it, by the studio; a row of the heat map picks who looks.
function overlaid(question) {
  const place = h("div", { class: "scroll", id: "overlay" });
  let wanted = 0;
  async function show(_, { marked, name, head }) {
    const mine = ++wanted;
    const answer = await ask("overlay", {
      ...question,
      name,
      heads: [head],
      rows: marked < 0 ? null : [marked],
    });
    if (mine === wanted) put(place, picture(answer));
  }
  return {
    wide: false,
    show,
    node: h(
      "div",
      {},
      place,
      h("p", { class: "note", text: "Select a row of the heat map to choose the query." }),
    ),
  };
}

// One model on one input. Tokens are drawn once for each kind of attention; another head only joins them otherwise.
function pane(place, question, found, { compare, titles, room, relative }) {
  let kind = null,
    left = null,
    right = null,
    weights = null,
    map = null;
  const status = h("p", {
    class: "read faint",
    role: "status",
    text: "Point at a cell to see its weight, or use the arrow keys.",
  });
  const note = h("p", { class: "note" }),
    key = h("div", { class: "bar" });
  const pin = (i) => go({ pin: i < 0 ? "" : i });
  const ofSource = (name) =>
    name.startsWith("encoder.") || (name.startsWith("decoder.") && !found.target.length);
  async function build(name) {
    const written = name.startsWith("decoder.") && name.endsWith(".self"); // what looks and is looked at is no part of the input
    const part = found.attentions[name],
      media = question.file && !written;
    const names = name.startsWith("memory.")
      ? ["question", "story"]
      : name.endsWith(".cross")
        ? ["target", "source"]
        : ["query", "key"];
    const letters = name.startsWith("memory.") ? 34 : 16; // sentences are longer than tokens
    const ofColumns = ofSource(name) || name.endsWith(".cross");
    const nameOf = media ? await placeNamer(question, part.columns.length) : null; // patches and moments have names of their own
    const sourceNames = (tokens) =>
      nameOf ? tokens.map((_, i) => nameOf(i)) : named(tokens, found.unknown);
    const rows =
      ofSource(name) || (media && !name.endsWith(".cross")) ? sourceNames(map.rows) : map.rows;
    const columns = ofColumns || media ? sourceNames(map.columns) : map.columns;
    const half = compare || window.innerWidth < 980 ? room : (room - 16) / 2;
    const picture =
      found.drawn && !written
        ? overlaid(question)
        : media
          ? await seen(question, part.rows, part.columns, {
              pin,
              own: !name.endsWith(".cross"),
              id: "seen",
            })
          : null;
    right = heat(rows, columns, {
      letters: letters - 2,
      pick: (i) => pin(String(i) === drawn.pin ? -1 : i),
      room: picture?.wide ? room : half,
      say: (i, j) => {
        const weight = weights[i * map.columns.length + j];
        status.textContent = `“${shown(rows[i])}” attends to “${shown(columns[j])}”: ${weight.toFixed(4)}, ${(weight * map.columns.length).toFixed(1)} × uniform`;
      },
    });
    left =
      picture ??
      links(rows, columns, { pin, names, room: half, letters, row: right.row, top: right.top });
    put(
      place,
      titles,
      h(
        "div",
        { class: compare || left.wide ? "" : "two" },
        left.node,
        h("div", {}, status, right.node, key),
      ),
      note,
    );
    kind = kindOf(name);
  }
  return async (wanted, head, asked, late) => {
    const name = twin(wanted, found.attentions),
      part = found.attentions[name];
    if (!part) {
      kind = null;
      put(
        place,
        titles,
        failure({
          problem: `this model has no ${wanted}`,
          repair: "choose a layer that both models have",
        }),
      );
      return true;
    }
    const most = Math.max(1, Math.floor(CELLS / part.columns.length));
    const rows = part.rows.length > most ? [...Array(most).keys()] : null;
    const answer = await ask("attention", {
      ...question,
      name,
      heads: [Math.min(head, part.heads - 1)],
      rows,
      relative,
    });
    if (late()) return true;
    if (answer.version !== found.version) return false; // the weights were written anew
    [map, weights] = [answer, answer.values];
    if (kindOf(name) !== kind) await build(name);
    const marked = Math.min(count(asked, -1), map.rows.length - 1);
    const { title, shades, clear } = map;
    put(key, attentionScale(map.relative), question.file ? null : relativeSwitch(map.relative));
    left.show(weights, { marked, title, shades, clear, name, head: map.heads[0] });
    right.show(shades, { marked, title });
    note.textContent =
      (name === wanted ? "" : `Showing ${name}: this model has no ${wanted}. `) +
      (rows ? `First ${most} of ${part.rows.length} rows. ` : "") +
      (Object.values(found.unknown || {}).some(Boolean) ? "⁇: not in the vocabulary. " : "") +
      map.note;
    return true;
  };
}

// How maps are shaded: by the weights themselves, or relative to uniform attention, which shows small weights of long inputs.
const shading = (state, question) =>
  question.file ? true : state.relative ? state.relative === "1" : null;
const relativeSwitch = (relative) =>
  h(
    "label",
    { class: "check" },
    h("input", {
      type: "checkbox",
      id: "relative",
      checked: relative,
      onchange: (event) => go({ relative: event.target.checked ? "1" : "0" }),
    }),
    " relative to uniform",
  );

// The head to begin with: the sharpest one that is not stuck to a position, as far as the flags know.
async function telling(question, name, relative) {
  const { entropy, flags } = await ask("grid", { ...question, name, relative });
  const heads = [...entropy.keys()];
  const usable = heads.filter((k) => !flags[k]);
  return (usable.length ? usable : heads).reduce((a, b) => (entropy[b] < entropy[a] ? b : a));
}

// Heads in another order than that of the layers: the sharpest first, or by what they are known to do.
async function ordered(order, names, question, relative) {
  const all = [];
  for (const name of names) {
    const { entropy } = await ask("grid", { ...question, name, relative });
    entropy.forEach((value, head) => all.push({ name, head, value, said: value.toFixed(2) }));
  }
  if (order === "entropy") return all.sort((a, b) => a.value - b.value);
  const found = await ask("roles", { model: question.model });
  const role = (name, head) => {
    const at = found.names.indexOf(name);
    const scores = found.roles.map((_, i) => (at < 0 ? 0 : (found.scores[i][at][head] ?? 0)));
    const best = scores.indexOf(Math.max(...scores));
    return [scores[best] ?? 0, found.roles[best] ?? ""];
  };
  return all
    .map((each) => {
      const [value, said] = role(each.name, each.head);
      return { ...each, value, said: `${said} ${Math.round(100 * value)} %` };
    })
    .sort((a, b) => b.value - a.value);
}

// All heads as small pictures, an attention at a time, so that nobody waits for the last one. Arrow keys go through them.
// A line is a layer; layers of one head each stand beside each other.
function overview(attentions, off, relative, { order, canRole }) {
  const names = Object.keys(attentions);
  const buttons = new Map(),
    rows = new Map(),
    kinds = new Map();
  const single = (list) => list.every((each) => attentions[each].heads === 1);
  for (const each of names) kinds.set(kindOf(each), [...(kinds.get(kindOf(each)) || []), each]);
  const grid = h(
    "div",
    { class: "kinds" },
    [...kinds].map(([kind, list]) =>
      h(
        "div",
        { class: single(list) ? "heads kind single" : "heads kind" },
        h("h3", { text: titled(kind) }),
        list.map((each) =>
          h(
            "div",
            { class: "layer" },
            h("span", {
              class: "label",
              text: `${each.startsWith("memory.") ? "hop" : "layer"} ${layerOf(each)}`,
            }),
            rows
              .set(
                each,
                h("div", { class: "cells", role: "group", "aria-label": each }, loading("")),
              )
              .get(each),
          ),
        ),
      ),
    ),
  );
  const node = h(
    "section",
    { class: "card", "aria-label": "All heads" },
    h(
      "header",
      {},
      h("h2", { text: "All heads" }),
      h("span", {
        class: "note",
        text: "⚑: collapsed, uniform or idle. Arrow keys move between heads.",
      }),
      names.some((each) => attentions[each].heads > 1)
        ? segment(
            "Order",
            [["", "layer"], ["entropy", "entropy"], ...(canRole ? [["role", "role"]] : [])],
            order,
            (sort) => go({ sort }),
          )
        : null,
    ),
    grid,
  );
  let pressed = null,
    last = null;
  function press(name, head) {
    last = `${name}.${head}`;
    pressed?.setAttribute("aria-pressed", "false");
    pressed = buttons.get(last);
    pressed?.setAttribute("aria-pressed", "true");
    if (pressed) arrange();
  }
  const lines = [...kinds.values()].flatMap((list) =>
    single(list) ? [list] : list.map((each) => [each]),
  );
  const arrange = () =>
    !order &&
    roving(
      grid,
      lines
        .map((line) => line.flatMap((each) => [...rows.get(each).querySelectorAll("button")]))
        .filter((row) => row.length),
    );
  function headButton(each, k, result, said) {
    const out = off.some(([n, i]) => n === each && i === k),
      flag = result.flags[k];
    const name = said ? `${each} ${k}` : `head ${k}`;
    const button = h(
      "button",
      {
        type: "button",
        class: `head${out ? " out" : ""}${flag ? " flagged" : ""}`,
        "aria-pressed": String(last === `${each}.${k}`),
        "data-head": `${each}.${k}`,
        tabindex: -1,
        "aria-label": said
          ? null
          : `${each}, ${name}${out ? ", ablated" : ""}${flag ? ", " + flag : ""}`,
        title: `${each} head ${k} · entropy ${fixed(result.entropy[k], 2)}${flag ? " · " + flag : ""}`,
        onclick: () => go({ at: each, head: k }),
      },
      thumb(result.heads[k], result.rows, result.columns),
      `${name}${flag ? " ⚑" : ""}`,
      said ? h("span", { class: "said", text: said }) : null,
    );
    buttons.set(`${each}.${k}`, button);
    if (last === `${each}.${k}`) pressed = button;
    return button;
  }
  async function load(question, late) {
    if (order) {
      const list = await ordered(order, names, question, relative);
      const results = new Map();
      for (const each of names)
        results.set(each, await ask("grid", { ...question, name: each, relative }));
      if (late()) return;
      const all = list.map(({ name, head, said }) =>
        headButton(name, head, results.get(name), said),
      );
      put(grid, h("div", { class: "cells", role: "group", "aria-label": `by ${order}` }, all));
      roving(grid, [all]);
      return;
    }
    for (const each of names) {
      const result = await ask("grid", { ...question, name: each, relative });
      if (late()) return;
      put(
        rows.get(each),
        result.heads.map((_, k) => headButton(each, k, result, "")),
      );
      arrange();
    }
  }
  return { node, press, load };
}

async function aligning(place, question, state, room, unknown) {
  const map = await ask("alignment", {
    ...question,
    layer: Number.isNaN(count(state.aligned, NaN)) ? null : count(state.aligned, NaN),
  });
  put(
    place,
    h(
      "header",
      {},
      h("h2", { text: "Alignment" }),
      segment(
        "Decoder layer",
        [...Array(map.layers).keys()].map((k) => [k, String(k)]),
        map.layer,
        (k) => go({ aligned: k }),
      ),
      h("span", { class: "note", text: map.note }),
    ),
    alignment({ ...map, source: named(map.source, unknown) }, room),
  );
}

// A sentence and the answer to it, in one line. Only translators have written theirs by now; others are asked for it.
function inputAndOutput(question, output, usual) {
  const line = (answer) =>
    [question.text, answer && shown(answer)]
      .filter(Boolean)
      .map((text) => clipped(text, MOST))
      .join(" → ");
  const changed = output && usual && usual !== output;
  const node = h(
    "p",
    { class: "model-output" },
    changed
      ? [clipped(question.text, MOST), " → ", difference(usual, clipped(output, MOST))]
      : line(output),
  );
  // A refusal is shown by the card of the answer, or by the pane itself.
  if (output === null)
    ask("answer", question).then(
      ({ answer }) => {
        node.textContent = line(answer.text);
      },
      () => {},
    );
  return node;
}

// Beside the input: the head that resolves a pronoun, and a second sentence or model to compare with. Of a picture or a
// recording there is no second one: it is shown to two models.
function comparing(state, model, shelf, question) {
  if (question.file && shelf.models.length < 2) return null;
  const text = h("input", {
    type: "text",
    value: state.text2 || "",
    "aria-label": `Second ${readsWhat(model)[0]}`,
    placeholder: `another ${readsWhat(model)[0]} (or leave empty and choose another model)`,
  });
  const models = h(
    "select",
    { "aria-label": "Second model" },
    shelf.models.map((name) => h("option", { value: name, text: name })),
  );
  models.value = state.model2 || state.model;
  const submit = (event) => {
    event.preventDefault();
    const texts = question.file
      ? { text2: "" }
      : { text: textOf(state, model), text2: text.value.trim() };
    go({ ...texts, model2: models.value, compare: 1 });
  };
  const title = question.file
    ? "Compare with another model"
    : `Compare two ${readsWhat(model)[1]} or two models`;
  return h(
    "div",
    { class: "tools" },
    h("div", { class: "chips", id: "pronoun" }),
    h(
      "details",
      { open: Boolean(state.compare) },
      h("summary", { text: title }),
      h(
        "form",
        { class: "ask spaced", onsubmit: submit },
        question.file ? null : text,
        shelf.models.length > 1 ? models : null,
        h("button", { class: "main", text: "Compare" }),
        state.compare
          ? h("button", {
              type: "button",
              text: "Stop comparing",
              onclick: () => go({ compare: "", text2: "", model2: "" }),
            })
          : null,
      ),
    ),
  );
}

export default async function look(here) {
  const { state } = here;
  const key = JSON.stringify([
    state.model,
    state.text,
    state.file,
    state.name,
    state.off,
    state.compare,
    state.text2,
    state.model2,
    state.aligned,
    state.captions,
    state.relative,
    state.sort,
    dark(),
    window.innerWidth,
  ]);
  if (drawn.key !== key || !drawn.root.isConnected || !(await drawn.choose(here)))
    await whole(here, key);
}

async function whole({ main, state, shelf, gone }, key) {
  const wasOpen = drawn.key !== null;
  const mine = (drawn = { key: null });
  const late = () => drawn !== mine;
  const off = offList(state);
  const model = await ask("model", { model: state.model });
  if (gone()) return;
  const question = asked(state, model);
  const relative = shading(state, question);
  const tools = comparing(state, model, shelf, question);
  const asks = asking(state, model, "Look", tools);
  const waiting = h(
    "section",
    { class: "card", "aria-label": "Result" },
    loading("Running the model…"),
  );
  const before = main.querySelectorAll(":scope > section.asks");
  if (!before.length || main.querySelector(":scope > .error")) put(main, asks, waiting);
  else {
    before.forEach((each) => each.remove());
    main.prepend(...asks.filter(Boolean));
  } // the rest stays until there is another
  const found = await ask("look", question);
  if (gone()) return;
  const answered = answerCard(state, model, question, { surprise: found.surprise, gone: late });
  const names = Object.keys(found.attentions),
    kinds = [...new Set(names.map(kindOf))];
  const room = main.clientWidth - 2 * parseFloat(getComputedStyle(main).paddingLeft) - 38;
  if (!names.length) {
    // a linear forecaster
    const series = found.drawn
      ? h(
          "div",
          { class: "scroll", id: "overlay" },
          picture(await ask("overlay", { ...question, name: "" })),
        )
      : null;
    put(
      main,
      asks,
      answered.node,
      h(
        "section",
        { class: "card", "aria-label": "Attention" },
        h(
          "header",
          {},
          h("h2", { text: "No attention" }),
          h("span", {
            class: "note",
            text: "This model has no attention layers. Learn shows what it computes.",
          }),
        ),
        series,
      ),
    );
    await answered.ready;
    return;
  }
  const second = {
    model: state.model2 || state.model,
    text: state.text2 || question.text,
    file: state.text2 ? undefined : question.file,
    off: state.model2 && state.model2 !== state.model ? [] : off,
  };
  const heading = (asked, found) =>
    state.compare
      ? [
          inputAndOutput(asked, found.output, found.usual),
          found.usual && found.usual !== found.output
            ? h(
                "p",
                {},
                h("span", { class: "changed", text: "changed" }),
                ` With all heads: ${clipped(found.usual, MOST)}`,
              )
            : null,
          second.model !== state.model ? h("p", { class: "note", text: asked.model }) : null,
        ].filter(Boolean)
      : [];
  const places = [h("div", {}, loading()), ...(state.compare ? [h("div", {}, loading())] : [])];
  const paneRoom = state.compare && window.innerWidth >= 980 ? (room - 16) / 2 : room;
  const panes = [
    pane(places[0], question, found, {
      compare: state.compare,
      titles: heading(question, found),
      room: paneRoom,
      relative,
    }),
  ];
  const controls = h("div", { class: "bar" });
  const order = ["entropy", "role"].includes(state.sort) ? state.sort : "";
  const canRole = model.analyses.includes("roles");
  const all = overview(found.attentions, off, relative, { order, canRole });
  const other = more(model, question, found, room);
  const crossing = !question.file && found.target.length && names.some((n) => n.endsWith(".cross"));
  const aligned = crossing
    ? h("section", { class: "card", "aria-label": "Alignment" }, loading())
    : null;
  const root = h(
    "section",
    { class: "card", "aria-label": "Attention" },
    h("header", {}, h("h2", { text: "Attention weights" }), controls),
    h("div", { class: places.length > 1 ? "two" : "" }, places),
  );

  // Another head, layer or pin: the only things of the address that may differ while this stands.
  async function choose({ state, gone }) {
    const usual = names.filter((each) => each.endsWith(".cross")).at(-1) || names[0];
    const name = Object.hasOwn(found.attentions, state.at) ? state.at : usual,
      heads = found.attentions[name].heads;
    const best = state.head === undefined ? await telling(question, name, relative) : 0;
    if (gone()) return true;
    const head = Math.max(0, Math.min(count(state.head, best), heads - 1)),
      same = names.filter((each) => kindOf(each) === kindOf(name));
    const isOff = off.some(([n, k]) => n === name && k === head);
    drawn.pin = state.pin;
    put(
      controls,
      kinds.length > 1
        ? segment(
            "Attention",
            kinds.map((kind) => [kind, titled(kind)]),
            kindOf(name),
            (kind) =>
              go({
                at:
                  names.find((n) => kindOf(n) === kind && layerOf(n) === layerOf(name)) ||
                  names.find((n) => kindOf(n) === kind),
                pin: "",
              }),
          )
        : null,
      segment(
        model.kind === "memory network" ? "Hop" : "Layer",
        same.map((each) => [each, String(layerOf(each))]),
        name,
        (at) => go({ at }),
      ),
      segment(
        "Head",
        [...Array(heads).keys()].map((k) => [k, String(k)]),
        head,
        (k) => go({ head: k }),
      ),
      h("button", {
        type: "button",
        class: "off",
        id: "switch",
        "aria-pressed": String(isOff),
        text: isOff ? `Head ${head} ablated` : `Ablate head ${head}`,
        onclick: () =>
          go({
            at: name,
            head,
            off: offText(
              isOff ? off.filter(([n, k]) => n !== name || k !== head) : [...off, [name, head]],
            ),
          }),
      }),
    );
    all.press(name, head);
    const fresh = await Promise.all(
      panes.map((each, i) =>
        each(name, head, state.pin, gone).catch((error) => {
          if (!gone()) put(places[i], failure(error));
          return true;
        }),
      ),
    );
    other.choose(state, name, head);
    return fresh.every(Boolean);
  }

  put(main, asks, answered.node, aligned, root, all.node, other.node);
  Object.assign(mine, { key, root, choose });
  const pronoun = main.querySelector("#pronoun");
  if (pronoun) resolving(pronoun, state.model).catch(() => {}); // a page without it is whole
  const guarded = (place, work) =>
    work.catch((error) => {
      if (!late()) put(place, failure(error));
    });
  if (state.compare)
    panes.push(
      await ask("look", second).then(
        (secondLook) =>
          pane(places[1], second, secondLook, {
            compare: true,
            titles: heading(second, secondLook),
            room: paneRoom,
            relative,
          }),
        (error) => async () => {
          put(places[1], failure(error));
          return true;
        },
      ),
    );
  await choose({ state, gone });
  // What a button opened below the fold is shown; and once more when what stands above has its height.
  const reveal = () => {
    const below = root.getBoundingClientRect().top > window.innerHeight / 2;
    if (state.compare && wasOpen && below && !late()) root.scrollIntoView();
  };
  reveal();
  await Promise.all([
    answered.ready,
    aligned && guarded(aligned, aligning(aligned, question, state, room, found.unknown)),
    guarded(all.node, all.load(question, late)),
  ]);
  reveal();
}
