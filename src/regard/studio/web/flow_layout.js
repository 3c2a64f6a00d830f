// @ts-check
// Where everything of a layer stands, without drawing it. The residual streams of the rows are straight lines; sublayers are blocks
// above them, which read from the followed stream and add to it; what cross-attention reads lies in a lane of its own, above.

/** @typedef {import("./answers.js").Path} Path */
/** @typedef {import("./stations.js").Column} Column */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */
/** @typedef {Column & Box} PlacedStation */
/**
 * A sublayer. `read`: where it reads from the stream, `inlet`: where that enters the block; `port`: where rows come in;
 * `outlet`: where its result leaves; `joins`: where that arrives on the stream, at `node` (⊕, or a point where nothing is added).
 * @typedef {Box & {name: string, title: string, kind: string, open: boolean, attention: string | null, read: number, inlet: number,
 *   port: number, outlet: number, joins: number, node: "sum" | "dot", stations: PlacedStation[]}} Block
 */
/** A place on the stream: `x` is its middle. @typedef {Column & {x: number, width: number, box: boolean, norm: boolean}} Stop */
/** @typedef {{index: number, y: number, skipped: number}} Row */
/**
 * @typedef {{width: number, height: number, labels: number, start: number, end: number, zone: {top: number, bottom: number},
 *   lane: {top: number, rows: Row[], bottom: number} | null, rows: Row[], foot: number, blocks: Block[], stops: Stop[]}} Layout
 */

const LANE_HEAD = 24,
  LANE_ROW = 16,
  LANE_MOST = 9; // rows of the memory that are drawn: those with the largest weights
const BLOCK = { height: 58, attention: 126, feed: 112 }; // a closed one
const CELL = { width: 68, height: 42, gap: 12, map: 112 }; // stations of an open one
const PAD = 12;
const STOP = { least: 66, letter: 8.4 }; // room on the stream for a station, by its title
const REACH = 24; // between the stream and a block, left and right of it
const WORDS = 118;
const FOOT = 62; // below the rows: what stands on the stream

/** @param {string} name */
const sublayerOf = (name) => name.split(".").slice(0, -1).join(".");

/** Stations by the sublayer they are part of, and those on the stream. @param {Column[]} list */
export function grouped(list) {
  /** @type {({name: string, stations: Column[]} | {stop: Column})[]} */
  const groups = [];
  list.forEach((column, i) => {
    const isBranch =
      !column.stream && !column.words && /\.(self|cross|feedforward)\.\w+$/.test(column.name);
    if (!isBranch || !i) {
      groups.push({ stop: column });
      return;
    }
    const name = sublayerOf(column.name);
    const last = groups[groups.length - 1];
    if ("stations" in last && last.name === name) last.stations.push(column);
    else groups.push({ name, stations: [column] });
  });
  return groups;
}

/** Rows with the space that an open block needs, and how many are left out before each. @param {[number, string][]} list @param {number} top @param {number} height */
function placedRows(list, top, height) {
  let y = top;
  return list.map(([position], index) => {
    const skipped = index ? position - list[index - 1][0] - 1 : 0;
    y += height + (skipped > 0 ? 5 : 0);
    return { index, y: y - height / 2, skipped: Math.max(0, skipped) };
  });
}

/** The rows of the memory with the largest weights, in their order. @param {Path} path @param {string | null} cross @param {number} marked */
function laneRows(path, cross, marked) {
  const weights = cross
    ? (path.weights[cross].values[marked] ?? path.weights[cross].values[0])
    : [];
  const chosen = path.columns
    .map((_, j) => j)
    .sort((a, b) => weights[b] - weights[a] || a - b)
    .slice(0, LANE_MOST)
    .sort((a, b) => a - b);
  let y = LANE_HEAD;
  return chosen.map((index, i) => {
    const skipped = path.columns[index][0] - (i ? path.columns[chosen[i - 1]][0] : -1) - 1;
    y += LANE_ROW + (i && skipped ? 8 : 0);
    return { index, y: y - LANE_ROW / 2, skipped: i ? skipped : 0 };
  });
}

const COLUMN_OF = new Map([["input", 0], ["q", 1], ["k", 1], ["v", 1], ["weights", 2], ["hidden", 2], ["mixed", 3], ["output", 4]]); // prettier-ignore

/** The stations of an open block: Q, K and V above each other, what follows from left to right. @param {Column[]} stations @param {number} left @param {number} top @returns {{placed: PlacedStation[], width: number, height: number}} */
export function opened(stations, left, top) {
  const part = (/** @type {Column} */ column) =>
    column.name.slice(column.name.lastIndexOf(".") + 1);
  const isCross = stations[0].name.includes(".cross.");
  const columnOf = (/** @type {Column} */ column) => COLUMN_OF.get(part(column)) ?? 4;
  const used = [...new Set(stations.map(columnOf))].sort();
  const tall = stations.some((column) => column.links) ? 3 * CELL.height + 2 * 8 : CELL.height + 8;
  const bottom = top + 26 + tall;
  /** @type {PlacedStation[]} */
  const placed = [];
  let x = left + PAD;
  for (const column of used) {
    const here = stations.filter((each) => columnOf(each) === column);
    const width = here.some((each) => each.links) ? CELL.map : CELL.width;
    // What comes from the memory stands above, the query beside the stream that it reads.
    const order = isCross ? ["k", "v", "q"] : ["q", "k", "v"];
    here.sort((a, b) => order.indexOf(part(a)) - order.indexOf(part(b)));
    const height = here.some((each) => each.links) ? tall : CELL.height;
    const space = here.length * height + (here.length - 1) * 8;
    let y = top + 26 + (tall - space) / 2;
    if (column === 1 && isCross && here.length < 3) y = bottom - space;
    for (const each of here) {
      placed.push({ ...each, x, y, width, height });
      y += height + 8;
    }
    x += width + CELL.gap;
  }
  return { placed, width: x - CELL.gap + PAD - left, height: tall + 26 + PAD };
}

/** @typedef {{open: string, start: number, stretch: number, norms: string}} Arranging */

/** A place on the stream. On the line itself stands what nothing bypasses. @param {Column} stop @param {number} x @param {boolean} isAlone @param {string} norms @returns {Stop} */
function stopAt(stop, x, isAlone, norms) {
  const width = stop.words ? WORDS : Math.max(STOP.least, 4 + STOP.letter * stop.title.length);
  const box = Boolean(stop.recurrent) || (isAlone && Boolean(stop.stream));
  return { ...stop, x: x + width / 2, width, box, norm: Boolean(stop.adds) && norms === "post" };
}

/** A sublayer that begins at x; its room ends where it joins the stream. @param {{name: string, stations: Column[]}} group @param {number} x @param {Column | null} target @param {Arranging} given @returns {Block} */
function blockAt({ name, stations }, x, target, { open, stretch, norms }) {
  const reach = REACH + stretch / 2;
  const left = x + reach;
  const inside = stations.some((each) => each.name === open) ? opened(stations, left, 0) : null;
  const isAttention = !name.endsWith("feedforward");
  const closed = {
    width: isAttention ? BLOCK.attention : BLOCK.feed,
    height: BLOCK.height,
    placed: [],
  };
  const { width, height, placed } = inside ?? closed;
  const weights = stations.find((each) => each.links);
  return {
    name,
    title: weights?.title ?? "Feed-forward",
    kind: isAttention ? "attention" : "feed",
    open: Boolean(inside),
    attention: weights?.links ?? null,
    x: left,
    y: 0,
    width,
    height,
    read: x + 10,
    inlet: left + 22,
    port: left + (name.endsWith(".cross") ? width * 0.28 : 52),
    outlet: left + width - 22,
    joins: left + width + reach - 12,
    node: target?.recurrent || norms === "none" ? "dot" : "sum",
    stations: placed,
  };
}

/** The parts of a layer from left to right. @param {ReturnType<typeof grouped>} groups @param {Arranging} given */
function placedBlocks(groups, given) {
  /** @type {Block[]} */
  const blocks = [];
  /** @type {Stop[]} */
  const stops = [];
  let x = given.start;
  groups.forEach((group, i) => {
    if ("stop" in group) {
      const isAlone = i > 0 && "stop" in groups[i - 1];
      stops.push(stopAt(group.stop, x, isAlone, given.norms));
      x += stops[stops.length - 1].width;
      return;
    }
    const next = groups[i + 1];
    const block = blockAt(group, x, next && "stop" in next ? next.stop : null, given);
    x = block.joins + 12;
    // Sublayers side by side read the stream at one place.
    if (given.norms === "parallel" && blocks.length) block.read = blocks[0].read;
    blocks.push(block);
  });
  return { blocks, stops, end: x };
}

/** Blocks stand on the floor of their zone. @param {Block} block @param {number} floor */
function raised(block, floor) {
  const y = floor - block.height;
  return { ...block, y, stations: block.stations.map((each) => ({ ...each, y: each.y + y })) };
}

/**
 * @param {Path} path @param {Column[]} list
 * @param {{open: string, marked: number, labels: number, room: number, norms: string}} given
 * @returns {Layout}
 */
export function layout(path, list, { open, marked, labels, room, norms }) {
  const groups = grouped(list);
  const start = labels + 8;
  const narrow = placedBlocks(groups, { open, start, stretch: 0, norms });
  // What is left of the width goes between the parts.
  const spare = Math.max(0, room - narrow.end - 10);
  const stretch = Math.min(90, spare / Math.max(1, narrow.blocks.length));
  const { blocks, stops, end } = placedBlocks(groups, { open, start, stretch, norms });
  const cross = Object.keys(path.weights).find((name) => name.endsWith(".cross")) ?? null;
  const inLane = cross && path.columns.length ? laneRows(path, cross, marked) : null;
  const laneBottom = inLane ? inLane[inLane.length - 1].y + LANE_ROW / 2 + 6 : 0;
  const top = laneBottom + (inLane ? 22 : 4);
  const bottom = top + Math.max(0, ...blocks.map((block) => block.height));
  const many = path.rows.length;
  const rows = placedRows(path.rows, bottom + 24, many > 18 ? 20 : many > 10 ? 24 : 28);
  const foot = rows[rows.length - 1].y + 24;
  return {
    width: end + 10,
    height: foot + FOOT,
    labels,
    start,
    end,
    zone: { top, bottom },
    lane: inLane && { top: 0, rows: inLane, bottom: laneBottom },
    rows,
    foot,
    blocks: blocks.map((block) => raised(block, bottom)),
    stops,
  };
}
