// @ts-check
// Figures to take away: what is drawn on the page, saved as SVG or PNG.

import { h, s } from "./dom.js";

const SCALE = 2; // pixels of a PNG for each of the page
// What the style sheet of the page says of a mark, which a file has to say itself.
const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
];

// A drawing that stands by itself: a copy with its styles written out, on the colour of the card below it.
/** @param {any} drawing */
function standalone(drawing) {
  const copy = drawing.cloneNode(true);
  const marks = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((mark, i) => {
    const style = getComputedStyle(marks[i]);
    for (const name of STYLES) mark.style.setProperty(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex"]) mark.removeAttribute(name);
  });
  copy
    .querySelectorAll("animate, animateMotion")
    .forEach((/** @type {Element} */ each) => each.remove());
  const { width, height } = drawing.getBoundingClientRect();
  const [x, y, wide, tall] = drawing.viewBox.baseVal?.width
    ? ["x", "y", "width", "height"].map((name) => drawing.viewBox.baseVal[name])
    : [0, 0, width, height];
  copy.prepend(s("rect", { x, y, width: wide, height: tall, fill: ground() }));
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

const ground = () => getComputedStyle(document.documentElement).getPropertyValue("--card");
const png = (/** @type {HTMLCanvasElement} */ canvas) =>
  new Promise((done) => canvas.toBlob(done, "image/png"));

// A canvas of the page is transparent where nothing is drawn.
/** @param {HTMLCanvasElement} canvas */
function grounded(canvas) {
  const copy = h("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  const context = copy.getContext("2d");
  context.fillStyle = ground();
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  return copy;
}

/** @param {SVGElement} drawing */
async function rasterised(drawing) {
  const address = URL.createObjectURL(standalone(drawing));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = h("canvas");
    canvas.width = image.width * SCALE;
    canvas.height = image.height * SCALE;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await png(canvas);
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** @param {Blob} blob @param {string} name */
function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// Buttons that save a figure, an SVG element or a canvas; `name` is that of the file.
/** @param {any} figure @param {string} name */
export function takeAway(figure, name) {
  const file = name.replace(/[^\p{L}\p{N}]+/gu, "-").toLowerCase();
  const drawn = figure instanceof SVGElement;
  const button = (/** @type {string} */ kind, /** @type {() => Promise<any>} */ make) =>
    h("button", {
      type: "button",
      class: "small",
      "aria-label": `Save ${name} as ${kind}`,
      text: kind,
      onclick: async () => save(await make(), `${file}.${kind.toLowerCase()}`),
    });
  return h(
    "span",
    { class: "take-away" },
    drawn ? button("SVG", async () => standalone(figure)) : null,
    button("PNG", () => (drawn ? rasterised(figure) : png(grounded(figure)))),
  );
}
