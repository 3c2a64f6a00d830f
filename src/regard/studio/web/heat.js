// Heat maps on a canvas. Both scales run steadily from one lightness to another, so that no hue has to be told apart.

import { clipped, h, shown, textWidth } from "./dom.js";
import { takeAway } from "./take_away.js";

const LIGHT = ["#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"];
const DARK = ["#171a20", "#123570", "#575c6d", "#a69d75", "#fee838"];
const SIGNED = {
  light: ["#8c510a", "#dfc27d", "#f7f7f7", "#6baed6", "#08306b"],
  dark: ["#ffb454", "#7a5518", "#171a20", "#21508f", "#8ab8ff"],
};
const LABEL = 14; // pixels from one label to the next
const MOST_LETTERS = 14;

export const dark = () => document.documentElement.dataset.theme === "dark";
const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

export function colour(share, signed = false, night = dark()) {
  const usual = night ? DARK : LIGHT;
  const stops = signed ? SIGNED[night ? "dark" : "light"] : usual;
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(at));
  const [a, b] = [parts(stops[i]), parts(stops[i + 1])];
  return a.map((value, k) => Math.round(value + (b[k] - value) * (at - i)));
}
export const css = (share, signed) => `rgb(${colour(share, signed).join(" ")})`;
export function inkOn(share, signed) {
  const [r, g, b] = colour(share, signed).map((v) =>
    v <= 10 ? v / 3294 : ((v / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff"; // whichever has more contrast
}

// ------------------------------------------------------------------ shades of attention

// What the colours mean: a bar between two ends.
export const scale = (least = "0", most = "1", { signed = false } = {}) =>
  h(
    "span",
    { class: "scale" },
    least,
    paint(h("canvas", { "aria-hidden": "true" }), 1, 64, (i) => i / 63, { signed }),
    most,
  );

export const attentionScale = (relative) =>
  relative
    ? scale("uniform or less", "all attention (log scale, relative to uniform)")
    : scale("weight 0", "1");

// ------------------------------------------------------------------ pixels

const tables = {}; // 1,024 colours of each theme as pixels, so that a large map is only looked up
function table(signed, night) {
  return (tables[[night, signed]] ||= Uint32Array.from({ length: 1024 }, (_, i) => {
    const [r, g, b] = colour(i / 1023, signed, night);
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  }));
}

export function paint(canvas, rows, columns, value, { signed = false, night = dark() } = {}) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = table(signed, night);
  for (let i = 0; i < rows * columns; i++) {
    const share = value(i);
    if (Number.isNaN(share)) continue; // what is hidden stays blank
    pixels[i] = colours[Math.min(1023, Math.max(0, 1023 * share + 0.5)) | 0];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

export function thumb(text, rows, columns) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return paint(h("canvas", { "aria-hidden": "true" }), rows, columns, (i) => bytes[i] / 255);
}

// ------------------------------------------------------------------ a map with labels

const longest = (tokens, letters) =>
  Math.max(...tokens.map((token) => textWidth(clipped(shown(token), letters), "14px")));
const SLANT = Math.PI / 2.6; // of the labels above the columns

// Cells fill the room there is. Of a wide map the rows stay high enough to be read.
function layout(rows, columns, room, letters) {
  const left = 16 + longest(rows, letters);
  const up = 16 + 0.95 * longest(columns, letters);
  const spare = Math.max(34, up * Math.cos(SLANT) + 8); // slanted labels reach over the right edge
  const width = Math.max(
    rows.length > 800 ? 1 : 2,
    Math.min(44, Math.floor((room - left - spare) / columns.length)),
  );
  const height =
    rows.length > 40 ? Math.max(2, Math.min(width, 44)) : Math.max(24, Math.min(width, 44));
  return {
    left,
    up,
    width,
    height,
    total: [left + width * columns.length + spare, up + height * rows.length + 2],
  };
}

// A map with its names beside it. `show` draws other weights into it; `say` is told of the cell under the pointer, or
// of the one that the arrow keys have reached; `pick` of the one that was clicked, or chosen by Enter.
/**
 * @param {string[]} rows @param {string[]} columns
 * @param {{say?: (i: number, j: number) => void, pick?: (i: number, j: number) => void, signed?: boolean, room?: number, letters?: number}} [options]
 */
export function heat(
  rows,
  columns,
  { say = () => {}, pick = () => {}, signed = false, room = 560, letters = MOST_LETTERS } = {},
) {
  const { left, up, width, height, total } = layout(
    rows,
    columns,
    Math.max(240, Math.min(room, window.innerWidth - 72)),
    letters,
  );
  const ratio = window.devicePixelRatio || 1;
  const canvas = h("canvas", {
    class: "map",
    role: "application",
    tabindex: 0,
    style: { width: total[0] + "px", height: total[1] + "px", border: "0" },
  });
  canvas.width = total[0] * ratio;
  canvas.height = total[1] * ratio;
  const context = canvas.getContext("2d");
  const cells = document.createElement("canvas");
  const style = getComputedStyle(document.documentElement);
  const [ink, accent, card, warm] = ["--ink", "--accent", "--card", "--warm"].map((name) =>
    style.getPropertyValue(name),
  );
  let current = null; // the cell of the keyboard
  let last = null; // what was drawn

  // Every label where there is room for it, otherwise every second, third …
  function names(marked) {
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.font = `${Math.min(14, Math.max(10, height * 0.5 + 4))}px system-ui, sans-serif`;
    const everyRow = Math.ceil(LABEL / height);
    rows.forEach((token, i) => {
      if (i % everyRow && i !== marked) return;
      context.fillStyle = i === marked ? accent : ink;
      context.fillText(clipped(shown(token), letters), left - 6, up + (i + 0.5) * height);
    });
    context.fillStyle = ink;
    context.textAlign = "left";
    context.font = `${Math.min(14, Math.max(10, width * 0.5 + 4))}px system-ui, sans-serif`;
    const everyColumn = Math.ceil(LABEL / width);
    columns.forEach((token, j) => {
      if (j % everyColumn) return;
      context.save();
      context.translate(left + (j + 0.5) * width, up - 6);
      context.rotate(-SLANT);
      context.fillText(clipped(shown(token), letters), 0, 0);
      context.restore();
    });
  }
  function outline(i, j, colour) {
    context.strokeStyle = colour;
    context.lineWidth = 2;
    if (j < 0) context.strokeRect(left, up + i * height, width * columns.length, height);
    else
      context.strokeRect(
        left + j * width,
        up + i * height,
        Math.max(3, width),
        Math.max(3, height),
      );
  }
  // `values` are shades from 0 to 1, or numbers on both sides of 0 that `scale` brings there.
  function show(values, { marked = -1, title = "", scale = 1 } = {}) {
    last = [values, { marked, title, scale }];
    canvas.dataset.title = title;
    canvas.setAttribute(
      "aria-label",
      `heat map of ${rows.length} by ${columns.length}: ${title}; arrow keys move, Enter selects a row`,
    );
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, ...total);
    paint(
      cells,
      rows.length,
      columns.length,
      signed ? (i) => 0.5 + values[i] / scale / 2 : (i) => values[i] / scale,
      { signed },
    );
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, left, up, width * columns.length, height * rows.length);
    if (width > 8 && height > 8) {
      context.fillStyle = card;
      for (let i = 1; i <= rows.length; i++)
        context.fillRect(left, up + i * height - 1, width * columns.length, 1);
      for (let j = 1; j <= columns.length; j++)
        context.fillRect(left + j * width - 1, up, 1, height * rows.length);
    }
    names(marked);
    if (marked >= 0) outline(marked, -1, warm);
    if (current) outline(...current, warm);
  }
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - up) / height);
    const j = Math.floor((event.clientX - box.left - left) / width);
    return i >= 0 && j >= 0 && i < rows.length && j < columns.length ? [i, j] : null;
  };
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  canvas.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (event.key === "Enter" && current) {
      pick(...current);
      return;
    }
    if (!move) return;
    event.preventDefault();
    const [i, j] = current || [0, 0];
    current = current
      ? [
          Math.max(0, Math.min(rows.length - 1, i + move[0])),
          Math.max(0, Math.min(columns.length - 1, j + move[1])),
        ]
      : [0, 0];
    if (last) show(...last);
    say(...current);
  });
  canvas.addEventListener("blur", () => {
    current = null;
    if (last) show(...last);
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = cell(event);
    if (at) say(...at);
  });
  canvas.addEventListener("click", (event) => {
    const at = cell(event);
    if (at) pick(...at);
  });
  // The cell that another map is pointed at.
  const point = (i, j) => {
    if (last) show(...last);
    outline(i, j, warm);
  };
  const node = h(
    "div",
    { class: "figure" },
    h("div", { class: "scroll tall heat" }, canvas),
    takeAway(canvas, "heat map"),
  );
  return { node, show, point, row: height, top: up };
}
