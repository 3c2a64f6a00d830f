// @ts-check
// The drawing of a layer: residual streams as straight lines, and sublayers as blocks that read from them and add to them.

import { clipped, h, roving, s, shown, textWidth } from "./dom.js";
import { css } from "./heat.js";
import { layout } from "./flow_layout.js";
import { cells } from "./strips.js";
import { takeAway } from "./take_away.js";

/** @typedef {import("./answers.js").Path} Path */
/** @typedef {import("./flow_layout.js").Layout} Layout */
/** @typedef {import("./flow_layout.js").Block} Block */
/** @typedef {import("./flow_layout.js").Stop} Stop */
/** @typedef {import("./flow_layout.js").PlacedStation} PlacedStation */
/** @typedef {import("./stations.js").Column} Column */
/**
 * `names` and `memory` are the labels of rows, `marked` is the row that is followed, `every` shows the values of all rows.
 * @typedef {{path: Path, list: Column[], names: string[], memory: string[], marked: number, open: string, norms: string, kind: string,
 *   every: boolean, room: number, choose: {station: (name: string) => void, token: (row: number) => void},
 *   picture: any}} Given
 */
/** What is drawn, and where. @typedef {Given & {at: Layout}} Scene */

const MOST_LETTERS = 20;
const LEAST_WEIGHT = 0.004; // of those that are drawn as a line
const TOLD = 0.1; // weights that are written out
const STILL = window.matchMedia("(prefers-reduced-motion: reduce)");

const line = (/** @type {number[]} */ [x1, y1, x2, y2], /** @type {string} */ kind) =>
  s("line", { class: kind, x1, y1, x2, y2 });
/** @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
const across = (x0, y0, x1, y1) =>
  `M${x0} ${y0}C${(x0 + x1) / 2} ${y0} ${(x0 + x1) / 2} ${y1} ${x1} ${y1}`;
/** Leaves a line along it, and arrives from below or above. @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
const upwards = (x0, y0, x1, y1) => `M${x0} ${y0}C${x1} ${y0} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`;

// A dot that runs along a path, again and again: what flows, and to whom.
/** @param {string} path @param {number} seconds @param {number} radius @param {number} [begin] */
function flowing(path, seconds, radius, begin = 0) {
  if (STILL.matches) return null;
  const more = { dur: `${seconds}s`, begin: `-${begin}s`, repeatCount: "indefinite" };
  return s("circle", { class: "drop", r: radius }, s("animateMotion", { path, ...more }));
}

/** A title with its subscript: W_O. @param {string} text */
const titled = (text) =>
  text
    .split(/_(\w+)/)
    .map((part, i) => (i % 2 ? s("tspan", { class: "sub", dy: 3, text: part }) : part));

// ------------------------------------------------------------------ rows

/** @param {Scene} scene */
function streams({ at, marked, path }) {
  const { start, end, rows } = at;
  const stop = path.words ? at.stops[at.stops.length - 1].x - 60 : end;
  const y = rows[marked].y;
  return [
    rows.map((row) => line([start, row.y, stop, row.y], "rail")),
    rows.map(({ index, y: below, skipped }) => {
      if (!skipped) return null;
      const between = (below + rows[index - 1].y) / 2 + 4;
      const dots = { class: "skipped", x: start - 6, y: between, "text-anchor": "end", text: "⋮" };
      return s("text", dots, s("title", { text: `${skipped} more` }));
    }),
    line([start, y, stop, y], "through"),
    flowing(`M${start} ${y}H${stop}`, 6, 5),
  ];
}

/** The names of rows, each a button that follows it. @param {Scene} scene */
function rowNames({ at, names, marked, choose, picture }) {
  return names.map((text, i) => {
    const { y } = at.rows[i];
    const isPictured = picture && i >= picture.first;
    return s(
      "g",
      {
        class: i === marked ? "row marked" : "row",
        tabindex: -1,
        role: "button",
        "data-token": i,
        "aria-pressed": String(i === marked),
        "aria-label": `follow ${clipped(shown(text), MOST_LETTERS)}`,
        onclick: () => choose.token(i),
      },
      s("rect", { x: 2, y: y - 11, width: at.labels - 6, height: 22, rx: 7 }),
      s(
        "text",
        {
          class: "word",
          x: at.labels - (isPictured ? 36 : 14),
          y: y + 5,
          "text-anchor": "end",
          text: clipped(shown(text), MOST_LETTERS),
        },
        s("title", { text }),
      ),
    );
  });
}

/** What cross-attention reads, in a lane of its own. @param {Scene} scene */
function lane({ at, memory, kind, path }) {
  if (!at.lane) return null;
  const title = kind === "memory" ? "Story" : "Encoder output";
  const missing = path.columns.length - at.lane.rows.length;
  const more = missing > 0 ? `: the ${at.lane.rows.length} that are attended to most` : "";
  const letters = Math.floor((at.labels - 12) / 7);
  return s(
    "g",
    { class: "lane" },
    s("rect", { class: "ground", x: 1, y: 1, width: at.width - 2, height: at.lane.bottom, rx: 10 }),
    at.lane.rows.map(({ y }) => line([at.start, y, at.end, y], "rail")),
    s("g", { class: "pinned" }, [
      s("text", { class: "label", x: 12, y: 17, text: title + more }),
      at.lane.rows.map(({ index, y }) =>
        s(
          "text",
          {
            class: "word dim",
            x: at.labels - 12,
            y: y + 4,
            "text-anchor": "end",
            text: clipped(shown(memory[index]), letters),
          },
          s("title", { text: memory[index] }),
        ),
      ),
    ]),
  );
}

// ------------------------------------------------------------------ sublayers

/** From which rows an attention takes what it adds: a curve each, as thick as its weight. @param {Scene} scene @param {Block} block */
function fan({ at, path, marked }, block) {
  if (!block.attention) return null;
  const isCross = block.attention.endsWith(".cross");
  const rows = isCross ? (at.lane?.rows ?? []) : at.rows;
  const { values } = path.weights[block.attention];
  const weights = values[marked] ?? values[0];
  const from = block.x - 30;
  const to = isCross ? block.y : block.y + block.height;
  const drawn = rows
    .map(({ index, y }) => ({ y, weight: weights[index] ?? 0 }))
    .filter(({ weight }) => weight > LEAST_WEIGHT)
    .sort((a, b) => a.weight - b.weight);
  return drawn.map(({ y, weight }, i) => {
    const way = upwards(from, y, block.port, to);
    const look = s("path", {
      class: "look",
      d: way,
      "stroke-width": (0.8 + 6 * weight).toFixed(2),
      "stroke-opacity": (0.2 + 0.75 * weight).toFixed(3),
    });
    const told = weight >= TOLD && drawn.length - i <= 4;
    const share = {
      class: "share",
      x: from - 4,
      y: y - 4,
      "text-anchor": "end",
      text: `${Math.round(100 * weight)} %`,
    };
    return [
      look,
      line([from, y, from + 0.1, y], "tap"),
      told ? s("text", share) : null,
      drawn.length - i <= 4 ? flowing(way, 2.6, 2 + 4 * Math.sqrt(weight), i * 0.4) : null,
    ];
  });
}

/** The way from the stream through a block, back to the stream. @param {Scene} scene @param {Block} block */
function branch({ at, marked }, block) {
  const { y } = at.rows[marked];
  const floor = block.y + block.height;
  const way = `M${block.outlet} ${floor}C${block.outlet} ${(floor + y) / 2} ${block.joins} ${(floor + y) / 2} ${block.joins} ${y - 9}`;
  return [
    s("path", { class: "branch", d: upwards(block.read, y, block.inlet, floor) }),
    s("circle", { class: "tap", cx: block.read, cy: y, r: 4 }),
    s("path", { class: "branch", d: way }),
    flowing(way, 2.6, 4),
  ];
}

/** ⊕ on every row, or a point where nothing is added. @param {Scene} scene @param {Block} block */
function nodes({ at, marked }, block) {
  return at.rows.map(({ y }, i) => {
    const x = block.joins;
    if (i !== marked) return s("circle", { class: "plus", cx: x, cy: y, r: 3 });
    if (block.node === "dot") return s("circle", { class: "tap", cx: x, cy: y, r: 5 });
    return s(
      "g",
      { class: "plus marked" },
      s("circle", { cx: x, cy: y, r: 9 }),
      s("path", { d: `M${x - 5} ${y}h10M${x} ${y - 5}v10` }),
    );
  });
}

/** The weights of a head as a small map, the followed query outlined. @param {Path} path @param {PlacedStation} station @param {number} marked */
function smallMap(path, { links, x, y, width, height }, marked) {
  const { values } = path.weights[/** @type {string} */ (links)];
  const rows = values.length;
  const many = values[0].length;
  const cell = Math.min((width - 16) / many, (height - 34) / rows);
  const [left, top] = [x + (width - cell * many) / 2, y + 26 + (height - 34 - cell * rows) / 2];
  const chosen = Math.min(marked, rows - 1);
  return [
    values.map((row, i) =>
      row.map((weight, j) => {
        const place = {
          x: left + j * cell,
          y: top + i * cell,
          width: cell + 0.3,
          height: cell + 0.3,
        };
        return s("rect", { class: "cell", ...place, style: { fill: css(weight) } });
      }),
    ),
    s("rect", {
      class: "query",
      x: left,
      y: top + chosen * cell,
      width: cell * many,
      height: cell,
    }),
  ];
}

/** A station of an open block. @param {Scene} scene @param {PlacedStation} station */
function stationIn(scene, station) {
  const { path, marked, open, choose } = scene;
  const { name, title, x, y, width, height, links } = station;
  const found = path.stations[name];
  const said = links ? "Weights A" : title;
  const room = width - 20 - textWidth(said, "600 13.5px");
  const detail = links || room < 16 ? "" : String(found?.width ?? "");
  // Keys and values of cross-attention have the rows of the memory: of those the one that is attended to most.
  const attention = name.slice(0, name.lastIndexOf("."));
  const weights = path.weights[attention]?.values[marked] ?? [];
  const row = station.own ? marked : weights.indexOf(Math.max(...weights));
  return s(
    "g",
    {
      class: `station ${station.kind ?? ""}${name === open ? " open" : ""}`,
      tabindex: -1,
      role: "button",
      "data-station": name,
      "aria-pressed": String(name === open),
      onclick: () => choose.station(name),
    },
    s("rect", { class: "box", x, y, width, height, rx: 8 }),
    s("text", { x: x + 8, y: y + 18, class: "title" }, titled(said)),
    s("text", {
      class: "shape",
      x: x + width - 8,
      y: y + 18,
      "text-anchor": "end",
      text: detail,
    }),
    links
      ? smallMap(path, station, marked)
      : found &&
          s(
            "g",
            { transform: `translate(${x + 8} ${y + height - 16})` },
            cells(found, row, width - 16, 9),
          ),
  );
}

/** What flows between the stations of an open block. @param {Block} block */
function wires(block) {
  const find = (/** @type {string} */ part) =>
    block.stations.find((each) => each.name.endsWith(`.${part}`));
  /** @param {string} from @param {string} to */
  const wire = (from, to) => {
    const [a, b] = [find(from), find(to)];
    if (!a || !b) return null;
    const y1 = Math.min(Math.max(a.y + a.height / 2, b.y + 12), b.y + b.height - 8);
    return s("path", { class: "wire", d: across(a.x + a.width, a.y + a.height / 2, b.x, y1) });
  };
  const value = find("v");
  const mixed = find("mixed");
  const around = value && mixed;
  return [
    ["q", "k", "v"].map((part) =>
      block.name.endsWith(".cross") && part !== "q" ? null : wire("input", part),
    ),
    wire("q", "weights"),
    wire("k", "weights"),
    // The values go past the weights, which say how much of each is taken.
    around && block.name.endsWith(".self")
      ? s("path", {
          class: "wire",
          d: `M${value.x + value.width} ${value.y + value.height - 10}H${mixed.x - 12}Q${mixed.x} ${value.y + value.height - 10} ${mixed.x + 10} ${mixed.y + mixed.height}`,
        })
      : null,
    around && !block.name.endsWith(".self") ? wire("v", "mixed") : null,
    wire("weights", "mixed"),
    wire("mixed", "output"),
    wire("input", "hidden"),
    wire("hidden", "output"),
  ];
}

const SAID = { attention: "Q, K, V", feed: "each row by itself" };

/** A sublayer: closed a single button, open all of its stations. @param {Scene} scene @param {Block} block @returns {{node: Element, buttons: Element[]}} */
function sublayer(scene, block) {
  const { x, y, width, height, title, kind } = block;
  const frame = s("rect", { class: "frame", x, y, width, height, rx: 10 });
  if (block.open) {
    const head = block.attention ? ` · head ${scene.path.weights[block.attention].head}` : "";
    const label = s("text", { class: "label", x: x + PAD, y: y + 19, text: title + head });
    const buttons = block.stations.map((each) => stationIn(scene, each));
    return {
      node: s("g", { class: `block ${kind} open` }, frame, label, wires(block), buttons),
      buttons,
    };
  }
  const first = scene.list.filter((each) => each.name.startsWith(`${block.name}.`) && !each.stream);
  const main = first.find((each) => each.links) ?? first[first.length - 1];
  const said = SAID[/** @type {"feed"} */ (kind)];
  const button = s(
    "g",
    {
      class: `block ${kind}`,
      tabindex: -1,
      role: "button",
      "data-station": main.name,
      onclick: () => scene.choose.station(main.name),
    },
    frame,
    s("text", {
      class: "title",
      x: x + width / 2,
      y: y + 27,
      "text-anchor": "middle",
      text: title,
    }),
    s("text", { class: "shape", x: x + width / 2, y: y + 46, "text-anchor": "middle", text: said }),
  );
  return { node: button, buttons: [button] };
}
const PAD = 12;

// ------------------------------------------------------------------ on the stream

/** What stands on the stream itself: a box that nothing bypasses, or the norm of a sum. @param {Scene} scene @param {Stop} stop */
function onStream({ at, marked }, { x, box, norm }) {
  const { y } = at.rows[marked];
  const cell = (/** @type {number} */ half) => ({ x: x - half, y: y - 10, width: 2 * half, height: 20, rx: 5 }); // prettier-ignore
  return [
    line([x, y, x, at.foot], "leader"),
    box ? s("rect", { class: "box", ...cell(30) }) : null,
    norm ? s("rect", { class: "box norm", ...cell(13) }) : null,
    norm ? s("text", { class: "small", x, y: y + 4, "text-anchor": "middle", text: "N" }) : null,
  ];
}

/** A station on the stream: its name below the rows, with the values of the followed row. @param {Scene} scene @param {Stop} stop @param {number} largest */
function stopped(scene, stop, largest) {
  const { path, at, marked, open, choose } = scene;
  const found = path.stations[stop.name];
  const wide = Math.min(stop.width - 4, Math.max(60, textWidth(stop.title, "600 13.5px") + 12));
  const row = found && found.values[marked] ? marked : 0;
  const { x } = stop;
  const strip = { transform: `translate(${x - 36} ${at.foot + 34})` };
  return s(
    "g",
    {
      class: `station stop ${stop.kind ?? ""}${stop.name === open ? " open" : ""}`,
      tabindex: -1,
      role: "button",
      "data-station": stop.name,
      "aria-pressed": String(stop.name === open),
      "aria-label": `${stop.title}, ${stop.name}`,
      onclick: () => choose.station(stop.name),
    },
    s("rect", { class: "box", x: x - wide / 2, y: at.foot, width: wide, height: 26, rx: 8 }),
    s("text", { class: "title", x, y: at.foot + 18, "text-anchor": "middle" }, titled(stop.title)),
    found ? s("g", strip, cells(found, row, 72, 12, largest)) : null,
  );
}

/** The values of all rows at a station on the stream. @param {Scene} scene @param {Stop} stop @param {number} largest */
function everyRow({ path, at }, stop, largest) {
  const found = path.stations[stop.name];
  return at.rows.map(({ y }, i) =>
    found?.values[i]
      ? s(
          "g",
          { transform: `translate(${stop.x - 36} ${y - 6})` },
          cells(found, i, 72, 12, largest),
        )
      : null,
  );
}

// The likeliest word of each row after this layer, with its share as a bar.
/** @param {Scene} scene */
function wordsOut({ path, at, marked }) {
  if (!path.words) return null;
  const last = at.stops[at.stops.length - 1];
  const [x, wide] = [last.x - last.width / 2 + 6, last.width - 12];
  return path.words[path.layer + 1].map((guess, i) => {
    if (!guess) return null;
    const [token, share] = guess;
    const { y } = at.rows[i];
    const tall = 18;
    return s(
      "g",
      { class: i === marked ? "out marked" : "out" },
      s("rect", { class: "track", x, y: y - tall / 2, width: wide, height: tall, rx: 5 }),
      s("rect", {
        class: "part",
        x,
        y: y - tall / 2,
        width: Math.max(2, wide * share),
        height: tall,
        rx: 5,
      }),
      s("text", { class: "word", x: x + 6, y: y + 5, text: clipped(shown(token), 8) }),
      s("text", {
        class: "percent",
        x: x + wide - 5,
        y: y + 4,
        "text-anchor": "end",
        text: `${Math.round(100 * share)} %`,
      }),
    );
  });
}

// From each step to the next: the state that a recurrent cell remembers.
/** @param {Scene} scene */
function recurrence({ at }) {
  return at.stops
    .filter((stop) => stop.recurrent)
    .flatMap(({ x }) =>
      at.rows
        .slice(1)
        .map(({ y }, i) => [
          line([x + 20, at.rows[i].y + 4, x + 20, y - 7], "state"),
          s("path", { class: "tip", d: `M${x + 16} ${y - 8}h8l-4 5z` }),
        ]),
    );
}

// ------------------------------------------------------------------ the whole

/** Names of rows stay in sight where the drawing is wider than the page. @param {Element} svg @param {HTMLElement} scroller */
function pin(svg, scroller) {
  const names = svg.querySelectorAll(".pinned");
  scroller.addEventListener("scroll", () =>
    names.forEach((each) => each.setAttribute("transform", `translate(${scroller.scrollLeft} 0)`)),
  );
}

/** The largest number on the stream of the followed row: the strips of all its stations have one scale. @param {Path} path @param {Stop[]} stops @param {number} marked */
function largestOf(path, stops, marked) {
  const values = stops.flatMap(({ name }) => path.stations[name]?.values[marked] ?? []);
  return Math.max(1e-9, ...values.map(Math.abs));
}

/** The buttons in the order in which their values are computed, which is from left to right.
 * @param {Scene} scene @param {Element[]} stops @param {{buttons: Element[]}[]} blocks */
function inOrder({ at }, stops, blocks) {
  const inside = blocks.flatMap(({ buttons }, i) =>
    buttons.map((node) => ({ node, x: at.blocks[i].x })),
  );
  const all = [...stops.map((node, i) => ({ node, x: at.stops[i].x })), ...inside];
  return all.sort((a, b) => a.x - b.x).map(({ node }) => node);
}

/** @param {Scene} scene */
function drawing(scene) {
  const { at, path, marked } = scene;
  const largest = largestOf(path, at.stops, marked);
  const blocks = at.blocks.map((block) => sublayer(scene, block));
  const stops = at.stops.map((stop) => stopped(scene, stop, largest));
  const names = rowNames(scene);
  const rows = s(
    "g",
    { class: "rows pinned", role: "group", "aria-label": "Positions to follow" },
    [
      s("rect", {
        class: "cover",
        x: 0,
        y: at.rows[0].y - 20,
        width: at.labels,
        height: at.foot - at.rows[0].y + 14,
      }),
      names,
    ],
  );
  const steps = s(
    "g",
    { class: "stations", role: "group", "aria-label": "Steps of the layer" },
    stops,
    blocks.map(({ node }) => node),
  );
  const svg = s(
    "svg",
    {
      class: "anatomy",
      width: at.width,
      height: at.height,
      viewBox: `0 0 ${at.width} ${at.height}`,
      role: "group",
      "aria-label": "The path of a token through this layer",
      onkeyup: (/** @type {KeyboardEvent} */ event) => {
        const button = /** @type {Element} */ (event.target).closest("[role=button]");
        if (event.key === "Enter" || event.key === " ") button?.dispatchEvent(new Event("click"));
      },
    },
    lane(scene),
    streams(scene),
    at.stops.map((stop) => onStream(scene, stop)),
    recurrence(scene),
    at.blocks.map((block) => [fan(scene, block), branch(scene, block)]),
    steps,
    at.blocks.map((block) => nodes(scene, block)),
    scene.every ? at.stops.map((stop) => everyRow(scene, stop, largest)) : null,
    wordsOut(scene),
    rows,
  );
  roving(steps, [inOrder(scene, stops, blocks)]);
  roving(
    rows,
    names.map((name) => [name]),
  );
  return svg;
}

/** The patches of a picture beside their rows. @param {Scene} scene */
function pictures({ at, picture }) {
  if (!picture) return null;
  const ratio = 2;
  const size = { width: at.width * ratio, height: at.height * ratio };
  const canvas = h("canvas", { class: "patches", ...size, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  picture(context, (/** @type {number} */ i) => [at.labels - 30, at.rows[i].y - 9, 18]);
  return canvas;
}

/** @param {Given} given */
export function drawPath(given) {
  const { path, list, names, memory, marked, open, norms, kind, picture } = given;
  const width = (/** @type {string} */ text) =>
    textWidth(clipped(shown(text), MOST_LETTERS), "650 14px");
  const story =
    kind === "memory"
      ? Math.min(230, Math.max(...memory.map((text) => textWidth(text, "13px") + 30)))
      : 0;
  const labels = Math.max(92, story, 26 + Math.max(...names.map(width)) + (picture ? 24 : 0));
  const at = layout(path, list, { open, marked, labels, room: given.room, norms });
  const scene = { ...given, at };
  const svg = drawing(scene);
  const node = h(
    "div",
    { class: "figure" },
    h(
      "div",
      { class: "scroll path", tabindex: -1 },
      h("div", { class: "layers", style: { width: `${at.width}px` } }, svg, pictures(scene)),
    ),
    takeAway(svg, "path"),
  );
  const scroller = /** @type {HTMLElement} */ (node.firstElementChild);
  pin(svg, scroller);
  const here = at.blocks.find((block) => block.open);
  const stop = at.stops.find((each) => each.name === open);
  // Where the drawing is wider than the page, the open station stands in the middle.
  const reveal = () => {
    const inside = here?.stations.find((each) => each.name === open);
    const middle = inside ? inside.x + inside.width / 2 : stop?.x;
    if (middle !== undefined && at.width > scroller.clientWidth)
      scroller.scrollLeft = middle - scroller.clientWidth / 2;
  };
  return { node, reveal };
}
