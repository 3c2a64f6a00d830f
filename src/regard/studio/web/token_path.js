// The path of tokens through one layer, as a drawing: a row a token, a column a station. The strips are numbers of the
// vectors as they are; the residual stream runs through from left to right, and the sublayers add to it.

import { clipped, h, percent, roving, s, shown, textWidth } from "./dom.js";
import { colour } from "./heat.js";
import { cells, shade, sources } from "./strips.js";

const HEADER = 58,
  NODE = 22;
// Widths of columns. A decoder layer with two attentions has twice as many of them.
const WIDE = { gap: 26, strip: 84, narrow: 50, links: 150 },
  DENSE = { gap: 14, strip: 64, narrow: 40, links: 110 };
const MOST_LETTERS = 20;
const SENTENCE = 210; // the width of a sentence of a story
const WORD = 118; // the width of what comes out
const STILL = window.matchMedia("(prefers-reduced-motion: reduce)");

// ------------------------------------------------------------------ the columns

// The stations of a layer from left to right. `own` says whose rows a column has: the tokens', or those of the memory.
export function columns(path, model) {
  const { stack, layer } = path,
    at = `${stack}.${layer}`,
    norms = model.norms[stack],
    kind = model.layers[stack];
  const list = [],
    { strip: STRIP, narrow: NARROW, links: LINKS } = sizes(path);
  const add = (name, title, width = STRIP, more = {}) => {
    if (path.stations[name]) list.push({ name, title, width, own: true, ...more });
  };
  add(
    layer ? `${stack}.${layer - 1}.residual` : `${stack}.embedded`,
    layer ? `Layer ${layer - 1}` : embeddingTitle(kind),
    STRIP,
    { stream: true },
  );
  for (const part of ["self", "cross"]) {
    const attention = `${at}.${part}`,
      cross = part === "cross";
    if (!path.weights[attention]) continue;
    if (norms === "pre" || norms === "parallel")
      add(`${attention}.input`, "Norm", NARROW, { kind: "norm", branch: true });
    add(`${attention}.q`, "Q", NARROW, { kind: "attention" });
    if (cross)
      list.push({
        name: null,
        title: memoryTitle(kind),
        width: kind === "memory" ? SENTENCE : 112,
        own: false,
        labels: true,
      });
    add(`${attention}.k`, "K", NARROW, { kind: "attention", own: !cross });
    add(`${attention}.v`, "V", NARROW, { kind: "attention", own: !cross });
    list.push({
      name: `${attention}.weights`,
      title: cross ? "Cross-attention" : "Self-attention",
      width: LINKS,
      own: true,
      links: attention,
      kind: "attention",
    });
    add(`${attention}.mixed`, "A V", NARROW, { kind: "attention" });
    add(`${attention}.output`, "W_O", STRIP, { kind: "attention" });
    add(`${attention}.sum`, norms === "post" ? "Add & Norm" : "Add", STRIP, {
      kind: "sum",
      stream: true,
      adds: true,
    });
  }
  if (norms === "pre" || norms === "parallel")
    add(`${at}.feedforward.input`, "Norm", NARROW, { kind: "norm", branch: true });
  add(`${at}.feedforward.hidden`, "Hidden", NARROW, { kind: "feed" });
  add(`${at}.feedforward.output`, "Feed-forward", STRIP, { kind: "feed" });
  // The state of a recurrent cell is not added to its input: it goes from row to row.
  add(`${at}.residual`, residualTitle(kind, norms, layer), STRIP, {
    kind: kind === "recurrent" ? "feed" : "sum",
    stream: true,
    recurrent: kind === "recurrent",
    adds: kind === "memory" || (kind === "transformer" && norms !== "none"),
  });
  if (layer === model.stacks[stack] - 1)
    add(
      `${stack}.output`,
      norms === "pre" || norms === "parallel" ? "Final norm" : "Output",
      STRIP,
      { kind: "norm" },
    );
  if (path.words)
    list.push({
      name: `${at}.words`,
      title: layer === model.stacks[stack] - 1 ? outTitle(model) : "Logit lens",
      width: WORD,
      own: true,
      words: true,
      kind: "words",
    });
  return list;
}
// What is said at a place: mostly a token of the vocabulary.
const SAID = { classify: "class", tag: "label" };
export const saidWhat = (model) =>
  SAID[model.task] ?? (model.task === "transcribe" && !model.stacks.decoder ? "letter" : "token");
function outTitle(model) {
  const what = saidWhat(model);
  if (what === "token") return model.stacks.decoder ? "Next token" : "Token";
  return what[0].toUpperCase() + what.slice(1);
}
const sizes = (path) => (Object.keys(path.weights).length > 1 ? DENSE : WIDE);
const embeddingTitle = (kind) => (kind === "memory" ? "Question" : "Embedding");
const memoryTitle = (kind) => (kind === "memory" ? "Story" : "Encoder");
function residualTitle(kind, norms, layer) {
  if (kind === "recurrent") return `Cell ${layer}`;
  if (kind === "convolutional") return `Layer ${layer}`;
  if (kind === "memory") return `Hop ${layer}: add`;
  return norms === "post" ? "Add & Norm" : "Add";
}

// The width of a row's name, as it is when the row is followed.
const labelWidth = (text) => textWidth(text, "650 14px");

// `labels` is the width of the names of rows.
function place(list, labels, gap) {
  let x = labels;
  return list.map((column) => {
    const node = column.kind === "sum" ? NODE : 0; // the ⊕ stands before the sum
    const at = { ...column, x: x + node, node: node ? x + node / 2 - 4 : null };
    x += column.width + node + gap;
    return at;
  });
}

// ------------------------------------------------------------------ the strips

function strips(canvas, placed, path, rowHeight, ratio) {
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  for (const column of placed) {
    const station = column.name && path.stations[column.name];
    if (!station || column.links) continue;
    const numbers = station.values[0]?.length || 1,
      cell = column.width / numbers,
      thick = Math.min(24, rowHeight * 0.62);
    station.values.forEach((row, i) =>
      row.forEach((value, k) => {
        context.fillStyle = `rgb(${colour(shade(value, station.largest), true).join(" ")})`;
        context.fillRect(
          column.x + k * cell,
          HEADER + i * rowHeight + (rowHeight - thick) / 2,
          cell + 0.4,
          thick,
        );
      }),
    );
  }
}

// ------------------------------------------------------------------ lines

const middle = (i, rowHeight) => HEADER + (i + 0.5) * rowHeight;
const curve = (x0, y0, x1, y1) =>
  `M${x0} ${y0}C${x0 + (x1 - x0) * 0.5} ${y0} ${x1 - (x1 - x0) * 0.5} ${y1} ${x1} ${y1}`;

function attentionLines(column, path, marked, rowHeight) {
  const { values, shades } = path.weights[column.links];
  const { gap } = sizes(path),
    x0 = column.x - gap + 2,
    x1 = column.x + column.width + gap - 2,
    lines = [];
  values.forEach((row, i) =>
    row.forEach((weight, j) => {
      const shade = shades[i][j],
        chosen = i === marked;
      if (weight <= 0 || (!chosen && shade < 0.3) || (chosen && weight < 0.004)) return;
      lines.push([
        chosen,
        weight,
        s("path", {
          class: chosen ? "look chosen" : "look",
          d: curve(x0, middle(j, rowHeight), x1, middle(i, rowHeight)),
          "stroke-width": (0.6 + (chosen ? 6 : 2) * shade * shade).toFixed(2),
          "stroke-opacity": (chosen ? Math.min(1, 0.04 + shade) : 0.16 * shade).toFixed(3),
        }),
      ]);
    }),
  );
  lines.sort((a, b) => a[0] - b[0]); // the chosen ones on top
  return lines;
}

// A dot that runs along a path, again and again: what flows, and to whom.
function flowing(path, seconds, radius, begin = 0) {
  if (STILL.matches) return null;
  return s(
    "circle",
    { class: "drop", r: radius },
    s("animateMotion", {
      path,
      dur: `${seconds}s`,
      begin: `-${begin}s`,
      repeatCount: "indefinite",
    }),
  );
}

// Where the stream ends: at the last vector, or at the words that are made of it.
function streamEnd(placed) {
  const last = placed.at(-1);
  return last.words ? last.x - 8 : last.x + last.width;
}

// The values themselves, on their way into the station that is open: again and again a strip leaves where it comes from.
function movingStrips(open, placed, path, marked, rowHeight) {
  if (STILL.matches || !open) return [];
  const height = Math.min(20, rowHeight * 0.5);
  const arriving = sources(open, placed, path, marked).slice(0, 6);
  return arriving.map(({ column, row, weight }) => {
    const station = path.stations[column.name];
    if (!station) return null;
    const [x0, y0] = [column.x, middle(row, rowHeight) - height / 2],
      [x1, y1] = [open.x, middle(marked, rowHeight) - height / 2];
    // What passes a sublayer goes over it, along the arc of the residual connection.
    const over = open.adds && column.stream;
    const lift = over ? Math.min(24, rowHeight * 0.62) : 0;
    const way = over
      ? `M${x0} ${y0}L${x0 + 26} ${y0 - lift}H${x1 - 40}L${x1} ${y1}`
      : curve(x0, y0, x1, y1);
    return s(
      "g",
      { class: "moving" },
      cells(station, row, column.width, height),
      s("rect", {
        class: "edge",
        x: -1,
        y: -1,
        width: column.width + 2,
        height: height + 2,
        rx: 2,
      }),
      s("animateMotion", { path: way, dur: "2.4s", repeatCount: "indefinite" }),
      s("animate", {
        attributeName: "opacity",
        values: `0;${Math.sqrt(weight).toFixed(2)};${Math.sqrt(weight).toFixed(2)};0`,
        keyTimes: "0;0.15;0.8;1",
        dur: "2.4s",
        repeatCount: "indefinite",
      }),
    );
  });
}

// The likeliest word of each row after this layer, with its share as a bar.
function wordsOut(column, path, marked, rowHeight) {
  return path.words[path.layer + 1].map((guess, i) => {
    if (!guess) return null;
    const [token, share] = guess,
      y = middle(i, rowHeight),
      tall = Math.min(24, rowHeight * 0.62);
    return s(
      "g",
      { class: i === marked ? "out marked" : "out" },
      s("rect", {
        class: "track",
        x: column.x,
        y: y - tall / 2,
        width: column.width,
        height: tall,
        rx: 5,
      }),
      s("rect", {
        class: "part",
        x: column.x,
        y: y - tall / 2,
        width: Math.max(2, column.width * share),
        height: tall,
        rx: 5,
      }),
      s("text", { class: "word", x: column.x + 7, y: y + 5, text: clipped(shown(token), 9) }),
      s("text", {
        class: "percent",
        x: column.x + column.width - 5,
        y: y + 4,
        "text-anchor": "end",
        text: percent(share),
      }),
    );
  });
}

// The stream of the marked token: straight along its row, with an arc over each sublayer that it does not go through.
function stream(placed, marked, rowHeight, labels) {
  const y = middle(marked, rowHeight),
    stops = placed.filter((column) => column.stream && !column.recurrent),
    parts = [];
  // It does not go through the columns of the memory, whose rows are others.
  const breaks = placed.flatMap((column, i) => {
    if (column.own) return [];
    const before = placed[i - 1],
      after = placed.slice(i).find((each) => each.own && !each.links);
    return before.own ? [`H${before.x + before.width + 8}M${after.x - 4} ${y}`] : [];
  });
  const whole = `M${labels - 8} ${y}${breaks.join("")}H${streamEnd(placed)}`;
  stops.slice(0, -1).forEach((from, k) => {
    const to = stops[k + 1],
      x0 = from.x + from.width + 4,
      x1 = to.node,
      lift = Math.min(24, rowHeight * 0.62);
    parts.push(
      s("path", {
        class: "residual",
        d: `M${x0} ${y}C${x0 + 8} ${y - lift} ${x0 + 10} ${y - lift} ${x0 + 26} ${y - lift}H${x1 - 26}C${x1 - 10} ${y - lift} ${x1 - 4} ${y - lift} ${x1} ${y - 8}`,
      }),
    );
  });
  return [s("path", { class: "through", d: whole }), parts, flowing(whole, 6, 5)];
}

// ------------------------------------------------------------------ the drawing

// `names` are the labels of rows, `marked` is the row whose path is followed, `choose.station` and `choose.token` are called.
export function drawPath(path, model, { names, memory, marked, open, choose, picture = null }) {
  const labels = Math.max(
    74,
    30 +
      Math.max(...names.map((name) => labelWidth(clipped(shown(name), MOST_LETTERS)))) +
      (picture ? 24 : 0),
  );
  const placed = place(columns(path, model), labels, sizes(path).gap);
  const many = Math.max(names.length, memory.length),
    rowHeight = many > 18 ? 26 : many > 9 ? 34 : 46;
  const last = placed.at(-1),
    width = last.x + last.width + 14,
    height = HEADER + many * rowHeight + 14;
  const ratio = 2;
  const canvas = h("canvas", {
    class: "strips",
    width: width * ratio,
    height: height * ratio,
    "aria-hidden": "true",
  });
  strips(canvas, placed, path, rowHeight, ratio);
  picture?.(canvas.getContext("2d"), (i) => [
    labels - 34,
    HEADER + i * rowHeight + 3,
    rowHeight - 6,
  ]);

  const rails = names.map((_, i) =>
    s("line", {
      class: "rail",
      x1: labels - 8,
      x2: streamEnd(placed),
      y1: middle(i, rowHeight),
      y2: middle(i, rowHeight),
    }),
  );
  const nodes = placed
    .filter((column) => column.node !== null)
    .flatMap((column) =>
      names.map((_, i) =>
        s(
          "g",
          { class: i === marked ? "plus marked" : "plus" },
          s("circle", { cx: column.node, cy: middle(i, rowHeight), r: 7 }),
          s("path", {
            d: `M${column.node - 4} ${middle(i, rowHeight)}h8M${column.node} ${middle(i, rowHeight) - 4}v8`,
          }),
        ),
      ),
    );
  const linked = placed
    .filter((column) => column.links)
    .flatMap((column) => {
      const lines = attentionLines(column, path, marked, rowHeight);
      const strongest = lines
        .filter(([chosen]) => chosen)
        .sort((a, b) => b[1] - a[1])
        .slice(0, 4);
      return [
        ...lines.map(([, , line]) => line),
        ...strongest.map(([, weight, line], k) =>
          flowing(line.getAttribute("d"), 2.4, 2 + 4 * Math.sqrt(weight), k * 0.35),
        ),
      ];
    });
  // From each step to the next: the state that a recurrent cell remembers.
  const recurrence = placed
    .filter((column) => column.recurrent)
    .flatMap((column) =>
      names.slice(1).map((_, i) => {
        const x = column.x + column.width / 2,
          from = middle(i, rowHeight) + rowHeight * 0.3,
          to = middle(i + 1, rowHeight) - rowHeight * 0.3;
        return [
          s("line", { class: "state", x1: x, x2: x, y1: from, y2: to - 3 }),
          s("path", { class: "tip", d: `M${x - 4} ${to - 4}h8l-4 5z` }),
        ];
      }),
    );
  const bands = placed
    .filter((column) => column.name === open)
    .map((column) =>
      s("rect", {
        class: "band",
        x: column.x - 8,
        y: 4,
        width: column.width + 16,
        height: height - 10,
        rx: 10,
      }),
    );
  const station = (column) => {
    const size = path.stations[column.name]?.width,
      detail = column.links
        ? `head ${path.weights[column.links].head}`
        : column.words
          ? "softmax"
          : size;
    const [title, shape] = [column.title, detail === undefined ? "" : String(detail)];
    return s(
      "g",
      {
        class: `station ${column.kind ?? ""}${column.name === open ? " open" : ""}`,
        tabindex: -1,
        role: "button",
        "data-station": column.name,
        "aria-pressed": String(column.name === open),
        "aria-label": `${title}, ${column.name}`,
        onclick: () => choose.station(column.name),
      },
      s("rect", { x: column.x - 5, y: 8, width: column.width + 10, height: 40, rx: 9 }),
      s(
        "text",
        {
          x: column.x + column.width / 2,
          y: 26,
          "font-size": Math.min(13.5, ((column.width + 6) / title.length) * 1.5).toFixed(1),
        },
        title
          .split(/_(\w+)/)
          .map((part, i) => (i % 2 ? s("tspan", { class: "sub", dy: 4, text: part }) : part)),
      ),
      s("text", { class: "shape", x: column.x + column.width / 2, y: 41, text: shape }),
    );
  };
  const heads = placed.filter((column) => column.name).map(station);
  const memoryLabels = placed
    .filter((column) => column.labels)
    .map((column) => [
      s("text", {
        class: "label",
        x: column.x + column.width,
        y: 32,
        "text-anchor": "end",
        text: column.title,
      }),
      memory.map((text, j) =>
        s(
          "text",
          {
            class: "word dim",
            x: column.x + column.width - 2,
            y: middle(j, rowHeight) + 4,
            "text-anchor": "end",
            text: clipped(shown(text), column.width === SENTENCE ? 30 : 15),
          },
          s("title", { text }),
        ),
      ),
    ]);
  const tokens = names.map((text, i) =>
    s(
      "g",
      {
        class: i === marked ? "row marked" : "row",
        tabindex: -1,
        role: "button",
        "data-token": i,
        "aria-pressed": String(i === marked),
        "aria-label": `follow ${shown(text)}`,
        onclick: () => choose.token(i),
      },
      s("rect", {
        x: 2,
        y: HEADER + i * rowHeight + 1,
        width: labels - 14,
        height: rowHeight - 2,
        rx: 7,
      }),
      s(
        "text",
        {
          class: "word",
          x: picture && i >= picture.first ? labels - 40 : labels - 18,
          y: middle(i, rowHeight) + 5,
          "text-anchor": "end",
          text: clipped(shown(text), MOST_LETTERS),
        },
        s("title", { text }),
      ),
    ),
  );
  const svg = s(
    "svg",
    {
      class: "anatomy",
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": "The path of a token through this layer",
      onkeyup: (event) => {
        if (event.key === "Enter" || event.key === " ")
          event.target.closest("[role=button]")?.dispatchEvent(new Event("click"));
      },
    },
    bands,
    rails,
    stream(placed, marked, rowHeight, labels),
    linked,
    recurrence,
    nodes,
    memoryLabels,
    placed
      .filter((column) => column.words)
      .map((column) => wordsOut(column, path, marked, rowHeight)),
    movingStrips(
      placed.find((column) => column.name === open),
      placed,
      path,
      marked,
      rowHeight,
    ),
    s("g", { class: "stations", role: "group", "aria-label": "Steps of the layer" }, heads),
    s("g", { class: "rows", role: "group", "aria-label": "Positions to follow" }, tokens),
  );
  roving(svg.querySelector(".stations"), [heads]);
  roving(
    svg.querySelector(".rows"),
    tokens.map((token) => [token]),
  );
  const opened = placed.find((column) => column.name === open);
  const node = h(
    "div",
    { class: "scroll path", tabindex: -1 },
    h(
      "div",
      {
        class: "layers",
        style: { minWidth: `${Math.min(width, 1900) * 0.66}px`, maxWidth: `${width * 1.35}px` },
      },
      canvas,
      svg,
    ),
  );
  // Where the drawing is wider than the page, the open station stands in the middle.
  const reveal = () => {
    const scale = node.scrollWidth / width;
    if (opened && node.scrollWidth > node.clientWidth)
      node.scrollLeft = (opened.x + opened.width / 2) * scale - node.clientWidth / 2;
  };
  return { node, reveal };
}
