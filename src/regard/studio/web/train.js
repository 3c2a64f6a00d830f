// Train: follows the metrics of runs. Each run is read from the byte where the last answer ended.

import { ask } from "./api.js";
import { failure, h, put, s } from "./dom.js";
import { dark } from "./heat.js";
import { go } from "./route.js";

const EVERY = 2000, MOST = 4000;
const COLOURS = { light: ["#0072b2", "#d55e00", "#007a5a", "#a3478a", "#7a5c00", "#3b3b3b"], dark: ["#56b4e9", "#ff9b4a", "#2fd3a2", "#f09ad0", "#f0e442", "#d8dee9"] };
const DASHES = ["", "7 4", "2 4", "10 4 2 4", "14 4", "4 2"]; // a second sign beside colour
const CHARTS = [["loss", "Loss (nats)"], ["learning_rate", "Learning rate"], ["gradient_norm", "Gradient norm"], ["tokens_per_second", "Tokens or examples a second"], ["attention_entropy", "Attention entropy (nats)"]];
const followed = new Map(); // run → what is known of it; kept while the page is open

const short = (v) => v === 0 ? "0" : Math.abs(v) >= 1e5 ? (v / 1000).toFixed(0) + "k" : Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 1 ? v.toFixed(2) : Math.abs(v) >= 1e-3 ? v.toPrecision(3) : v.toExponential(1);

const tick = (v) => { const n = Number(v.toPrecision(6)); return Math.abs(n) >= 1e4 ? n / 1000 + "k" : Math.abs(n) < 1e-3 && n !== 0 ? n.toExponential() : String(n); };

async function advance(name) {
  const known = followed.get(name) || { offset: 0, curves: { step: [] }, events: [], last: null, grew: 0 };
  followed.set(name, known);
  for (let more = true; more;) {
    const found = await ask("metrics", { run: name, offset: known.offset }, { keep: false });
    const back = found.last && known.last && found.last.step <= known.last.step;
    if (found.restarted || back) { // a resumed run cuts its log back: begin again
      Object.assign(known, { offset: 0, curves: { step: [] }, events: [], last: null });
      if (back) continue;
    }
    if (found.lines) known.grew = Date.now();
    const before = known.curves.step.length;
    for (const key of new Set([...Object.keys(known.curves), ...Object.keys(found.curves)])) {
      known.curves[key] = [...(known.curves[key] || Array(before).fill(null)), ...(found.curves[key] || Array(found.curves.step.length).fill(null))];
    }
    if (known.curves.step.length > MOST) for (const key of Object.keys(known.curves)) known.curves[key] = known.curves[key].filter((_, i, all) => i % 2 === 0 || i === all.length - 1);
    known.events = [...known.events, ...found.events].slice(-200);
    known.last = found.last || known.last;
    known.offset = found.offset;
    more = found.more;
  }
  return known;
}

function ticks(least, most, count = 4) {
  const rough = (most - least) / count || 1, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((each) => each >= rough);
  const found = [];
  for (let v = Math.ceil(least / step) * step; v <= most + step * 1e-9; v += step) found.push(v);
  return found;
}

function chart(key, title, runs, colours) {
  const [W, H, L, R, T, B] = [window.innerWidth < 640 ? 340 : 560, window.innerWidth < 640 ? 210 : 260, 50, 24, 14, 30];
  const points = runs.map(([name, known]) => {
    const line = known.curves.step.map((x, i) => [x, known.curves[key]?.[i] ?? null]).filter((p) => p[1] !== null);
    const dots = known.events.filter((e) => e.event === "validation" && typeof e[key] === "number").map((e) => [e.step, e[key]]);
    return [name, line.length ? line : dots, dots]; // what only validation measures is a line through its dots
  });
  const all = points.flatMap(([, line, dots]) => [...line, ...dots]);
  if (!all.length) return null;
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of all) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
  if (x0 === x1) x1 = x0 + 1;
  y0 = Math.min(y0, 0); if (y0 === y1) y1 = y0 + 1;
  const X = (x) => L + (x - x0) / (x1 - x0) * (W - L - R), Y = (y) => H - B - (y - y0) / (y1 - y0) * (H - T - B);
  const told = h("span", { class: "note read", text: points.map(([, line]) => line.length ? short(line.at(-1)[1]) : "–").join(" · ") });
  const cross = s("line", { class: "cross", y1: T, y2: H - B, x1: -9, x2: -9 });
  const picture = s("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, width: "100%", role: "img", "aria-label": `${title} over steps`,
    onpointermove: (event) => {
      const box = picture.getBoundingClientRect(), x = x0 + ((event.clientX - box.left) / box.width * W - L) / (W - L - R) * (x1 - x0);
      const near = points.map(([name, line]) => [name, line.reduce((best, p) => Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best, line[0] || [0, NaN])]);
      if (!near[0]) return;
      cross.setAttribute("x1", X(near[0][1][0])); cross.setAttribute("x2", X(near[0][1][0]));
      told.textContent = `step ${near[0][1][0]}: ` + near.map(([name, p]) => (runs.length > 1 ? name + " " : "") + short(p[1])).join(" · ");
    } },
    ticks(y0, y1).map((v) => [s("line", { class: "grid", x1: L, x2: W - R, y1: Y(v), y2: Y(v) }), s("text", { x: L - 7, y: Y(v) + 4, "text-anchor": "end", text: tick(v) })]),
    ticks(x0, x1, 5).map((v) => s("text", { x: X(v), y: H - 9, "text-anchor": "middle", text: tick(v) })), cross,
    points.map(([name, line, dots]) => { const [colour, dash] = colours.get(name); return [
      s("path", { d: line.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join(""), stroke: colour, "stroke-dasharray": dash, "data-points": line.length }),
      dots.map(([x, y]) => s("circle", { cx: X(x), cy: Y(y), r: 4.5, fill: "var(--card)", stroke: colour, "stroke-width": 2.2 }, s("title", { text: `validation at step ${x}: ${y.toFixed(4)}` })))]; }));
  return h("section", { class: "card", "aria-label": title }, h("header", {}, h("h2", { text: title }), told, points.some(([, , dots]) => dots.length) ? h("span", { class: "note", text: "○ validation" }) : null), picture);
}

function samples(runs, colours) {
  const found = runs.flatMap(([name, known]) => known.events.filter((e) => e.event === "validation" && e.samples?.length).slice(-4).map((e) => [name, e])).sort((a, b) => b[1].step - a[1].step);
  if (!found.length) return null;
  return h("section", { class: "card", "aria-label": "Samples" }, h("header", {}, h("h2", { text: "Samples, newest first" })), h("div", { class: "samples" }, found.map(([name, event]) => h("div", {},
    h("h3", {}, `step ${event.step}`, runs.length > 1 ? h("span", { style: { color: colours.get(name)[0] }, text: ` ${name}` }) : null, h("span", { class: "faint", text: `  loss ${typeof event.loss === "number" ? event.loss.toFixed(3) : event.loss}` })),
    event.samples.map((sample) => h("dl", {}, Object.entries(sample).filter(([, v]) => typeof v === "string").map(([key, value]) => [h("dt", { text: key }), h("dd", { text: value })])))))));
}

function events(runs) {
  const bad = runs.flatMap(([name, known]) => known.events.filter((e) => e.event === "skipped" || e.event === "overflow").slice(-5).map((e) => [name, e]));
  const findings = runs.flatMap(([name, known]) => known.events.filter((e) => e.event === "finding").map((e) => [name, e]));
  const lines = [
    ...findings.map(([name, e]) => h("p", { class: "finding" }, h("b", { text: `${name}, step ${e.step}: ${e.cause}. ` }), `${e.evidence} → ${e.change}`)),
    ...bad.map(([name, e]) => h("p", { text: `${name}, step ${e.step}: update ${e.event} (loss ${e.loss}, gradient norm ${e.gradient_norm})${e.origin ? `, first in ${e.origin}` : ""}` }))];
  return lines.length ? h("section", { class: "error", "aria-label": "Findings" }, lines) : null;
}

export default async function train({ main, state, shelf, gone, atEnd }) {
  const names = new Set(shelf.runs);
  let timer = 0;
  atEnd(() => clearTimeout(timer));
  async function once() {
    const here = await ask("shelf", {}, { keep: false });
    here.runs.forEach((name) => names.add(name));
    if (gone()) return;
    const list = [...names];
    if (!list.length) {
      put(main, h("section", { class: "card" }, h("h2", { text: "No runs here" }), h("p", { text: "Start one, and name its folder, or the folder above it:" }), h("p", { class: "mono", text: "regard train --out runs/first   ·   regard studio runs" })));
      return;
    }
    const chosen = state.runs === undefined || state.runs === "" ? list.slice(0, 3) : state.runs.split("|").filter((name) => names.has(name));
    const palette = COLOURS[dark() ? "dark" : "light"];
    const colours = new Map(list.map((name, i) => [name, [palette[i % 6], DASHES[Math.max(0, chosen.indexOf(name)) % 6]]]));
    const runs = await Promise.all(chosen.map(async (name) => [name, await advance(name)]));
    if (gone()) return;
    const live = runs.some(([, known]) => Date.now() - known.grew < 15000 && known.seen) ;
    for (const [, known] of runs) known.seen = true;
    const toggle = (name, on) => go({ runs: (on ? [...chosen, name] : chosen.filter((each) => each !== name)).join("|") || "-" });
    const head = h("section", { class: "card", "aria-label": "Runs" },
      h("header", {}, h("h2", { text: "Runs" }), h("span", { class: live ? "live" : "note", text: live ? "● live" : "follows the log, every 2 s" })),
      h("div", { class: "bar" }, list.map((name) => h("label", { class: "run" }, h("input", { type: "checkbox", checked: chosen.includes(name), onchange: (event) => toggle(name, event.target.checked) }), h("i", { style: { background: colours.get(name)[0] } }), name))),
      runs.map(([name, known]) => known.last ? h("div", { class: "figures", style: { marginTop: ".8rem" } }, runs.length > 1 ? h("div", {}, h("b", { style: { color: colours.get(name)[0] }, text: name }), h("span", { text: "run" })) : null,
        [["step", known.last.step], ["loss", known.last.loss], ["learning rate", known.last.learning_rate], ["gradient norm", known.last.gradient_norm], [`${known.last.unit || "tokens"}/s`, known.last.tokens_per_second], ["minutes", known.last.seconds / 60]].filter(([, v]) => typeof v === "number" && !Number.isNaN(v)).map(([key, v]) => h("div", {}, h("b", { text: key === "step" ? v.toLocaleString("en") : short(v) }), h("span", { text: key })))) : h("p", { class: "note", text: `${name}: nothing logged yet` })));
    const focus = document.activeElement?.closest?.(".run")?.textContent;
    put(main, head, events(runs), h("div", { class: "charts" }, CHARTS.map(([key, title]) => chart(key, title, runs, colours)).filter(Boolean)), samples(runs, colours));
    if (focus) [...main.querySelectorAll(".run")].find((each) => each.textContent === focus)?.querySelector("input").focus();
  }
  let drawn = "";
  async function again() {
    try {
      const chosen = state.runs ? state.runs.split("|") : shelf.runs.slice(0, 3);
      const before = JSON.stringify(chosen.map((name) => followed.get(name)?.offset));
      await Promise.all(chosen.filter((name) => followed.has(name)).map(advance));
      const after = JSON.stringify(chosen.map((name) => followed.get(name)?.offset));
      if (gone()) return;
      if (before !== after || drawn) { await once(); drawn = ""; }
    } catch (error) {
      if (gone()) return;
      drawn = "failed";
      put(main, failure(error));
    }
    if (!gone()) timer = setTimeout(again, EVERY);
  }
  await once();
  timer = setTimeout(again, EVERY);
}
