// Beside the path: the next token, the picture or the sound itself, and how positions are told apart.

import { ask } from "./api.js";
import { failure, h, loading, put, segment, shareBars, shown, slider } from "./dom.js";
import { heat } from "./heat.js";
import { placeNamer, seen } from "./media.js";
import { go, number } from "./route.js";
import { titleOf, wordsOf } from "./stations.js";

// ------------------------------------------------------------------ what comes out

// Whether it has shares over a vocabulary at every place.
export const writesTokens = (model) =>
  ["translate", "transcribe", "generate", "fill"].includes(model.task) &&
  model.speaks &&
  (model.medium !== "sound" || model.writes);

// The likeliest tokens at the row that is followed, by word, at a temperature. Null for a model that writes no tokens.
export function nextTokens(state, model, question, path, marked, names, gone) {
  if (!writesTokens(model)) return null;
  const isLast = path.stack === Object.keys(model.stacks).at(-1);
  const bars = h("div", { id: "next" }, loading("")),
    title = h("h3"),
    hint = h("span", { class: "note" });
  let temperature = number(state.temperature, 1, [0.1, 3]),
    last = 0;
  async function draw() {
    const mine = ++last;
    try {
      const position = isLast ? path.rows[marked][0] : -1;
      const result = await ask("next_tokens", { ...question, position, temperature, top: 6 });
      if (gone() || mine !== last) return;
      const [read] = (names[marked] ?? "").split(" → "); // what it predicts is the title of the bars
      const name = isLast ? `“${shown(read)}”` : "the last decoder position";
      put(title, model.task === "fill" ? `Prediction at ${name}` : `Next token after ${name}`);
      put(
        bars,
        shareBars(result.shares, {
          texts: result.continued,
          write: (text) => go({ text, row: "", pin: "", step: "" }),
        }),
      );
      put(hint, result.continued?.some(Boolean) ? "Click a token to append it." : "");
    } catch (error) {
      if (!gone()) put(bars, failure(error));
    }
  }
  const change = (value) => {
    temperature = value;
    go({ temperature: value }, { quietly: true });
    draw();
  };
  draw();
  return h(
    "div",
    { id: "out" },
    h("div", { class: "bar" }, title, hint),
    bars,
    h(
      "div",
      { class: "bar" },
      slider("Temperature", temperature, [0.1, 3, 0.1], change, (v) => v.toFixed(1), {
        live: true,
      }),
      h("span", {
        class: "note",
        text: "p = softmax(W x / T): low temperature sharpens the distribution, high temperature flattens it.",
      }),
    ),
  );
}

// ------------------------------------------------------------------ pictures and sound

// Labels of rows by what they are, and of an image the patches themselves.
export async function placeNames(path, model, question) {
  const rows = path.rows.map(([, label]) => label),
    memory = path.columns.map(([, label]) => label);
  if (!question.file) return { names: rows, memory, place: null };
  const ofInput = path.stack !== "decoder" || model.layers.encoder === undefined;
  const inputs = path.columns.length ? path.columns.at(-1)[0] + 1 : path.count; // the last place is always among them
  const place = await placeNamer(question, inputs);
  const result = {
    names: ofInput ? path.rows.map(([index]) => place(index)) : rows,
    memory: path.columns.map(([index]) => place(index)),
    place,
  };
  if (model.medium !== "image" || !ofInput) return result;
  const found = await ask("picture", {
    model: question.model,
    text: question.text,
    file: question.file,
  });
  const draw = (context, box) =>
    path.rows.forEach(([index], i) => patch(context, box(i), found, index - found.extras));
  draw.first = path.rows.findIndex(([index]) => index >= found.extras);
  return { ...result, picture: draw };
}

function patch(context, [x, y, size], found, number) {
  if (number < 0) return;
  const [high, wide] = found.shape,
    side = Math.floor(wide / found.side);
  const left = (number % found.side) * side,
    top = Math.floor(number / found.side) * side;
  const image = context.createImageData(side, side);
  for (let i = 0; i < side * side; i++) {
    const from = ((top + Math.floor(i / side)) * wide + left + (i % side)) * (found.shape[2] ?? 1);
    for (let c = 0; c < 3; c++)
      image.data[4 * i + c] = found.values[from + (found.shape[2] ? c : 0)];
    image.data[4 * i + 3] = 255;
  }
  const small = document.createElement("canvas");
  small.width = small.height = side;
  small.getContext("2d").putImageData(image, 0, 0);
  if (top < high) context.drawImage(small, x, y, size, size);
}

// The picture or the spectrogram itself, and on it what the followed row looks at; a place of it can be followed instead.
const PICTURE = { image: 250, sound: 430 }; // pixels
export function pictured(path, model, question, { anatomy, marked, head, gone }) {
  const at = `${path.stack}.${path.layer}`,
    ofInput = path.stack !== "decoder" || model.layers.encoder === undefined;
  const name = ofInput ? `${at}.self` : `${at}.cross`;
  if (!question.file || !PICTURE[model.medium] || !path.weights[name]) return null;
  const node = h("div", { id: "pictured" }, loading(""));
  async function draw() {
    const map = await ask("attention", {
      ...question,
      name,
      heads: [head],
      rows: null,
      relative: true,
    });
    const picture = await seen(question, ofInput ? map.rows : anatomy.target, map.columns, {
      pin: (row) => go({ row, play: "" }),
      own: ofInput,
      size: PICTURE[model.medium],
    });
    if (gone()) return;
    const { values, shades, title } = map;
    picture.show(values, { marked: path.rows[marked][0], shades, title });
    put(node, picture.node);
  }
  draw().catch((error) => {
    if (!gone()) put(node, failure(error));
  });
  return node;
}

// ------------------------------------------------------------------ positions

// How the model tells places apart: the vectors, and the product of each with each.
const PLACES = 32;
const CELL = 19; // pixels at most, so that both maps are seen whole
export function placing(state, model, question, gone) {
  const body = h("div", {}, loading()),
    stacks = Object.keys(model.stacks);
  const tower = stacks.find((name) => name.startsWith(question.file ? "image." : "text.")); // of two, the one that reads
  const stack = stacks.includes(state.places) ? state.places : (tower ?? stacks[0]);
  const words = wordsOf(model, question, stack);
  const node = h(
    "section",
    { class: "card", "aria-label": "Positions" },
    h(
      "header",
      {},
      h("h2", { text: `Position encoding of ${words.many}` }),
      stacks.length > 1
        ? segment(
            "Stack",
            stacks.map((name) => [name, titleOf(name)]),
            stack,
            (places) => go({ places }),
          )
        : null,
    ),
    body,
  );
  const drawn = (rows, columns, values, title) => {
    const wide = body.clientWidth; // beside each other where there is room for two
    const half = wide > 876 ? (wide - 16) / 2 : wide;
    const status = h("p", {
      class: "read faint",
      role: "status",
      text: "Point at a cell to see its value.",
    });
    const map = heat(rows, columns, {
      signed: true,
      room: Math.min(620, half || 620, 100 + CELL * columns.length),
      say: (i, j) => {
        status.textContent = `${rows[i]}, ${columns[j]}: ${values[i * columns.length + j].toFixed(3)}`;
      },
    });
    map.show(values, { title, scale: values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9) });
    return h("div", {}, h("h3", { text: title }), status, map.node);
  };
  const ofPicture = question.file && model.medium === "image" && words.one === "patch";
  ask("positions", { model: state.model, stack, length: PLACES }).then(
    async (found) => {
      const count = (list) => list.map((_, i) => String(i));
      // 2D sinusoidal encodings are of the patches alone; tables begin with the class token.
      const namer =
        ofPicture && found.what && !found.what.startsWith("2D sinusoidal")
          ? await placeNamer(question, PLACES)
          : String;
      if (gone()) return;
      if (found.what === null) {
        put(body, h("p", { class: "note", text: found.note }));
        return;
      }
      const places = found.products.map((_, i) => namer(i));
      const few = places.length === PLACES ? ` First ${PLACES} positions shown.` : "";
      const note = ofPicture
        ? "Patches are in reading order: if there is a band parallel to the diagonal, one row of patches away, vertical neighbours are similar."
        : found.note;
      put(
        body,
        h("p", {
          text: `Attention alone ignores the order of its ${words.many}. Position encoding of this model: ${found.what.replace(stack, titleOf(stack))}. ${note}${few}`,
        }),
        h(
          "div",
          { class: "two" },
          found.encodings
            ? drawn(
                places,
                count(found.encodings[0]),
                Float32Array.from(found.encodings.flat()),
                "One row per position, one column per dimension",
              )
            : null,
          drawn(
            places,
            places,
            Float32Array.from(found.products.flat()),
            found.encodings
              ? "Dot products of all pairs of positions"
              : "Added to the scores of all pairs of positions",
          ),
        ),
      );
    },
    (error) => {
      if (!gone()) put(body, failure(error));
    },
  );
  return node;
}
