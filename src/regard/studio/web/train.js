// Train: follows the metrics of runs. Each run is read from the byte where the last answer ended.

import { ask } from "./api.js";
import { chart, scaleSegment, short } from "./chart.js";
import { clipped, failure, h, put, segment, slider } from "./dom.js";
import { dark } from "./heat.js";
import { go, number } from "./route.js";

const EVERY = 2000,
  MOST = 4000,
  CHOSEN = 3;
const LONGEST = 280; // letters of a sample
const COLOURS = {
  light: ["#0072b2", "#b34f00", "#007a5a", "#a3478a", "#7a5c00", "#3b3b3b"],
  dark: ["#56b4e9", "#ff9b4a", "#2fd3a2", "#f09ad0", "#f0e442", "#d8dee9"],
};
const DASHES = ["", "7 4", "2 4", "10 4 2 4", "14 4", "4 2"]; // a second sign beside colour
// Curves that training logs, with their axis.
const CURVES = [
  ["learning_rate", "Learning rate", ""],
  ["gradient_norm", "Gradient norm", ""],
  ["tokens_per_second", "Throughput", "tokens or examples per second"],
];
// What validations measure besides their loss, by the names of the field.
const METRICS = {
  bleu: "BLEU",
  chrf: "chrF",
  exact_match: "Exact match (%)",
  accuracy: "Accuracy (%)",
  f1: "F1 (%)",
  perplexity: "Perplexity",
  wer: "Word error rate (%)",
  cer: "Character error rate (%)",
  mse: "Mean squared error",
  mae: "Mean absolute error",
  pearson: "Pearson correlation",
  attention_entropy: "Attention entropy (nats)",
  bits_per_character: "Bits per character",
};
const NOT_METRICS = new Set(["step", "loss", "nll", "best", "examples", "seconds", "tokens"]);
const STATUS = {
  training: "● training",
  finished: "✓ finished",
  stopped: "◼ interrupted",
  failed: "✗ failed",
};
const NOTES = new Set(["note", "finding", "skipped", "overflow"]);

const followed = new Map(); // run → what is known of it; kept while the page is open
let settingsOpen = null; // whether the settings were opened or closed by hand; they stay so

const nothing = () => ({ offset: 0, curves: { step: [] }, events: [], broken: [], last: null });

async function advance(name) {
  const known = followed.get(name) || nothing();
  followed.set(name, known);
  for (let more = true; more;) {
    const found = await ask("metrics", { run: name, offset: known.offset }, { keep: false });
    const back = found.last && known.last && found.last.step <= known.last.step;
    if (found.restarted || back) {
      // a resumed run cuts its log back: begin again
      Object.assign(known, nothing());
      if (back) continue;
    }
    const before = known.curves.step.length;
    for (const key of new Set([...Object.keys(known.curves), ...Object.keys(found.curves)])) {
      known.curves[key] = [
        ...(known.curves[key] || Array(before).fill(null)),
        ...(found.curves[key] || Array(found.curves.step.length).fill(null)),
      ];
    }
    if (known.curves.step.length > MOST)
      for (const key of Object.keys(known.curves))
        known.curves[key] = known.curves[key].filter(
          (_, i, all) => i % 2 === 0 || i === all.length - 1,
        );
    known.events = [...known.events, ...found.events].slice(-400);
    known.broken = [...known.broken, ...found.broken].slice(-400);
    known.last = found.last || known.last;
    known.offset = found.offset;
    more = found.more;
  }
  known.run = await ask("run", { run: name }, { keep: false });
  return known;
}

// ------------------------------------------------------------------ lines of charts

// Curves go by step, by training time or by tokens; a run that has not logged these has no line there.
const AXES = { step: "step", seconds: "training time in seconds", tokens: "tokens" };
const axisOf = (state) => (Object.hasOwn(AXES, state.by ?? "") ? state.by : "step");

// What a step is on an axis, between two that were logged.
function placeOf(known, by) {
  if (by === "step") return (step) => step;
  const { step: steps, [by]: values = [] } = known.curves;
  return (step) => {
    const after = steps.findIndex((each) => each >= step);
    if (after < 0 || steps[after] === step || after === 0)
      return values.at(after < 0 ? -1 : after) ?? null;
    const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
    const [a, b] = [values[after - 1], values[after]];
    return a === null || b === null || b === undefined ? null : a + share * (b - a);
  };
}

const curve = (known, key, by = "step") =>
  known.curves.step
    .map((_, i) => [known.curves[by]?.[i] ?? null, known.curves[key]?.[i] ?? null])
    .filter(([x, y]) => x !== null && y !== null);
const validations = (known, key, by = "step") => {
  const place = placeOf(known, by);
  return known.events
    .filter((event) => event.event === "validation" && typeof event[key] === "number")
    .map((event) => [place(event.step), event[key]])
    .filter(([x]) => x !== null);
};

const NLL = "negative log-likelihood";
const lossNames = (runs) => [...new Set(runs.map(([, known]) => known.run.loss))];

// The loss of training and validation, which can be compared, mostly the negative log-likelihood; what training minimises beside it, where that
// is another number (label smoothing, auxiliary losses).
function minimised(known) {
  const smoothing = known.run.settings.train?.label_smoothing;
  return smoothing ? `training, label smoothing ${smoothing}` : "training objective";
}

function lossLines(runs, colours, by) {
  return runs.flatMap(([name, known]) => {
    const [colour, dash] = colours.get(name),
      prefix = runs.length > 1 ? `${name}, ` : "";
    const loss = curve(known, "loss", by),
      nll = curve(known, "nll", by);
    const differs = nll.length && loss.some(([, y], i) => Math.abs(y - (nll[i]?.[1] ?? y)) > 1e-6);
    return [
      {
        label: `${prefix}training`,
        points: nll.length ? nll : loss,
        broken: known.broken.map(placeOf(known, by)),
        colour,
        dash,
      },
      {
        label: `${prefix}validation`,
        points: validations(known, "loss", by),
        dots: true,
        colour,
        dash,
      },
      ...(differs
        ? [{ label: prefix + minimised(known), points: loss, colour, dash, faint: true }]
        : []),
    ];
  });
}

function metricNames(runs) {
  const names = new Set();
  for (const [, known] of runs) {
    for (const event of known.events)
      if (event.event === "validation")
        for (const [key, value] of Object.entries(event))
          if (typeof value === "number" && !NOT_METRICS.has(key)) names.add(key);
  }
  return [...names];
}

// From which step to which; a link that was cut is no zoom.
function zoomOf(state) {
  const [from, to] = (state.zoom ?? "").split("-").map(Number);
  return to > from ? [from, to] : null;
}
// The steps of all runs, so that charts below each other have the same axis.
function spanOf(runs, by) {
  const steps = runs
    .flatMap(([, known]) => [
      known.curves[by]?.[0],
      known.curves[by]?.at(-1),
      ...known.events.map((event) => placeOf(known, by)(event.step)),
    ])
    .filter((step) => typeof step === "number");
  return steps.length ? [Math.min(...steps), Math.max(...steps)] : null;
}

function charts(runs, colours, state) {
  const by = axisOf(state);
  const options = {
    axis: AXES[by],
    log: state.scale === "log",
    smooth: number(state.smooth, 0, [0, 0.98]),
    zoom: zoomOf(state),
    span: spanOf(runs, by),
    select: (zoom) => go({ zoom: zoom ? zoom.join("-") : "" }),
  };
  const losses = lossNames(runs);
  const of = (pick, dots = false) =>
    runs.map(([name, known]) => ({
      label: runs.length > 1 ? name : dots ? "validation" : "training",
      points: pick(known),
      dots,
      colour: colours.get(name)[0],
      dash: colours.get(name)[1],
    }));
  return [
    chart(losses.length === 1 ? `Loss: ${losses[0]}` : "Loss", lossLines(runs, colours, by), {
      ...options,
      unit: losses.length === 1 && losses[0] === NLL ? "nats" : "",
    }),
    ...metricNames(runs).map((key) =>
      chart(
        METRICS[key] ?? key.replaceAll("_", " "),
        of((known) => validations(known, key, by), true),
        options,
      ),
    ),
    ...CURVES.map(([key, title, unit]) =>
      chart(
        title,
        of((known) => curve(known, key, by)),
        { ...options, unit },
      ),
    ),
  ].filter(Boolean);
}

// ------------------------------------------------------------------ figures, settings, notes

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const [hours, minutes, rest] = [
    Math.floor(seconds / 3600),
    Math.floor(seconds / 60) % 60,
    Math.floor(seconds % 60),
  ];
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

function figures(name, known, colour) {
  const { run } = known,
    last = known.last ?? {},
    steps = run.steps ? ` of ${run.steps.toLocaleString("en")}` : "";
  const best = known.events.filter((event) => event.event === "validation").at(-1);
  const written = (value) => (typeof value === "number" ? short(value) : value);
  // The last learning rate of a schedule is 0: it says something only while the run goes on.
  const list = [
    ["status", STATUS[run.status]],
    [
      "step",
      last.step === undefined
        ? run.status === "training"
          ? "none logged yet"
          : "none"
        : last.step.toLocaleString("en") + steps,
    ],
    ["time left", run.seconds_left === null ? null : duration(run.seconds_left)],
    ["training time", last.seconds === undefined ? null : duration(last.seconds)],
    [run.loss === NLL ? "training loss (NLL)" : "training loss", written(last.nll ?? last.loss)],
    ["validation loss", written(best?.loss)],
    ["learning rate", run.status === "training" ? written(last.learning_rate) : null],
    [`${last.unit || "tokens"}/s`, written(last.tokens_per_second)],
  ];
  return {
    name,
    colour,
    status: run.status,
    list: list.filter(([, v]) => v !== null && v !== undefined),
  };
}

// One run as large figures; several as a table, a line each, so that they can be compared.
function figuresOf(runs) {
  if (runs.length === 1) {
    const [{ list, status }] = runs;
    return h(
      "div",
      { class: "figures run-figures" },
      list.map(([key, value]) =>
        h(
          "div",
          { class: key === "status" ? status : null },
          h("b", { text: value }),
          h("span", { text: key }),
        ),
      ),
    );
  }
  const keys = [...new Set(runs.flatMap(({ list }) => list.map(([key]) => key)))];
  return h(
    "div",
    { class: "scroll", tabindex: 0, "aria-label": "Runs, scrollable" },
    h(
      "table",
      { class: "plain runs", id: "runs" },
      h(
        "tr",
        {},
        ["run", ...keys].map((text) => h("th", { scope: "col", text })),
      ),
      runs.map(({ name, colour, list }) => {
        const values = new Map(list);
        return h(
          "tr",
          {},
          h("th", { scope: "row", class: "token", style: { color: colour }, text: name }),
          keys.map((key) => h("td", { text: values.get(key) ?? "–" })),
        );
      }),
    ),
  );
}

// Settings of the runs side by side; with several, those that differ are marked and come first.
function settings(runs, colours, state) {
  const sections = new Map();
  for (const [, known] of runs) {
    for (const [section, values] of Object.entries(known.run.settings))
      for (const key of Object.keys(values)) sections.set(`${section}.${key}`, [section, key]);
  }
  if (!sections.size) return null;
  const value = (known, [section, key]) => {
    const v = known.run.settings[section]?.[key];
    return v === undefined ? "–" : typeof v === "string" ? v : JSON.stringify(v);
  };
  const rows = [...sections.values()]
    .map((at) => ({ at, values: runs.map(([, known]) => value(known, at)) }))
    .map((row) => ({ ...row, differs: new Set(row.values).size > 1 }));
  const differing = rows.filter((row) => row.differs);
  const onlyDifferences = runs.length > 1 && state.settings !== "all";
  const shown = onlyDifferences ? differing : [...differing, ...rows.filter((row) => !row.differs)];
  return h(
    "details",
    {
      class: "card",
      id: "settings",
      open: settingsOpen ?? (runs.length > 1 || state.settings === "all"),
      ontoggle: (event) => {
        settingsOpen = event.target.open;
      },
    },
    h(
      "summary",
      {},
      h("h2", { text: runs.length > 1 ? `Settings: ${differing.length} differ` : "Settings" }),
    ),
    runs.length > 1
      ? segment(
          "Show",
          [
            ["differences", "differences"],
            ["all", "all"],
          ],
          onlyDifferences ? "differences" : "all",
          (which) => go({ settings: which === "all" ? "all" : "" }),
        )
      : null,
    shown.length
      ? h(
          "div",
          { class: "scroll" },
          h(
            "table",
            { class: "plain settings" },
            h(
              "tr",
              {},
              h("th", { text: "setting" }),
              runs.map(([name]) => h("th", { style: { color: colours.get(name)[0] }, text: name })),
            ),
            shown.map((row) =>
              h(
                "tr",
                { class: row.differs ? "differs" : null },
                h(
                  "th",
                  {},
                  h("span", { class: "faint", text: `${row.at[0]}.` }),
                  row.at[1],
                  row.differs ? " ≠" : "",
                ),
                row.values.map((text) => h("td", { text })),
              ),
            ),
          ),
        )
      : h("p", { class: "note", text: "These runs have the same settings." }),
  );
}

const noteText = (event) => {
  if (event.event === "skipped" || event.event === "overflow")
    return `update ${event.event} (loss ${event.loss}, gradient norm ${event.gradient_norm})`;
  if (event.event === "finding") return `${event.cause} (${event.evidence}) → ${event.change}`;
  return event.text ?? event.event;
};

// How a run ended, as its folder says.
function ending(run) {
  const scores = Object.entries(run.scores).map(
    ([split, values]) =>
      `${split}: ${Object.entries(values)
        .map(
          ([key, value]) =>
            `${METRICS[key] ?? key.replaceAll("_", " ")} ${Number.isInteger(value) ? value.toLocaleString("en") : short(value)}`,
        )
        .join(", ")}`,
  );
  if (run.status === "failed") return [`failed: ${run.problem} → ${run.repair}`, true];
  return run.status === "finished" && scores.length
    ? [`finished. ${scores.join(" · ")}`, false]
    : null;
}

// What happened besides the steps: skipped updates, findings about the run, its end.
function notes(runs) {
  const bad = new Set(["skipped", "overflow", "finding"]);
  const list = runs.flatMap(([name, known]) => {
    const own = known.events
      .filter((event) => NOTES.has(event.event))
      .slice(-30)
      .reverse()
      .map((event) => [
        name,
        `step ${event.step ?? "–"}: ${noteText(event)}`,
        bad.has(event.event),
      ]);
    const end = ending(known.run);
    return end ? [[name, ...end], ...own] : own;
  });
  if (!list.length) return null;
  return h(
    "section",
    { class: "card", "aria-label": "Notes" },
    h("header", {}, h("h2", { text: "Notes" })),
    h(
      "ul",
      { class: "notes" },
      list.map(([name, text, isBad]) =>
        h(
          "li",
          { class: isBad ? "bad" : null },
          runs.length > 1 ? h("b", { text: `${name}: ` }) : null,
          text,
        ),
      ),
    ),
  );
}

function samples(runs, colours) {
  const found = runs
    .flatMap(([name, known]) =>
      known.events
        .filter((e) => e.event === "validation" && e.samples?.length)
        .slice(-4)
        .map((e) => [name, e]),
    )
    .sort((a, b) => b[1].step - a[1].step);
  if (!found.length) return null;
  return h(
    "section",
    { class: "card", "aria-label": "Samples" },
    h("header", {}, h("h2", { text: "Samples, latest step first" })),
    h(
      "div",
      { class: "samples" },
      found.map(([name, event]) =>
        h(
          "div",
          {},
          h(
            "h3",
            {},
            `step ${event.step}`,
            runs.length > 1
              ? h("span", { style: { color: colours.get(name)[0] }, text: ` ${name}` })
              : null,
            h("span", {
              class: "faint",
              text: `  loss ${typeof event.loss === "number" ? event.loss.toFixed(3) : event.loss}`,
            }),
          ),
          event.samples.map((sample) =>
            h(
              "dl",
              {},
              Object.entries(sample)
                .filter(([, v]) => typeof v === "string")
                .map(([key, value]) => [
                  h("dt", { text: key }),
                  h("dd", { text: clipped(value, LONGEST) }),
                ]),
            ),
          ),
        ),
      ),
    ),
  );
}

// ------------------------------------------------------------------ the page

// Losses of unlike tasks stand on one axis, but cannot be compared.
function unlike(runs) {
  const objectives = new Set(
    runs.map(([, known]) => known.run.settings.train?.objective).filter(Boolean),
  );
  return objectives.size > 1
    ? h("p", {
        class: "warning",
        text: `These runs have different objectives (${[...objectives].join(", ")}), so their losses cannot be compared.`,
      })
    : null;
}

// What the two curves of a run have in common, so that they can be compared.
function sameQuantity(runs) {
  const losses = lossNames(runs);
  if (losses.length !== 1)
    return "The training and validation loss of a run are the same quantity, without label smoothing.";
  return `Training and validation loss are the same quantity: ${losses[0] === NLL ? "−log p of the target" : losses[0]}, without label smoothing.`;
}

function controls(list, chosen, live, colours, state, runs) {
  const toggle = (name, on) =>
    go({
      runs: (on ? [...chosen, name] : chosen.filter((each) => each !== name)).join("|") || "-",
      zoom: "",
    });
  return [
    h(
      "header",
      {},
      h("h2", { text: "Runs" }),
      h("span", {
        class: live ? "live" : "note",
        text: live ? "● live" : "updates every 2 s",
      }),
    ),
    h(
      "div",
      { class: "bar" },
      list.map((name) =>
        h(
          "label",
          { class: "run" },
          h("input", {
            type: "checkbox",
            id: `run-${name}`,
            checked: chosen.includes(name),
            onchange: (event) => toggle(name, event.target.checked),
          }),
          h("i", { style: { background: colours.get(name)?.[0] ?? "var(--line)" } }),
          name,
        ),
      ),
    ),
    h(
      "div",
      { class: "bar spaced" },
      scaleSegment(state),
      segment(
        "Horizontal",
        [
          ["step", "steps"],
          ["seconds", "time"],
          ["tokens", "tokens"],
        ],
        axisOf(state),
        (by) => go({ by: by === "step" ? "" : by, zoom: "" }),
      ),
      slider(
        "Smoothing",
        number(state.smooth, 0, [0, 0.98]),
        [0, 0.98, 0.02],
        (value) => go({ smooth: value || "" }),
        (v) => (v ? v.toFixed(2) : "off"),
      ),
      h("span", {
        class: "note",
        text: `Drag across a chart to zoom all charts; double-click to reset. ${sameQuantity(runs)}`,
      }),
    ),
  ];
}

// A part of the page that is drawn anew only if what it shows has changed: whoever reads or drags there is not disturbed.
function part(tag, attributes) {
  const node = h(tag, attributes);
  let drawn = null;
  return {
    node,
    draw(key, content) {
      const text = JSON.stringify(key);
      if (text === drawn) return;
      drawn = text;
      put(node, content());
    },
  };
}

const noRuns = () =>
  h(
    "section",
    { class: "card" },
    h("h2", { text: "No runs yet" }),
    h("p", {
      text: "Start a run and open its folder, or the parent folder. New runs appear here automatically.",
    }),
    h("p", { class: "mono", text: "regard train --out runs/first   ·   regard studio runs" }),
  );

export default async function train({ main, state, shelf, gone, atEnd }) {
  const names = new Set(shelf.runs);
  let timer = 0;
  atEnd(() => clearTimeout(timer));
  const chosenOf = (list) =>
    state.runs === undefined || state.runs === ""
      ? list.slice(0, CHOSEN)
      : state.runs.split("|").filter((name) => names.has(name));
  const choice = part("div", {}),
    numbers = part("div", { id: "figures" }),
    problem = h("div", { class: "slot" });
  const parts = {
    notes: part("div", { class: "slot" }),
    charts: part("div", { class: "charts" }),
    settings: part("div", { class: "slot" }),
    samples: part("div", { class: "slot" }),
  };
  const card = h("section", { class: "card", "aria-label": "Runs" }, choice.node, numbers.node);

  function draw(list, chosen, runs) {
    const palette = COLOURS[dark() ? "dark" : "light"];
    const colours = new Map(
      chosen.map((name, i) => [name, [palette[i % palette.length], DASHES[i % DASHES.length]]]),
    );
    const live = runs.some(([, known]) => known.run.status === "training");
    const logged = runs.map(([name, known]) => [name, known.offset, known.run.status]);
    choice.draw([list, chosen, live, lossNames(runs)], () =>
      controls(list, chosen, live, colours, state, runs),
    );
    numbers.draw([logged, runs.map(([, known]) => known.run.seconds_left)], () => [
      runs.length
        ? figuresOf(runs.map(([name, known]) => figures(name, known, colours.get(name)[0])))
        : null,
      unlike(runs),
    ]);
    parts.notes.draw(logged, () => notes(runs));
    // A chart that is being dragged over is left alone until the pointer is up.
    if (!main.querySelector(".chart:active"))
      parts.charts.draw(logged, () => charts(runs, colours, state));
    parts.settings.draw(
      runs.map(([name, known]) => [name, known.run.settings]),
      () => settings(runs, colours, state),
    );
    parts.samples.draw(
      runs.map(([name, known]) => [name, known.events.length, known.events.at(-1)?.step]),
      () => samples(runs, colours),
    );
    if (!card.isConnected)
      put(
        main,
        problem,
        card,
        Object.values(parts).map(({ node }) => node),
      );
  }
  async function refresh() {
    const here = await ask("shelf", {}, { keep: false });
    here.runs.forEach((name) => names.add(name));
    const list = [...names],
      chosen = chosenOf(list);
    const runs = await Promise.all(chosen.map(async (name) => [name, await advance(name)]));
    if (gone()) return;
    put(problem);
    if (list.length) draw(list, chosen, runs);
    else put(main, noRuns());
  }
  async function again() {
    try {
      await refresh();
    } catch (error) {
      // what was drawn stays; the studio may answer again
      if (gone()) return;
      put(problem, failure(error));
    }
    if (!gone()) timer = setTimeout(again, EVERY);
  }
  await refresh();
  timer = setTimeout(again, EVERY);
}
