// Train: follows the metrics of runs. Each run is read from the byte where the last answer ended.

import { ask } from "./api.js";
import { chart, short } from "./chart.js";
import { failure, h, put, segment, slider } from "./dom.js";
import { dark } from "./heat.js";
import { go } from "./route.js";

const EVERY = 2000, MOST = 4000, CHOSEN = 3;
const COLOURS = { light: ["#0072b2", "#d55e00", "#007a5a", "#a3478a", "#7a5c00", "#3b3b3b"], dark: ["#56b4e9", "#ff9b4a", "#2fd3a2", "#f09ad0", "#f0e442", "#d8dee9"] };
const DASHES = ["", "7 4", "2 4", "10 4 2 4", "14 4", "4 2"]; // a second sign beside colour
// Curves that training logs, with their axis.
const CURVES = [["learning_rate", "Learning rate", ""], ["gradient_norm", "Gradient norm", ""], ["tokens_per_second", "Throughput", "tokens or examples a second"]];
// What validations measure besides their loss, by the names of the field.
const METRICS = { bleu: "BLEU", chrf: "chrF", exact_match: "Exact match (%)", accuracy: "Accuracy (%)", f1: "F1 (%)", perplexity: "Perplexity", wer: "Word error rate (%)", cer: "Character error rate (%)",
  mse: "Mean squared error", mae: "Mean absolute error", pearson: "Pearson correlation", attention_entropy: "Attention entropy (nats)", bits_per_character: "Bits per character" };
const NOT_METRICS = new Set(["step", "loss", "nll", "best", "examples", "seconds", "tokens"]);
const STATUS = { training: "● training", finished: "✓ finished", stopped: "◼ stopped before its end", failed: "✗ failed" };
const NOTES = new Set(["note", "finding", "skipped", "overflow"]);

const followed = new Map(); // run → what is known of it; kept while the page is open

async function advance(name) {
  const known = followed.get(name) || { offset: 0, curves: { step: [] }, events: [], last: null };
  followed.set(name, known);
  for (let more = true; more;) {
    const found = await ask("metrics", { run: name, offset: known.offset }, { keep: false });
    const back = found.last && known.last && found.last.step <= known.last.step;
    if (found.restarted || back) { // a resumed run cuts its log back: begin again
      Object.assign(known, { offset: 0, curves: { step: [] }, events: [], last: null });
      if (back) continue;
    }
    const before = known.curves.step.length;
    for (const key of new Set([...Object.keys(known.curves), ...Object.keys(found.curves)])) {
      known.curves[key] = [...(known.curves[key] || Array(before).fill(null)), ...(found.curves[key] || Array(found.curves.step.length).fill(null))];
    }
    if (known.curves.step.length > MOST) for (const key of Object.keys(known.curves)) known.curves[key] = known.curves[key].filter((_, i, all) => i % 2 === 0 || i === all.length - 1);
    known.events = [...known.events, ...found.events].slice(-400);
    known.last = found.last || known.last;
    known.offset = found.offset;
    more = found.more;
  }
  known.run = await ask("run", { run: name }, { keep: false });
  return known;
}

// ------------------------------------------------------------------ lines of charts

const curve = (known, key) => known.curves.step.map((x, i) => [x, known.curves[key]?.[i] ?? null]).filter((point) => point[1] !== null);
const validations = (known, key) => known.events.filter((event) => event.event === "validation" && typeof event[key] === "number").map((event) => [event.step, event[key]]);

// Negative log-likelihood of training and validation, which can be compared; what training minimises beside it, where that
// is another number (label smoothing, auxiliary losses).
function lossLines(runs, colours) {
  return runs.flatMap(([name, known]) => {
    const [colour, dash] = colours.get(name), prefix = runs.length > 1 ? `${name}, ` : "";
    const loss = curve(known, "loss"), nll = curve(known, "nll");
    const differs = nll.length && loss.some(([, y], i) => Math.abs(y - (nll[i]?.[1] ?? y)) > 1e-6);
    return [
      { label: `${prefix}training`, points: nll.length ? nll : loss, colour, dash },
      { label: `${prefix}validation`, points: validations(known, "loss"), dots: true, colour, dash: "" },
      ...(differs ? [{ label: `${prefix}training, as minimised`, points: loss, colour, dash: "1 3", faint: true }] : []),
    ];
  });
}

function metricNames(runs) {
  const names = new Set();
  for (const [, known] of runs) {
    for (const event of known.events) if (event.event === "validation") for (const [key, value] of Object.entries(event)) if (typeof value === "number" && !NOT_METRICS.has(key)) names.add(key);
  }
  return [...names];
}

function charts(runs, colours, state) {
  const options = { log: state.scale === "log", smooth: Number(state.smooth || 0), zoom: state.zoom ? state.zoom.split("-").map(Number) : null,
    select: (zoom) => go({ zoom: zoom ? zoom.join("-") : "" }) };
  const of = (pick, dots = false) => runs.map(([name, known]) => ({ label: runs.length > 1 ? name : dots ? "validation" : "training", points: pick(known), dots, colour: colours.get(name)[0], dash: colours.get(name)[1] }));
  return [
    chart("Loss: negative log-likelihood", lossLines(runs, colours), { ...options, unit: "nats" }),
    ...metricNames(runs).map((key) => chart(METRICS[key] ?? key.replaceAll("_", " "), of((known) => validations(known, key), true), { ...options, log: false })),
    ...CURVES.map(([key, title, unit]) => chart(title, of((known) => curve(known, key)), { ...options, unit })),
  ].filter(Boolean);
}

// ------------------------------------------------------------------ figures, settings, notes

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds % 60)];
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

function figures(name, known, many, colour) {
  if (!known.last) return h("p", { class: "note", text: `${name}: nothing logged yet` });
  const { run, last } = known, steps = run.steps ? ` of ${run.steps.toLocaleString("en")}` : "";
  const best = known.events.filter((event) => event.event === "validation").at(-1);
  const list = [["status", STATUS[run.status]], ["step", last.step.toLocaleString("en") + steps],
    ...(run.seconds_left !== null ? [["time left", duration(run.seconds_left)]] : []), ["training time", duration(last.seconds)],
    ["training loss (NLL)", short(last.nll ?? last.loss)], ...(best ? [["validation loss", typeof best.loss === "number" ? short(best.loss) : String(best.loss)]] : []),
    ["learning rate", last.learning_rate === undefined ? null : short(last.learning_rate)], [`${last.unit || "tokens"}/s`, last.tokens_per_second === undefined ? null : short(last.tokens_per_second)]];
  return h("div", { class: "figures run-figures" }, many ? h("div", {}, h("b", { style: { color: colour }, text: name }), h("span", { text: "run" })) : null,
    list.filter(([, value]) => value !== null && value !== undefined).map(([key, value]) => h("div", { class: key === "status" ? run.status : null }, h("b", { text: value }), h("span", { text: key }))));
}

// Settings of the runs side by side; with several, those that differ are marked and come first.
function settings(runs, colours, state) {
  const sections = new Map();
  for (const [, known] of runs) {
    for (const [section, values] of Object.entries(known.run.settings)) for (const key of Object.keys(values)) sections.set(`${section}.${key}`, [section, key]);
  }
  if (!sections.size) return null;
  const value = (known, [section, key]) => { const v = known.run.settings[section]?.[key]; return v === undefined ? "–" : typeof v === "string" ? v : JSON.stringify(v); };
  const rows = [...sections.values()].map((at) => ({ at, values: runs.map(([, known]) => value(known, at)) })).map((row) => ({ ...row, differs: new Set(row.values).size > 1 }));
  const differing = rows.filter((row) => row.differs);
  const onlyDifferences = runs.length > 1 && state.settings !== "all";
  const shown = onlyDifferences ? differing : [...differing, ...rows.filter((row) => !row.differs)];
  return h("details", { class: "card", id: "settings", open: runs.length > 1 || state.settings === "all" }, h("summary", {}, h("h2", { text: runs.length > 1 ? `Settings: ${differing.length} differ` : "Settings" })),
    runs.length > 1 ? segment("Show", [["differences", "what differs"], ["all", "all"]], onlyDifferences ? "differences" : "all", (which) => go({ settings: which === "all" ? "all" : "" })) : null,
    shown.length ? h("div", { class: "scroll" }, h("table", { class: "plain settings" },
      h("tr", {}, h("th", { text: "setting" }), runs.map(([name]) => h("th", { style: { color: colours.get(name)[0] }, text: name }))),
      shown.map((row) => h("tr", { class: row.differs ? "differs" : null }, h("th", {}, h("span", { class: "faint", text: `${row.at[0]}.` }), row.at[1], row.differs ? " ≠" : ""), row.values.map((text) => h("td", { text }))))))
      : h("p", { class: "note", text: "These runs have the same settings." }));
}

const noteText = (event) => {
  if (event.event === "skipped" || event.event === "overflow") return `update ${event.event} (loss ${event.loss}, gradient norm ${event.gradient_norm})`;
  if (event.event === "finding") return `${event.cause} (${event.evidence}) → ${event.change}`;
  return event.text ?? event.event;
};

// How a run ended, as its folder says.
function ending(run) {
  const scores = Object.entries(run.scores).map(([split, values]) => `${split}: ${Object.entries(values).map(([key, value]) => `${METRICS[key] ?? key.replaceAll("_", " ")} ${short(value)}`).join(", ")}`);
  if (run.status === "failed") return [`failed: ${run.problem} → ${run.repair}`, true];
  return run.status === "finished" && scores.length ? [`finished. ${scores.join(" · ")}`, false] : null;
}

// What happened besides the steps: skipped updates, findings about the run, its end.
function notes(runs) {
  const bad = new Set(["skipped", "overflow", "finding"]);
  const list = runs.flatMap(([name, known]) => {
    const own = known.events.filter((event) => NOTES.has(event.event)).slice(-30).reverse().map((event) => [name, `step ${event.step ?? "–"}: ${noteText(event)}`, bad.has(event.event)]);
    const end = ending(known.run);
    return end ? [[name, ...end], ...own] : own;
  });
  if (!list.length) return null;
  return h("section", { class: "card", "aria-label": "Notes" }, h("header", {}, h("h2", { text: "Notes" })),
    h("ul", { class: "notes" }, list.map(([name, text, isBad]) => h("li", { class: isBad ? "bad" : null }, runs.length > 1 ? h("b", { text: `${name}: ` }) : null, text))));
}

function samples(runs, colours) {
  const found = runs.flatMap(([name, known]) => known.events.filter((e) => e.event === "validation" && e.samples?.length).slice(-4).map((e) => [name, e])).sort((a, b) => b[1].step - a[1].step);
  if (!found.length) return null;
  return h("section", { class: "card", "aria-label": "Samples" }, h("header", {}, h("h2", { text: "Samples, newest first" })), h("div", { class: "samples" }, found.map(([name, event]) => h("div", {},
    h("h3", {}, `step ${event.step}`, runs.length > 1 ? h("span", { style: { color: colours.get(name)[0] }, text: ` ${name}` }) : null, h("span", { class: "faint", text: `  loss ${typeof event.loss === "number" ? event.loss.toFixed(3) : event.loss}` })),
    event.samples.map((sample) => h("dl", {}, Object.entries(sample).filter(([, v]) => typeof v === "string").map(([key, value]) => [h("dt", { text: key }), h("dd", { text: value })])))))));
}

// ------------------------------------------------------------------ the page

// Losses of unlike tasks stand on one axis, but cannot be compared.
function unlike(runs) {
  const objectives = new Set(runs.map(([, known]) => known.run.settings.train?.objective).filter(Boolean));
  return objectives.size > 1 ? h("p", { class: "warning", text: `These runs learn different things (${[...objectives].join(", ")}): their losses cannot be compared.` }) : null;
}

function header(list, chosen, runs, colours, state) {
  const live = runs.some(([, known]) => known.run.status === "training");
  const toggle = (name, on) => go({ runs: (on ? [...chosen, name] : chosen.filter((each) => each !== name)).join("|") || "-", zoom: "" });
  return h("section", { class: "card", "aria-label": "Runs" },
    h("header", {}, h("h2", { text: "Runs" }), h("span", { class: live ? "live" : "note", text: live ? "● live" : "follows the log, every 2 s" })),
    h("div", { class: "bar" }, list.map((name) => h("label", { class: "run" }, h("input", { type: "checkbox", checked: chosen.includes(name), onchange: (event) => toggle(name, event.target.checked) }), h("i", { style: { background: colours.get(name)[0] } }), name))),
    runs.map(([name, known]) => figures(name, known, runs.length > 1, colours.get(name)[0])),
    unlike(runs),
    h("div", { class: "bar spaced" }, segment("Scale", [["linear", "linear"], ["log", "log"]], state.scale === "log" ? "log" : "linear", (scale) => go({ scale: scale === "log" ? scale : "" })),
      slider("Smoothing", Number(state.smooth || 0), [0, 0.98, 0.02], (value) => go({ smooth: value || "" }), (v) => v ? v.toFixed(2) : "off"),
      h("span", { class: "note", text: "Drag over a chart to zoom all of them, double-click to see all again. Training and validation loss are the same quantity: −log p a token, without label smoothing." })));
}

export default async function train({ main, state, shelf, gone, atEnd }) {
  const names = new Set(shelf.runs);
  let timer = 0;
  atEnd(() => clearTimeout(timer));
  const chosenOf = (list) => state.runs === undefined || state.runs === "" ? list.slice(0, CHOSEN) : state.runs.split("|").filter((name) => names.has(name));
  async function once() {
    const here = await ask("shelf", {}, { keep: false });
    here.runs.forEach((name) => names.add(name));
    if (gone()) return;
    const list = [...names];
    if (!list.length) {
      put(main, h("section", { class: "card" }, h("h2", { text: "No runs here" }), h("p", { text: "Start one, and name its folder, or the folder above it:" }), h("p", { class: "mono", text: "regard train --out runs/first   ·   regard studio runs" })));
      return;
    }
    const chosen = chosenOf(list), palette = COLOURS[dark() ? "dark" : "light"];
    const colours = new Map(list.map((name, i) => [name, [palette[Math.max(0, chosen.includes(name) ? chosen.indexOf(name) : i) % 6], DASHES[Math.max(0, chosen.indexOf(name)) % 6]]]));
    const runs = await Promise.all(chosen.map(async (name) => [name, await advance(name)]));
    if (gone()) return;
    const focus = document.activeElement?.closest?.(".run")?.textContent;
    put(main, header(list, chosen, runs, colours, state), notes(runs), h("div", { class: "charts" }, charts(runs, colours, state)), settings(runs, colours, state), samples(runs, colours));
    if (focus) [...main.querySelectorAll(".run")].find((each) => each.textContent === focus)?.querySelector("input").focus();
  }
  let failed = false;
  async function again() {
    try {
      const chosen = chosenOf([...names]), offsets = () => JSON.stringify(chosen.map((name) => [followed.get(name)?.offset, followed.get(name)?.run?.status]));
      const before = offsets();
      await Promise.all(chosen.filter((name) => followed.has(name)).map(advance));
      if (gone()) return;
      if (before !== offsets() || failed) { await once(); failed = false; }
    } catch (error) {
      if (gone()) return;
      failed = true;
      put(main, failure(error));
    }
    if (!gone()) timer = setTimeout(again, EVERY);
  }
  await once();
  timer = setTimeout(again, EVERY);
}
