// @ts-check
// Pictures that the studio draws: marks as data, made into SVG elements.

import { s } from "./dom.js";

/** Marks as the studio sends them. @typedef {Record<string, any>} Mark */
const ink = (/** @type {string} */ colour) => (colour === "ink" ? "currentColor" : colour);
const titled = (/** @type {Element} */ element, /** @type {string} */ title) => {
  if (title) element.append(s("title", { text: title }));
  return element;
};

// Images are small here: a rectangle for each of their pixels.
/** @param {Mark} mark */
function cells({ x, y, width, height, colours }) {
  const tall = height / colours.length,
    wide = width / colours[0].length;
  return colours.flatMap((/** @type {string[]} */ row, /** @type {number} */ i) =>
    row.map((fill, j) =>
      s("rect", { x: x + j * wide, y: y + i * tall, width: wide + 0.4, height: tall, fill }),
    ),
  );
}

/** @type {Record<string, (m: Mark) => any>} */
const DRAW = {
  Rect: (m) =>
    titled(
      s("rect", { x: m.x, y: m.y, width: m.width, height: m.height, fill: ink(m.colour) }),
      m.title,
    ),
  Line: (m) =>
    titled(
      s("line", {
        x1: m.x1,
        y1: m.y1,
        x2: m.x2,
        y2: m.y2,
        stroke: ink(m.colour),
        "stroke-width": m.width,
        "stroke-opacity": m.opacity,
      }),
      m.title,
    ),
  Circle: (m) =>
    titled(
      s("circle", {
        cx: m.x,
        cy: m.y,
        r: m.radius,
        fill: ink(m.colour),
        "fill-opacity": m.opacity,
      }),
      m.title,
    ),
  Text: (m) =>
    s("text", {
      x: m.x,
      y: m.y,
      "text-anchor": m.anchor,
      fill: ink(m.colour),
      "font-weight": m.strong ? 600 : 400,
      "font-size": 12,
      transform: m.turn ? `rotate(${-m.turn} ${m.x} ${m.y})` : null,
      text: m.text,
    }),
  Pixels: cells,
};

/** @param {any} drawing */
export const picture = ({ width, height, marks }) =>
  s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" },
    marks.flatMap((/** @type {Mark} */ mark) => DRAW[mark.kind](mark)),
  );
