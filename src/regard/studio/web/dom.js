// Elements without markup: whatever is text is set as text, so nothing a model or a file says can become an element.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);
export function put(place, ...children) {
  place.replaceChildren(
    ...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return place;
}

// A token as people read it: without marks of where words begin or end, and with white space that can be seen.
export function shown(token) {
  const bare = token.length > 1 ? token.replace(/^[▁Ġ]+/, "").replace(/<\/w>$/, "") : token;
  return ("" === bare || " Ġ▁".includes(bare) ? "␣" : bare)
    .replaceAll(/[\nĊ]/g, "⏎")
    .replaceAll("\t", "⇥")
    .replace(/^\p{Cf}+$/u, codes);
}
// Characters that join or direct others and are not seen by themselves, by their numbers.
const codes = (text) =>
  [...text]
    .map((c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`)
    .join(" ");
// A formula with its subscripts: W_Q has a small Q.
export const subscripts = (formula) =>
  formula.split(/_(\w+)/).map((part, i) => (i % 2 ? h("sub", { text: part }) : part));
export const clipped = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
export const fixed = (value, digits = 3) =>
  value === null || value === undefined ? "–" : value.toFixed(digits);
export function percent(share) {
  if (share > 0 && share < 5e-6) return "< 0.001 %";
  return `${(100 * share).toFixed(share > 0 && share < 0.001 ? 3 : 1)} %`;
}

// In pixels, for drawings that have to know it before they are on the page.
const ruler = document.createElement("canvas").getContext("2d");
export function textWidth(text, font) {
  ruler.font = `${font} system-ui, sans-serif`;
  return ruler.measureText(text).width;
}

// ------------------------------------------------------------------ keyboard

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

// Roving tabindex: a group of buttons is one tab stop, and arrow keys move within it. `rows` are lists of buttons.
export function roving(group, rows, { press = false } = {}) {
  const buttons = rows.flat();
  const current =
    buttons.find((button) => button.getAttribute("aria-pressed") === "true") || buttons[0];
  for (const button of buttons) button.tabIndex = button === current ? 0 : -1;
  group.onkeydown = (event) => {
    const step = STEPS[event.key];
    const y = rows.findIndex((row) => row.includes(event.target));
    if (!step || y < 0) return;
    event.preventDefault();
    const x = rows[y].indexOf(event.target);
    const single = rows.length === 1; // of one row, up and down go along it too
    const row = single ? rows[0] : rows[Math.max(0, Math.min(rows.length - 1, y + step[0]))];
    const next = row[Math.max(0, Math.min(row.length - 1, x + step[1] + (single ? step[0] : 0)))];
    if (!next || next === event.target) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    if (press) next.click();
  };
}

// ------------------------------------------------------------------ parts of many pages

export function segment(label, options, chosen, choose, kind = "") {
  const buttons = options.map(([value, text]) =>
    h("button", {
      type: "button",
      class: kind,
      "aria-pressed": String(value === chosen),
      "data-value": value,
      onclick: () => choose(value),
      text,
    }),
  );
  const group = h(
    "span",
    { class: "segment", role: "group", "aria-label": label },
    h("span", { class: "label", text: label }),
    buttons,
  );
  roving(group, [buttons], { press: true });
  return group;
}

export function slider(
  label,
  value,
  [least, most, step],
  change,
  show = (v) => String(v),
  { live = false } = {},
) {
  const output = h("output", { text: show(value) });
  return h(
    "label",
    { class: "field" },
    h("span", {}, label, " ", output),
    h("input", {
      type: "range",
      min: least,
      max: most,
      step,
      value,
      "aria-label": label,
      oninput: (event) => {
        output.textContent = show(Number(event.target.value));
        if (live) change(Number(event.target.value));
      },
      onchange: (event) => change(Number(event.target.value)),
    }),
  );
}

// Alternatives with their shares as bars, without those that are as good as impossible; the first is what was chosen.
// `texts` are what `write` is called with where one of them is pressed; null for those that cannot be.
const LEAST_SHARE = 0.0005,
  LEAST_BARS = 4;
export function shareBars(
  shares,
  { taken = 0, width = (share) => share, texts = null, write = () => {} } = {},
) {
  const clear = shares.filter(({ probability }, i) => i < LEAST_BARS || probability >= LEAST_SHARE);
  return h(
    "div",
    { class: "candidates" },
    clear.map(({ label, probability }, i) => [
      h(texts?.[i] ? "button" : "span", {
        class: `word${i === taken ? " taken" : ""}`,
        type: texts?.[i] ? "button" : null,
        onclick: () => texts?.[i] && write(texts[i]),
        text: clipped(shown(label), 40),
        title: label,
      }),
      h(
        "span",
        { class: "track", role: "img", "aria-label": percent(probability) },
        h("span", {
          class: `bar-fill${i === taken ? " taken" : ""}`,
          style: { width: `${100 * width(probability)}%` },
        }),
      ),
      h("span", { class: "number", text: percent(probability) }),
    ]),
  );
}

export const loading = (text = "Loading…") => h("div", { class: "loading", role: "status", text });

export function failure(error) {
  return h(
    "div",
    { class: "error", role: "alert" },
    h("strong", { text: error.problem || "Something went wrong" }),
    error.repair ? h("div", { class: "repair", text: "→ " + error.repair }) : null,
    // Nothing was wrong with what was asked: it can be asked again.
    error.type === "Gone"
      ? h("button", {
          type: "button",
          text: "Try again",
          onclick: () => window.dispatchEvent(new HashChangeEvent("hashchange")),
        })
      : null,
  );
}
