// Tokens on both sides and lines between them: who looks at whom. A token is hovered, focused or pinned.

import { clipped, h, s, shown } from "./dom.js";

const ROW = 30, TOP = 30, MOST_LINES = 400, MOST_SHARES = 120;

// The largest of `count` weights from `first` on, each `step` further, as [weight, place], largest first; what is not above
// `faintest` is left out. They are counted into bins first, so that only a few have to be sorted.
function largest(weights, [first, step, count], most, faintest) {
  const bins = new Uint32Array(1025), end = first + step * count;
  let top = faintest;
  for (let i = first; i < end; i += step) if (weights[i] > top) top = weights[i];
  const bin = (w) => Math.min(1024, (w / top) * 1024) | 0;
  for (let i = first; i < end; i += step) if (weights[i] > faintest) bins[bin(weights[i])]++;
  let least = 1024;
  for (let seen = bins[1024]; least > 0 && seen < most; seen += bins[--least]);
  const found = [];
  for (let i = first; i < end; i += step) if (weights[i] > faintest && bin(weights[i]) >= least) found.push([weights[i], i]);
  return found.sort((a, b) => b[0] - a[0]).slice(0, most);
}

// The tokens are drawn once; `show` joins them by other weights.
export function links(rows, columns, { pin = () => {}, names = ["looks", "is looked at"] } = {}) {
  const wide = Math.max(...rows.map((t) => Math.min(16, shown(t).length)), 6) * 8.6 + 26;
  const right = Math.max(...columns.map((t) => Math.min(16, shown(t).length)), 6) * 8.6 + 26;
  const gap = Math.max(70, Math.min(250, window.innerWidth * 0.18)), shares = 84;
  const width = wide + gap + right + shares, many = columns.length;
  const height = TOP + ROW * Math.max(rows.length, columns.length) + 6;
  const y = (i) => TOP + i * ROW + ROW / 2;
  const lines = s("g", { "aria-hidden": "true" });
  const bars = s("g", { "aria-hidden": "true" });
  const told = h("p", { class: "read faint", role: "status" });
  let weights = new Float32Array(rows.length * many), faintest = 0, full = 1, pinned = -1;

  function curve(i, j, weight) {
    const [a, b] = [wide, wide + gap];
    return s("path", { class: "look", d: `M${a} ${y(i)}C${a + gap * 0.45} ${y(i)} ${b - gap * 0.45} ${y(j)} ${b} ${y(j)}`,
      "stroke-width": (0.6 + 6 * weight / full).toFixed(2), "stroke-opacity": Math.min(1, 0.06 + weight / full).toFixed(3) });
  }
  function draw(row, column) {
    const places = row >= 0 ? [row * many, 1, many] : column >= 0 ? [column, many, rows.length] : [0, 1, weights.length];
    const strongest = row < 0 && column < 0 ? 1 : largest(weights, places, 1, -1)[0][0];
    const all = largest(weights, places, MOST_LINES, Math.min(faintest, strongest / 10));
    lines.replaceChildren(...all.reverse().map(([w, i]) => curve(Math.floor(i / many), i % many, w)));
    bars.replaceChildren(...(row < 0 ? [] : largest(weights, places, MOST_SHARES, -1)).flatMap(([share, i]) => {
      const x = wide + gap + right, at = y(i % many);
      return [s("rect", { class: "share", x, y: at - 7, width: Math.max(0.5, 46 * share), height: 14, rx: 3 }),
        s("text", { class: "percent", x: x + 46 * share + 5, y: at + 4, text: `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%` })];
    }));
    if (row >= 0) {
      const [share, best] = largest(weights, places, 1, -1)[0];
      told.textContent = `“${shown(rows[row])}” looks most at “${shown(columns[best % many])}” (${(100 * share).toFixed(1)} %)`;
    } else if (column >= 0) told.textContent = `“${shown(columns[column])}” gets ${(100 * rows.reduce((sum, _, i) => sum + weights[i * many + column], 0) / rows.length).toFixed(1)} % of all attention`;
    else told.textContent = "Point at a token, or tab to it; Enter pins it.";
  }
  const rest = () => draw(pinned, -1);
  const token = (text, i, side) => {
    const [x, w, anchor] = side === 0 ? [0, wide - 6, "end"] : [wide + gap + 6, right - 6, "start"];
    return s("g", { class: "token", tabindex: side === 0 ? 0 : null, role: side === 0 ? "button" : null,
      "aria-pressed": side === 0 ? "false" : null, "aria-label": side === 0 ? `${shown(text)}, token ${i + 1}` : null, "data-row": side === 0 ? i : null, "data-column": side === 1 ? i : null },
      s("rect", { x, y: y(i) - 13, width: w, height: 26 }),
      s("text", { x: side === 0 ? x + w - 9 : x + 9, y: y(i) + 5, "text-anchor": anchor, text: clipped(shown(text), 16) }));
  };
  const left = rows.map((text, i) => token(text, i, 0));
  // One listener for all tokens: hundreds of them are built faster, and found by what was pointed at.
  let hovered = false;
  const over = (event) => {
    const { row, column } = event.target.closest(".token")?.dataset || {};
    if (row !== undefined) draw(Number(row), -1); else if (column !== undefined) draw(-1, Number(column)); else if (hovered) rest();
    hovered = row !== undefined || column !== undefined;
  };
  const choose = (event) => { const row = event.target.closest("[data-row]")?.dataset.row; if (row !== undefined) pin(Number(row) === pinned ? -1 : Number(row)); };
  const picture = s("svg", { class: "links", width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
    onpointerover: over, onpointerleave: rest, onfocusin: over, onfocusout: rest, onclick: choose,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(event); } } },
    s("text", { class: "dim percent", x: wide - 15, y: 16, "text-anchor": "end", text: names[0] }),
    s("text", { class: "dim percent", x: wide + gap + 15, y: 16, text: names[1] }),
    lines, bars, left, columns.map((text, j) => token(text, j, 1)));
  // `scale`: the weight whose line is thickest.
  function show(next, { marked = -1, title = "", scale = 1 } = {}) {
    left[pinned]?.classList.remove("pinned"); left[pinned]?.setAttribute("aria-pressed", "false");
    left[marked]?.classList.add("pinned"); left[marked]?.setAttribute("aria-pressed", "true");
    [weights, pinned, full, faintest] = [next, marked, scale, Math.min(0.01, scale / 3)]; // a head that looks everywhere has lines too
    picture.setAttribute("aria-label", title);
    const focused = document.activeElement?.closest?.(".token")?.dataset.row;
    if (focused !== undefined && picture.contains(document.activeElement)) draw(Number(focused), -1);
    else rest();
  }
  return { node: h("div", {}, told, h("div", { class: "scroll tall" }, picture)), show };
}

// A translation and its source as two lines of words, joined by what looks at what.
export function alignment(found) {
  const step = (tokens) => { let x = 10; return tokens.map((t) => { const w = Math.min(16, shown(t).length) * 9.4 + 20; const at = x; x += w; return [at, w, x]; }); };
  const [above, below] = [step(found.source), step(found.target)];
  const width = Math.max(above.at(-1)?.[2] ?? 0, below.at(-1)?.[2] ?? 0) + 10;
  const shift = (places) => (width - 10 - (places.at(-1)?.[2] ?? 0)) / 2;
  const [sa, sb] = [shift(above), shift(below)];
  const middle = ([x, w], by) => x + w / 2 + by;
  const curves = [];
  const strongest = new Set(found.links.map(([t, k]) => `${t},${k}`));
  found.weights.forEach((row, i) => row.forEach((w, j) => {
    if (w < 0.08) return;
    const [a, b] = [middle(above[j], sa), middle(below[i], sb)];
    curves.push(s("path", { class: "look", d: `M${a} 38C${a} 85 ${b} 75 ${b} 122`, "stroke-width": 0.8 + 5 * w, "stroke-opacity": strongest.has(`${i},${j}`) ? Math.min(1, 0.35 + w) : 0.3 * w + 0.05 }));
  }));
  const words = (tokens, places, by, y) => tokens.map((t, i) => s("text", { x: middle(places[i], by), y, "text-anchor": "middle", "font-size": 17, text: clipped(shown(t), 16) }));
  return h("div", { class: "scroll" }, s("svg", { class: "links", width, height: 156, viewBox: `0 0 ${width} 156`, role: "img", "aria-label": found.title },
    curves, words(found.source, above, sa, 28), words(found.target, below, sb, 142)));
}
