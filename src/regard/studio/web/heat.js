// Heat maps on a canvas. Both scales run steadily from one lightness to another, so that no hue has to be told apart.

import { clipped, h, shown } from "./dom.js";

const LIGHT = ["#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"];
const DARK = ["#171a20", "#123570", "#575c6d", "#a69d75", "#fee838"];
const SIGNED = { light: ["#8c510a", "#dfc27d", "#f7f7f7", "#6baed6", "#08306b"], dark: ["#ffb454", "#7a5518", "#171a20", "#21508f", "#8ab8ff"] };

export const dark = () => document.documentElement.dataset.theme === "dark";
const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

export function colour(share, signed = false, night = dark()) {
  const stops = signed ? SIGNED[night ? "dark" : "light"] : night ? DARK : LIGHT;
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(at));
  const [a, b] = [parts(stops[i]), parts(stops[i + 1])];
  return a.map((value, k) => Math.round(value + (b[k] - value) * (at - i)));
}
export const css = (share, signed) => `rgb(${colour(share, signed).join(" ")})`;
export const inkOn = (share, signed) => { const [r, g, b] = colour(share, signed); return r * 0.3 + g * 0.59 + b * 0.11 > 140 ? "#15181e" : "#ffffff"; };

const tables = {}; // 1,024 colours of each theme as pixels, so that a large map is only looked up
function table(signed, night) {
  return tables[[night, signed]] ||= Uint32Array.from({ length: 1024 }, (_, i) => { const [r, g, b] = colour(i / 1023, signed, night); return (255 << 24 | b << 16 | g << 8 | r) >>> 0; });
}

export function paint(canvas, rows, columns, value, { signed = false, night = dark() } = {}) {
  canvas.width = columns; canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows), pixels = new Uint32Array(image.data.buffer), colours = table(signed, night);
  for (let i = 0; i < rows * columns; i++) pixels[i] = colours[Math.min(1023, Math.max(0, 1023 * value(i) + 0.5)) | 0];
  context.putImageData(image, 0, 0);
  return canvas;
}

export function thumb(text, rows, columns) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return paint(h("canvas", { "aria-hidden": "true" }), rows, columns, (i) => bytes[i] / 255);
}

export const scale = (most = 1) => h("span", { class: "scale" }, "0", paint(h("canvas", { "aria-hidden": "true" }), 1, 64, (i) => i / 63), most === 1 ? "1" : most.toPrecision(2));

// The weight that has the full colour: 1, or the largest there is where all are small.
export function fullest(weights) {
  let most = 1e-9;
  for (let i = 0; i < weights.length; i++) if (weights[i] > most) most = weights[i];
  return most > 0.5 ? 1 : most;
}

// A map with its names beside it. `show` draws other weights into it; `say` is told of the cell under the pointer.
export function heat(rows, columns, { say = () => {}, pick = () => {}, signed = false, room = 560 } = {}) {
  const long = Math.max(rows.length, columns.length);
  room = Math.min(room, Math.max(long > 40 ? 320 : 240, window.innerWidth - 190));
  const side = Math.max(long > 800 ? 1 : 2, Math.min(30, Math.floor(room / long)));
  const named = side >= 13;
  const left = named ? Math.min(130, 12 + 8 * Math.max(...rows.map((t) => Math.min(14, shown(t).length)))) : 4;
  const up = named ? Math.min(120, 12 + 7.4 * Math.max(...columns.map((t) => Math.min(14, shown(t).length)))) : 4;
  const [width, height] = [left + side * columns.length + 2 + (named ? 30 : 0), up + side * rows.length + 2];
  const ratio = window.devicePixelRatio || 1;
  const canvas = h("canvas", { class: "map", role: "img", style: { width: width + "px", height: height + "px", border: "0" } });
  canvas.width = width * ratio; canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  const cells = document.createElement("canvas");
  const style = getComputedStyle(document.documentElement);
  const [ink, accent, card, warm] = ["--ink", "--accent", "--card", "--warm"].map((name) => style.getPropertyValue(name));

  function names(marked) {
    context.font = `${Math.min(14, side * 0.62 + 3)}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((token, i) => {
      context.fillStyle = i === marked ? accent : ink;
      context.fillText(clipped(shown(token), 14), left - 6, up + (i + 0.5) * side);
    });
    context.fillStyle = ink;
    context.textAlign = "left";
    columns.forEach((token, j) => {
      context.save();
      context.translate(left + (j + 0.5) * side, up - 6);
      context.rotate(-Math.PI / 2.6);
      context.fillText(clipped(shown(token), 14), 0, 0);
      context.restore();
    });
  }
  // `scale`: the weight that has the full colour.
  function show(weights, { marked = -1, title = "", scale = 1 } = {}) {
    canvas.dataset.title = title;
    canvas.setAttribute("aria-label", `heat map of ${rows.length} by ${columns.length}: ${title}`);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    paint(cells, rows.length, columns.length, signed ? (i) => 0.5 + weights[i] / scale / 2 : (i) => weights[i] / scale, { signed });
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, left, up, side * columns.length, side * rows.length);
    if (side > 8) {
      context.fillStyle = card;
      for (let i = 1; i <= rows.length; i++) context.fillRect(left, up + i * side - 1, side * columns.length, 1);
      for (let j = 1; j <= columns.length; j++) context.fillRect(left + j * side - 1, up, 1, side * rows.length);
    }
    if (named) names(marked);
    if (marked >= 0) {
      context.strokeStyle = warm; context.lineWidth = 2;
      context.strokeRect(left, up + marked * side, side * columns.length, side);
    }
  }
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - up) / side), j = Math.floor((event.clientX - box.left - left) / side);
    return i >= 0 && j >= 0 && i < rows.length && j < columns.length ? [i, j] : null;
  };
  canvas.addEventListener("pointermove", (event) => { const at = cell(event); if (at) say(...at); });
  canvas.addEventListener("click", (event) => { const at = cell(event); if (at) pick(...at); });
  return { node: h("div", { class: "scroll tall heat" }, canvas), show };
}
