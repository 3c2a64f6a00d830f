// Tokens on both sides and lines between them: who looks at whom. A token is hovered, focused or pinned.

import { clipped, h, s, shown } from "./dom.js";

const ROW = 30, TOP = 30, MOST_LINES = 400;

export function links(weights, rows, columns, { pinned = -1, pin = () => {}, names = ["looks", "is looked at"], label = "" } = {}) {
  const wide = Math.max(...rows.map((t) => Math.min(16, shown(t).length)), 6) * 8.6 + 26;
  const right = Math.max(...columns.map((t) => Math.min(16, shown(t).length)), 6) * 8.6 + 26;
  const gap = Math.max(70, Math.min(250, window.innerWidth * 0.18)), shares = 84;
  const width = wide + gap + right + shares;
  const height = TOP + ROW * Math.max(rows.length, columns.length) + 6;
  const y = (i) => TOP + i * ROW + ROW / 2;
  const lines = s("g", { "aria-hidden": "true" });
  const bars = s("g", { "aria-hidden": "true" });
  const told = h("p", { class: "read faint", role: "status" });

  const strongest = weights.reduce((most, line) => line.reduce((a, b) => Math.max(a, b), most), 0);
  const faintest = Math.min(0.01, strongest / 3); // a head that looks everywhere has lines too

  function curve(i, j, weight) {
    const [a, b] = [wide, wide + gap];
    return s("path", { class: "look", d: `M${a} ${y(i)}C${a + gap * 0.45} ${y(i)} ${b - gap * 0.45} ${y(j)} ${b} ${y(j)}`,
      "stroke-width": (0.6 + 6 * weight).toFixed(2), opacity: Math.min(1, 0.06 + weight).toFixed(3) });
  }
  function draw(row, column) {
    const all = [];
    weights.forEach((line, i) => line.forEach((w, j) => {
      if ((row < 0 || i === row) && (column < 0 || j === column) && w > faintest) all.push([w, i, j]);
    }));
    all.sort((a, b) => b[0] - a[0]);
    lines.replaceChildren(...all.slice(0, MOST_LINES).reverse().map(([w, i, j]) => curve(i, j, w)));
    bars.replaceChildren(...(row < 0 ? [] : columns).flatMap((_, j) => {
      const share = weights[row][j], x = wide + gap + right;
      return [s("rect", { class: "share", x, y: y(j) - 7, width: Math.max(0.5, 46 * share), height: 14, rx: 3 }),
        s("text", { class: "percent", x: x + 46 * share + 5, y: y(j) + 4, text: `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%` })];
    }));
    if (row >= 0) {
      const best = weights[row].indexOf(Math.max(...weights[row]));
      told.textContent = `“${shown(rows[row])}” looks most at “${shown(columns[best])}” (${(100 * weights[row][best]).toFixed(1)} %)`;
    } else if (column >= 0) told.textContent = `“${shown(columns[column])}” gets ${(100 * weights.reduce((sum, line) => sum + line[column], 0) / rows.length).toFixed(1)} % of all attention`;
    else told.textContent = "Point at a token, or tab to it; Enter pins it.";
  }
  const rest = () => draw(pinned, -1);
  const token = (text, i, side) => {
    const [x, w, anchor] = side === 0 ? [0, wide - 6, "end"] : [wide + gap + 6, right - 6, "start"];
    const over = () => (side === 0 ? draw(i, -1) : draw(-1, i));
    const choose = () => side === 0 && pin(i === pinned ? -1 : i);
    return s("g", { class: `token${side === 0 && i === pinned ? " pinned" : ""}`, tabindex: side === 0 ? 0 : null, role: side === 0 ? "button" : null,
      "aria-pressed": side === 0 ? String(i === pinned) : null, "aria-label": side === 0 ? `${shown(text)}, token ${i + 1}` : null, "data-row": side === 0 ? i : null,
      onpointerenter: over, onpointerleave: rest, onfocus: over, onblur: rest, onclick: choose,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } } },
      s("rect", { x, y: y(i) - 13, width: w, height: 26 }),
      s("text", { x: side === 0 ? x + w - 9 : x + 9, y: y(i) + 5, "text-anchor": anchor, text: clipped(shown(text), 16) }));
  };
  const picture = s("svg", { class: "links", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label },
    s("text", { class: "dim percent", x: wide - 15, y: 16, "text-anchor": "end", text: names[0] }),
    s("text", { class: "dim percent", x: wide + gap + 15, y: 16, text: names[1] }),
    lines, bars, rows.map((text, i) => token(text, i, 0)), columns.map((text, j) => token(text, j, 1)));
  rest();
  return h("div", {}, told, h("div", { class: "scroll tall" }, picture));
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
    curves.push(s("path", { class: "look", d: `M${a} 38C${a} 85 ${b} 75 ${b} 122`, "stroke-width": 0.8 + 5 * w, opacity: strongest.has(`${i},${j}`) ? Math.min(1, 0.35 + w) : 0.3 * w + 0.05 }));
  }));
  const words = (tokens, places, by, y) => tokens.map((t, i) => s("text", { x: middle(places[i], by), y, "text-anchor": "middle", "font-size": 17, text: clipped(shown(t), 16) }));
  return h("div", { class: "scroll" }, s("svg", { class: "links", width, height: 156, viewBox: `0 0 ${width} 156`, role: "img", "aria-label": found.title },
    curves, words(found.source, above, sa, 28), words(found.target, below, sb, 142)));
}
