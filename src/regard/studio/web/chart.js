// Line charts of training: several runs, linear or logarithmic, smoothed, and zoomed by dragging.

import { h, s, segment, textWidth } from "./dom.js";
import { takeAway } from "./take_away.js";
import { go } from "./route.js";

const TICKS = 4;

// The choice between a linear and a logarithmic axis.
export const scaleSegment = (state) =>
  segment(
    "Scale",
    [
      ["linear", "linear"],
      ["log", "log"],
    ],
    state.scale === "log" ? "log" : "linear",
    (scale) => go({ scale: scale === "log" ? scale : "" }),
  );

export const short = (v) => {
  const size = Math.abs(v);
  if (v === 0) return "0";
  if (size >= 1e9) return v.toExponential(1);
  if (size >= 1e6) return `${(v / 1e6).toFixed(2)}M`;
  if (size >= 1e5) return `${(v / 1000).toFixed(0)}k`;
  if (size >= 100) return Math.round(v).toLocaleString("en");
  if (size >= 1) return v.toFixed(2);
  return size >= 1e-3 ? v.toPrecision(3) : v.toExponential(1);
};
export const tick = (v) => {
  const n = Number(v.toPrecision(6)),
    size = Math.abs(n);
  if (size >= 1e8) return n.toExponential();
  if (size >= 1e6) return `${n / 1e6}M`;
  if (size >= 1e4) return `${n / 1000}k`;
  return size < 1e-3 && n !== 0 ? n.toExponential() : String(n);
};

export function linearTicks(least, most, { count = TICKS, whole = false } = {}) {
  const rough = Math.max(whole ? 1 : 0, (most - least) / count) || 1,
    unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((each) => each >= rough);
  const list = [];
  for (let v = Math.ceil(least / step) * step; v <= most + step * 1e-9; v += step) list.push(v);
  return list;
}
function logTicks(least, most) {
  const list = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(most)); power++) {
    for (const m of [1, 2, 5]) {
      const v = m * 10 ** power;
      if (v >= least && v <= most) list.push(v);
    }
  }
  // Within a decade the round powers are too few: even steps say more there.
  if (list.length < 3) return linearTicks(least, most);
  return list.length > 7 ? list.filter((v) => Math.log10(v) % 1 === 0) : list;
}

// Exponential moving average, corrected for its start as Adam's is.
export function smoothed(points, share) {
  if (!share) return points;
  let mean = 0,
    weight = 0;
  return points.map(([x, y]) => {
    mean = share * mean + (1 - share) * y;
    weight = share * weight + (1 - share);
    return [x, mean / weight];
  });
}

// `lines` are { run, label, points, dots, colour, dash, faint, broken }: a line has a gap at each step of `broken`. `zoom`
// is [from, to] in steps, or null; `select` is called with another one. `span` are the steps of all charts of a page.
export function chart(
  title,
  lines,
  {
    log = false,
    smooth = 0,
    zoom = null,
    span = null,
    select = () => {},
    unit = "",
    axis = "step",
  } = {},
) {
  const narrow = window.innerWidth < 640;
  const [W, H, R, T, B] = [narrow ? 340 : 620, narrow ? 230 : 300, 16, 14, 44];
  const inside = ([x, y]) => (!zoom || (x >= zoom[0] && x <= zoom[1])) && (!log || y > 0);
  const drawn = lines.map((line) => ({
    ...line,
    points: smoothed(line.points, line.dots ? 0 : smooth).filter(inside),
    raw: line.points.filter(inside),
  }));
  const present = drawn.filter((line) => line.points.length);
  const all = drawn.flatMap((line) =>
    smooth && !line.dots ? [...line.points, ...line.raw] : line.points,
  );
  if (!all.length) return null;
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of all) {
    x0 = Math.min(x0, x);
    x1 = Math.max(x1, x);
    y0 = Math.min(y0, y);
    y1 = Math.max(y1, y);
  }
  if (zoom ?? span) [x0, x1] = zoom ?? span;
  if (x0 === x1) x1 = x0 + 1;
  // From 0, unless the curve is a small part of that: attention entropy from 1.0 to 1.1 would be flat.
  const isSmallPart = y1 - y0 < 0.4 * y1 && y1 > y0;
  if (!log && !zoom && y0 > 0) y0 = isSmallPart ? Math.max(0, y0 - 0.1 * (y1 - y0)) : 0;
  // Also of numbers that differ by their rounding only: their logarithms may be equal.
  if (y1 - y0 <= 1e-9 * Math.abs(y1)) y1 = y0 + 0.1 * Math.abs(y0) || 1;
  const levels = log ? logTicks(y0, y1) : linearTicks(y0, y1);
  const L = Math.max(54, 28 + 7 * Math.max(...levels.map((v) => tick(v).length))); // room for the longest number
  const level = log ? Math.log : (v) => v;
  const X = (x) => L + ((x - x0) / (x1 - x0)) * (W - L - R),
    Y = (y) => H - B - ((level(y) - level(y0)) / (level(y1) - level(y0))) * (H - T - B);
  const stepAt = (event) => {
    const box = picture.getBoundingClientRect();
    return x0 + ((((event.clientX - box.left) / box.width) * W - L) / (W - L - R)) * (x1 - x0);
  };
  const status = h("p", {
    class: "note read",
    role: "status",
    text: present.map((line) => `${line.label} ${short(line.points.at(-1)[1])}`).join(" · "),
  });
  const cross = s("line", { class: "cross", y1: T, y2: H - B, x1: -9, x2: -9 });
  const chosen = s("rect", { class: "zoom", y: T, height: H - T - B, x: -9, width: 0 });
  let began = null;
  const tip = s("g", { class: "tooltip", "aria-hidden": "true" });
  // The numbers beside the pointer.
  function tooltip(near, where) {
    const texts = [where, ...near.map(([line, p]) => `${line.label} ${short(p[1])}`)];
    const width = 16 + Math.max(...texts.map((text) => textWidth(text, "12px")));
    const at = X(near[0][1][0]);
    const x = at + width + 12 > W - R ? at - width - 10 : at + 10;
    tip.replaceChildren(
      s("rect", { x, y: T + 4, width, height: 16 * texts.length + 10, rx: 6 }),
      ...texts.map((text, i) => {
        const fill = i ? near[i - 1][0].colour : null;
        return s("text", { x: x + 8, y: T + 20 + 16 * i, style: fill ? { fill } : null, text });
      }),
    );
  }
  function point(event) {
    const x = stepAt(event),
      near = present.map((line) => [
        line,
        line.points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best)),
      ]);
    cross.setAttribute("x1", X(near[0][1][0]));
    cross.setAttribute("x2", X(near[0][1][0]));
    const where = `${axis === "step" ? "step" : axis.split(" in ")[0]} ${near[0][1][0].toLocaleString("en")}`;
    tooltip(near, where);
    status.textContent =
      `${where}: ` + near.map(([line, p]) => `${line.label} ${short(p[1])}`).join(" · ");
    if (began === null) return;
    const [a, b] = [began, x].sort((p, q) => p - q).map((v) => X(Math.max(x0, Math.min(x1, v))));
    chosen.setAttribute("x", a);
    chosen.setAttribute("width", b - a);
  }
  // Joined, unless there is a step without a number between two points.
  const path = (points, broken = []) => {
    let before = -Infinity;
    return points
      .map(([x, y]) => {
        const joins = before > -Infinity && !broken.some((step) => step > before && step < x);
        before = x;
        return `${joins ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
      })
      .join("");
  };
  const picture = s(
    "svg",
    {
      class: "chart",
      viewBox: `0 0 ${W} ${H}`,
      width: "100%",
      role: "img",
      "aria-label": `${title} by ${axis}`,
      onpointermove: point,
      onpointerleave: () => tip.replaceChildren(),
      onpointerdown: (event) => {
        began = stepAt(event);
        picture.setPointerCapture(event.pointerId);
      },
      onpointerup: (event) => {
        const [from, to] = [began, stepAt(event)].sort((a, b) => a - b);
        began = null;
        if (to - from > (x1 - x0) / 50)
          select([Math.max(x0, Math.round(from)), Math.min(x1, Math.round(to))]);
      },
      ondblclick: () => select(null),
    },
    levels.map((v) => [
      s("line", { class: "grid", x1: L, x2: W - R, y1: Y(v), y2: Y(v) }),
      s("text", { x: L - 7, y: Y(v) + 4, "text-anchor": "end", text: tick(v) }),
    ]),
    linearTicks(x0, x1, { count: 5, whole: true }).map((v) =>
      s("text", { x: X(v), y: H - B + 17, "text-anchor": "middle", text: tick(v) }),
    ),
    s("text", {
      class: "axis",
      x: (L + W - R) / 2,
      y: H - 6,
      "text-anchor": "middle",
      text: axis,
    }),
    s("text", {
      class: "axis",
      x: 12,
      y: (T + H - B) / 2,
      "text-anchor": "middle",
      transform: `rotate(-90 12 ${(T + H - B) / 2})`,
      text: unit + (log ? " (log)" : ""),
    }),
    chosen,
    cross,
    drawn.map((line) => [
      smooth && !line.dots
        ? s("path", {
            d: path(line.raw, line.broken),
            stroke: line.colour,
            "stroke-opacity": 0.22,
            "stroke-width": 1,
          })
        : null,
      s("path", {
        d: path(line.points, line.broken),
        stroke: line.colour,
        "stroke-dasharray": line.dash,
        "stroke-opacity": line.faint ? 0.75 : 1,
        "data-points": line.points.length,
        "data-line": line.label,
      }),
      (line.broken ?? [])
        .filter((step) => step >= x0 && step <= x1)
        .map((step) =>
          s(
            "text",
            {
              class: "broken",
              x: X(step),
              y: H - B - 4,
              "text-anchor": "middle",
              fill: line.colour,
            },
            "×",
            s("title", { text: `${line.label}: loss not finite at step ${step}` }),
          ),
        ),
      line.dots || line.points.length === 1
        ? line.points.map(([x, y]) =>
            s(
              "circle",
              {
                cx: X(x),
                cy: Y(y),
                r: 4.2,
                fill: "var(--card)",
                stroke: line.colour,
                "stroke-width": 2,
              },
              s("title", { text: `${line.label} at step ${x}: ${y.toFixed(4)}` }),
            ),
          )
        : null,
    ]),
  );
  picture.append(tip);
  const legend = h(
    "div",
    { class: "legend" },
    present.map((line) =>
      h(
        "span",
        {},
        s(
          "svg",
          { width: 26, height: 10 },
          s("line", {
            x1: 1,
            x2: 25,
            y1: 5,
            y2: 5,
            stroke: line.colour,
            "stroke-width": 2.4,
            "stroke-dasharray": line.dash,
            "stroke-opacity": line.faint ? 0.75 : 1,
          }),
          line.dots
            ? s("circle", {
                cx: 13,
                cy: 5,
                r: 3.4,
                fill: "var(--card)",
                stroke: line.colour,
                "stroke-width": 2,
              })
            : null,
        ),
        line.label,
      ),
    ),
  );
  return h(
    "section",
    { class: "card", "aria-label": title },
    h(
      "header",
      {},
      h("h2", { text: title }),
      zoom
        ? h("button", {
            type: "button",
            class: "small",
            text: "Reset zoom",
            onclick: () => select(null),
          })
        : null,
      takeAway(picture, title),
    ),
    picture,
    legend,
    status,
  );
}
