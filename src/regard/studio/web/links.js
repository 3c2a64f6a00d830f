// Tokens on both sides and lines between them: which attend to which. A token is hovered, focused or pinned.

import { clipped, h, roving, s, shown, textWidth } from "./dom.js";
import { takeAway } from "./take_away.js";

const MOST_LINES = 400,
  MOST_SHARES = 120;

// The largest of `count` weights from `first` on, each `step` further, as [weight, place], largest first; what is not above
// `faintest` is left out. They are counted into bins first, so that only a few have to be sorted.
function largest(weights, [first, step, count], most, faintest) {
  const bins = new Uint32Array(1025),
    end = first + step * count;
  let top = faintest;
  for (let i = first; i < end; i += step) if (weights[i] > top) top = weights[i];
  const bin = (w) => Math.min(1024, (w / top) * 1024) | 0;
  for (let i = first; i < end; i += step) if (weights[i] > faintest) bins[bin(weights[i])]++;
  let least = 1024;
  for (let seen = bins[1024]; least > 0 && seen < most; seen += bins[--least]);
  const result = [];
  for (let i = first; i < end; i += step)
    if (weights[i] > faintest && bin(weights[i]) >= least) result.push([weights[i], i]);
  return result.sort((a, b) => b[0] - a[0]).slice(0, most);
}

// The tokens are drawn once; `show` joins them by other weights. `unknown` are columns whose word the model does not know.
export function links(
  rows,
  columns,
  { pin = () => {}, names = ["query", "key"], room = 640, letters = 16, row = 30, top = 30 } = {},
) {
  const [ROW, TOP] = [Math.max(18, row), Math.max(22, top)]; // those of the map beside it
  const wordWidth = (tokens) =>
    Math.max(54, ...tokens.map((token) => textWidth(clipped(shown(token), letters), "15px"))) + 26;
  const wide = wordWidth(rows),
    right = wordWidth(columns),
    shares = 84;
  const gap = Math.max(70, Math.min(520, room - wide - right - shares - 8));
  const width = wide + gap + right + shares,
    many = columns.length;
  const height = TOP + ROW * Math.max(rows.length, columns.length) + 6;
  const y = (i) => TOP + i * ROW + ROW / 2;
  const lines = s("g", { "aria-hidden": "true" });
  const bars = s("g", { "aria-hidden": "true" });
  const status = h("p", { class: "read faint", role: "status" });
  let weights = new Float32Array(rows.length * many),
    shades = weights, // of the weights, against even attention
    clear = false,
    pinned = -1;

  function curve(i, j) {
    const [a, b] = [wide, wide + gap];
    const shade = shades[i * many + j];
    return s("path", {
      class: "look",
      d: `M${a} ${y(i)}C${a + gap * 0.45} ${y(i)} ${b - gap * 0.45} ${y(j)} ${b} ${y(j)}`,
      "stroke-width": (0.5 + 6 * shade * shade).toFixed(2),
      "stroke-opacity": Math.min(1, 0.02 + shade * shade).toFixed(3),
    });
  }
  function draw(row, column) {
    const all = row < 0 && column < 0;
    const along = row >= 0 ? [row * many, 1, many] : [column, many, rows.length];
    const places = all ? [0, 1, weights.length] : along;
    const strongest = all ? 1 : largest(weights, places, 1, -1)[0][0];
    const list = largest(weights, places, MOST_LINES, all ? 0.5 / many : strongest / 20);
    lines.replaceChildren(...list.reverse().map(([_, i]) => curve(Math.floor(i / many), i % many)));
    bars.replaceChildren(
      ...(row < 0 ? [] : largest(weights, places, MOST_SHARES, -1)).flatMap(([share, i]) => {
        const x = wide + gap + right,
          at = y(i % many);
        return [
          s("rect", {
            class: "share",
            x,
            y: at - 7,
            width: Math.max(0.5, 46 * share),
            height: 14,
            rx: 3,
          }),
          s("text", {
            class: "percent",
            x: x + 46 * share + 5,
            y: at + 4,
            text: `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`,
          }),
        ];
      }),
    );
    if (row >= 0) {
      const [share, best] = largest(weights, places, 1, -1)[0];
      status.textContent = `“${shown(rows[row])}” attends most to “${shown(columns[best % many])}” (${(100 * share).toFixed(1)} %)`;
    } else if (column >= 0) {
      const sum = rows.reduce((total, _, i) => total + weights[i * many + column], 0);
      status.textContent = `“${shown(columns[column])}” receives ${((100 * sum) / rows.length).toFixed(1)} % of all attention`;
    } else if (!clear)
      status.textContent =
        "No weight of this head is clearly above uniform attention. Point at a token to see its weights.";
    else status.textContent = "Point at a token, or use Tab and the arrow keys; Enter pins it.";
  }
  const rest = () => draw(pinned, -1);
  const token = (text, i, side) => {
    const [x, w, anchor] = side === 0 ? [0, wide - 6, "end"] : [wide + gap + 6, right - 6, "start"];
    const own =
      side === 0
        ? {
            tabindex: -1,
            role: "button",
            "aria-pressed": "false",
            "aria-label": `${shown(text)}, token ${i + 1}`,
            "data-row": i,
          }
        : { "data-column": i };
    return s(
      "g",
      { class: "token", ...own },
      s("rect", { x, y: y(i) - ROW / 2 + 2, width: w, height: ROW - 4 }),
      s("text", {
        x: side === 0 ? x + w - 9 : x + 9,
        y: y(i) + 5,
        "text-anchor": anchor,
        text: clipped(shown(text), letters),
      }),
    );
  };
  const left = rows.map((text, i) => token(text, i, 0));
  // One listener for all tokens: hundreds of them are built faster, and found by what was pointed at.
  let hovered = false;
  const over = (event) => {
    const { row, column } = event.target.closest(".token")?.dataset || {};
    if (row !== undefined) draw(Number(row), -1);
    else if (column !== undefined) draw(-1, Number(column));
    else if (hovered) rest();
    hovered = row !== undefined || column !== undefined;
  };
  const choose = (event) => {
    const row = event.target.closest("[data-row]")?.dataset.row;
    if (row !== undefined) pin(Number(row) === pinned ? -1 : Number(row));
  };
  const picture = s(
    "svg",
    {
      class: "links",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      onpointerover: over,
      onpointerleave: rest,
      onfocusin: over,
      onfocusout: rest,
      onclick: choose,
      onkeyup: (event) => {
        if (event.key === "Enter" || event.key === " ") choose(event);
      },
    },
    s("text", {
      class: "dim percent",
      x: wide - 15,
      y: TOP - 9,
      "text-anchor": "end",
      text: names[0],
    }),
    s("text", { class: "dim percent", x: wide + gap + 15, y: TOP - 9, text: names[1] }),
    lines,
    bars,
    left,
    columns.map((text, j) => token(text, j, 1)),
  );
  roving(
    picture,
    left.map((each) => [each]),
  );

  function show(next, { marked = -1, title = "", shades: nextShades, clear: isClear } = {}) {
    left[pinned]?.classList.remove("pinned");
    left[pinned]?.setAttribute("aria-pressed", "false");
    left[marked]?.classList.add("pinned");
    left[marked]?.setAttribute("aria-pressed", "true");
    [weights, shades, clear, pinned] = [next, nextShades, isClear, marked];
    picture.setAttribute("aria-label", title);
    const focused = document.activeElement?.closest?.(".token")?.dataset.row;
    if (focused !== undefined && picture.contains(document.activeElement))
      draw(Number(focused), -1);
    else rest();
  }
  const node = h(
    "div",
    { class: "figure" },
    status,
    h("div", { class: "scroll tall" }, picture),
    takeAway(picture, "attention"),
  );
  return { node, show };
}

// A translation and its source as two lines of words, joined by what looks at what. Both lines fill the width.
export function alignment(result, room) {
  const wordWidth = (token) => textWidth(clipped(shown(token), 16), "17px") + 18;
  const length = (tokens) => tokens.reduce((sum, token) => sum + wordWidth(token), 0);
  const width = Math.max(room, length(result.source) + 20, length(result.target) + 20);
  const scrolls = width > room + 1;
  // The space that is left over goes between the words. Of unlike lengths the shorter is centred; but where a line
  // scrolls, both begin at the left, so that a short translation stands in the first view, beside what it looks at.
  const middles = (tokens) => {
    const line = scrolls ? Math.max(room, length(tokens) + 20) : width;
    const space = Math.min(90, (line - 20 - length(tokens)) / tokens.length);
    let x = scrolls ? 10 : Math.max(10, (width - length(tokens) - space * tokens.length) / 2);
    return tokens.map((token) => {
      const at = x + (wordWidth(token) + space) / 2;
      x += wordWidth(token) + space;
      return at;
    });
  };
  const above = middles(result.source),
    below = middles(result.target);
  const curves = [];
  const strongest = new Set(result.links.map(([t, k]) => `${t},${k}`));
  result.weights.forEach((row, i) =>
    row.forEach((w, j) => {
      const shade = result.shades[i][j];
      if (!result.clear[i][j] || w < 0.02) return;
      curves.push(
        s("path", {
          class: "look",
          d: `M${above[j]} 38C${above[j]} 92 ${below[i]} 82 ${below[i]} 136`,
          "stroke-width": (0.6 + 5 * shade * shade).toFixed(2),
          "stroke-opacity": (strongest.has(`${i},${j}`)
            ? Math.min(1, 0.3 + shade * shade)
            : 0.35 * shade * shade + 0.03
          ).toFixed(3),
        }),
      );
    }),
  );
  const words = (tokens, places, at) =>
    tokens.map((token, i) =>
      s("text", {
        x: places[i],
        y: at,
        "text-anchor": "middle",
        "font-size": 17,
        text: clipped(shown(token), 16),
      }),
    );
  const drawing = s(
    "svg",
    {
      class: "links",
      width,
      height: 170,
      viewBox: `0 0 ${width} 170`,
      role: "img",
      "aria-label": result.title,
    },
    curves,
    words(result.source, above, 28),
    words(result.target, below, 156),
  );
  return h(
    "div",
    { class: "figure" },
    h(
      "div",
      { class: "scroll", tabindex: scrolls ? 0 : null, "aria-label": "Alignment, scrollable" },
      drawing,
    ),
    takeAway(drawing, "alignment"),
  );
}
