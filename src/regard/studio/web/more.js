// More analyses of the same run: a panel with tabs, each with a short explanation.

import { ask } from "./api.js";
import { failure, fixed, h, loading, put, segment, shown } from "./dom.js";
import { css, heat, inkOn } from "./heat.js";
import { seen } from "./media.js";
import { go } from "./route.js";

const FIRST = 64;

// A table whose cells are coloured by their share; `cell` gives [share, text, title].
function table(rows, columns, cell, { signed = false, head = "" } = {}) {
  return h(
    "div",
    { class: "scroll tall", tabindex: 0, "aria-label": "Table, scrollable" },
    h(
      "table",
      { class: "numbers" },
      h(
        "tr",
        {},
        h("th", { text: head }),
        columns.map((text) => h("th", { class: "column", text })),
      ),
      rows.map((text, i) =>
        h(
          "tr",
          {},
          h("th", { class: "token", text }),
          columns.map((_, j) => {
            const [share, text, title] = cell(i, j) || [];
            return text === undefined
              ? h("td")
              : h("td", {
                  style: { background: css(share, signed), color: inkOn(share, signed) },
                  text,
                  title,
                });
          }),
        ),
      ),
    ),
  );
}

const goTo = (name, head) =>
  h("button", {
    type: "button",
    class: "small",
    text: `${name} head ${head}`,
    onclick: () => go({ at: name, head, pin: "" }),
  });
const words = (text) => h("p", { class: "explains", text });

async function entropy(question) {
  const found = await ask("entropy", question);
  const most = found.share[0].length,
    flags = Object.entries(found.flags);
  return [
    words(
      "Attention entropy of each head, relative to the maximum: 0 is all attention on one position, 1 is uniform attention. A head is collapsed if all queries attend to the same position, uniform if it only averages, and idle if it adds almost nothing to the residual stream.",
    ),
    table(
      found.names,
      [...Array(most).keys()].map((k) => `head ${k}`),
      (i, j) =>
        found.share[i][j] === null
          ? null
          : [
              found.share[i][j],
              found.share[i][j].toFixed(2) +
                (found.flags[`${found.names[i]} head ${j}`] ? " ⚑" : ""),
              `${found.nats[i][j].toFixed(3)} nats; ${(100 * found.favourite[i][j]).toFixed(0)} % of all attention on one position; output norm ${found.force[i][j].toFixed(2)} × the mean of the layer`,
            ],
    ),
    flags.length
      ? h(
          "ul",
          { class: "flags" },
          flags.slice(0, 24).map(([head, what]) => {
            const [name, , k] = head.split(" ");
            return h("li", {}, goTo(name, Number(k)), " ", what);
          }),
        )
      : h("p", { class: "note", text: "On this input, no head is collapsed, uniform or idle." }),
  ];
}

async function roles(question) {
  const found = await ask("roles", { model: question.model });
  const score = (i) => {
    const [name, head] = found.best[found.roles[i]];
    return found.scores[i][found.names.indexOf(name)][head];
  };
  return [
    words(
      "Mean attention from one word to another that is grammatically related to it, on 200 sentences of the built-in language, whose parse is known. Chance is uniform attention.",
    ),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "plain", id: "roles" },
        h(
          "tr",
          {},
          ["role", "attention", "", "strongest head", "chance", "pairs"].map((text) =>
            h("th", { text, class: text ? null : "bar" }),
          ),
        ),
        found.roles.map((role, i) =>
          h(
            "tr",
            {},
            h("td", { class: "token", text: role }),
            h("td", { text: score(i).toFixed(2) }),
            h(
              "td",
              { class: "bar" },
              h(
                "div",
                { class: "meter" },
                h("i", { style: { width: 100 * score(i) + "%" } }),
                h("b", { style: { left: 100 * found.chance[i] + "%" } }),
              ),
            ),
            h("td", {}, goTo(...found.best[role])),
            h("td", { text: found.chance[i].toFixed(2) }),
            h("td", { text: found.links[i] }),
          ),
        ),
      ),
    ),
  ];
}

async function lens(question) {
  const found = await ask("lens", question);
  return [
    words(
      "The prediction after each layer: final norm and output head are applied to the residual stream, as if no layer followed. The top row is the output of the model. Point at a cell to see the next candidates.",
    ),
    table(
      [...found.layers].reverse(),
      found.positions.map(shown),
      (i, j) => {
        const k = found.layers.length - 1 - i;
        return [
          found.probabilities[k][j][0],
          shown(found.tokens[k][j][0]),
          found.tokens[k][j]
            .map((t, n) => `${shown(t)} ${(100 * found.probabilities[k][j][n]).toFixed(1)} %`)
            .join(" · "),
        ];
      },
      { head: "position →" },
    ),
    found.positions.length === FIRST
      ? h("p", { class: "note", text: `The first ${FIRST} positions.` })
      : null,
  ];
}

// A heat map of its own, with a line that tells of the cell under the pointer. Attention comes with its shades; other
// numbers have signs.
function mapped(
  rows,
  columns,
  values,
  { shades = null, scale = 1, title = "", digits = 3, room = 560 } = {},
) {
  const status = h("p", {
    class: "read faint",
    role: "status",
    text: "Point at a cell to see its value.",
  });
  const map = heat(rows, columns, {
    signed: shades === null,
    room,
    say: (i, j) => {
      status.textContent = `“${shown(rows[i])}” → “${shown(columns[j])}”: ${values[i * columns.length + j].toFixed(digits)}`;
    },
  });
  map.show(shades ?? values, { title, scale });
  return h("div", {}, h("h3", { text: title }), status, map.node);
}
const top = (values) => values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);

// The same over a picture or a recording; another row is picked here, without a new address.
async function overlaid(question, rows, columns, { values, shades }, title, options) {
  const picture = await seen(question, rows, columns, {
    ...options,
    pin: (marked) => picture.show(values, { marked, title, shades }),
  });
  picture.show(values, { title, shades });
  return h("div", {}, h("h3", { text: title }), picture.node);
}

async function rollout(question) {
  const found = await ask("rollout", question);
  return [
    words(
      "How much each input position contributes to each position after the last layer if only attention moved information: attention averaged over heads, mixed equally with the identity (the residual connection), multiplied over the layers. It is a summary, not an explanation.",
    ),
    question.file
      ? await overlaid(question, found.rows, found.columns, found, found.title, {
          own: true,
          verb: "accumulates most attention on",
        })
      : mapped(found.rows, found.columns, found.values, {
          shades: found.shades,
          title: found.title,
          digits: 4,
          room: 900,
        }),
  ];
}

async function attribution(question, model, found) {
  const asked = await ask("attribution", question);
  const flat = Float32Array.from(asked.values.flat());
  const explains = h(
    "p",
    { class: "explains" },
    h("strong", { text: "Attention is not explanation. " }),
    "A weight shows where a head attends, not what the prediction depends on. Gradient × input is the first-order effect of each position on the logit of the prediction",
    question.file
      ? ". Brighter positions have a larger effect, positive or negative."
      : ": blue raises it, brown (amber in dark mode) lowers it.",
  );
  const few =
    asked.predictions.length === FIRST
      ? h("p", { class: "note", text: `The first ${FIRST} positions.` })
      : null;
  const title = "Attribution: gradient × input";
  if (question.file) {
    const places = found.source.length,
      shares = new Float32Array(asked.predictions.length * places), // shares of the whole
      shades = new Float32Array(shares.length); // by the largest of a row: this is no attention
    asked.values.forEach((row, i) => {
      const sizes = row.slice(0, places).map(Math.abs),
        sum = row.reduce((a, b) => a + Math.abs(b), 1e-12),
        largest = Math.max(1e-12, ...sizes);
      sizes.forEach((size, j) => {
        shares[i * places + j] = size / sum;
        shades[i * places + j] = size / largest;
      });
    });
    const rolled = await ask("rollout", question);
    return [
      explains,
      h(
        "div",
        { class: model.medium === "image" ? "two" : "" },
        await overlaid(
          question,
          asked.predictions,
          found.source,
          { values: shares, shades },
          title,
          {
            own: false,
            verb: "depends most on",
            how: "Brighter positions have a larger share of the attribution.",
          },
        ),
        await overlaid(
          question,
          rolled.rows,
          rolled.columns,
          rolled,
          "Attention rollout over all layers",
          { own: true, verb: "accumulates most attention on" },
        ),
      ),
      few,
    ];
  }
  const other = model.translates
    ? await ask("alignment", { ...question, layer: null })
    : await ask("rollout", question);
  return [
    explains,
    h(
      "div",
      { class: "two" },
      mapped(asked.predictions, asked.tokens, flat, { scale: top(flat), title }),
      model.translates
        ? mapped(other.target, other.source, Float32Array.from(other.weights.flat()), {
            shades: Float32Array.from(other.shades.flat()),
            title: `Cross-attention of decoder layer ${other.layer}`,
          })
        : mapped(other.rows, other.columns, other.values, {
            shades: other.shades,
            title: "Attention rollout over all layers",
          }),
    ),
    few,
  ];
}

// The current sentence, to be changed: the adjective of a pronoun sentence already is.
const OPPOSITES = { tired: "empty", empty: "tired", wide: "tired" };
const alternative = (text) =>
  text.replace(/\b(tired|empty|wide)\b(?=[^a-z]*$)/, (word) => OPPOSITES[word]);

async function patching(question, model, found, state, place) {
  const text = question.text,
    other = state.patch || alternative(text);
  const input = h("input", {
    type: "text",
    id: "patched",
    "aria-label": "Another sentence with the same number of tokens",
    value: other,
    maxlength: 8000,
  });
  const form = h(
    "form",
    {
      class: "ask spaced",
      onsubmit: (event) => {
        event.preventDefault();
        go({ patch: input.value.trim(), place: "" });
      },
    },
    input,
    h("button", { class: "main", text: "Patch" }),
  );
  const stacks = Object.keys(model.stacks),
    stack = stacks.includes(state.stack) ? state.stack : stacks[0];
  const explains = words(
    "Activation patching runs the model on another sentence, but copies the residual stream of this one at a single layer and position. 1: this restores the prediction for this sentence, so the difference is carried there. 0: no effect. No head is ablated.",
  );
  put(place, explains, form);
  if (other === text)
    return [
      explains,
      form,
      h("p", {
        class: "note",
        text: "Both sentences are the same. Change a word without changing the number of tokens, then patch.",
      }),
    ];
  const asked = await ask("patching", {
    model: question.model,
    text,
    other,
    at: state.place === undefined || state.place === "" ? null : Number(state.place),
    stack,
  });
  const names = asked.tokens.map((token, i) =>
    token === asked.others[i] ? shown(token) : `${shown(asked.others[i])} ← ${shown(token)}`,
  );
  const answer = `“${shown(asked.answer)}”${asked.instead ? ` − “${shown(asked.instead)}”` : ""}`;
  return [
    explains,
    form,
    h(
      "div",
      { class: "bar" },
      asked.target.length
        ? segment(
            "Output position",
            asked.target.map((token, i) => [i, shown(token)]),
            asked.at,
            (i) => go({ place: i }),
          )
        : null,
      stacks.length > 1
        ? segment(
            "Stack",
            stacks.map((name) => [name, name]),
            stack,
            (name) => go({ stack: name }),
          )
        : null,
    ),
    h(
      "p",
      {},
      `Logit of ${answer}: ${fixed(asked.corrupted, 2)} for the other sentence, ${fixed(asked.clean, 2)} for this one.`,
    ),
    table(
      [...asked.layers].reverse(),
      names,
      (i, j) => {
        const value = asked.effect[asked.layers.length - 1 - i][j];
        return [
          0.5 + Math.max(-1, Math.min(1, value)) / 2,
          value.toFixed(2).replace(/^-(0\.00)$/, "$1"),
          `logit ${asked.scores[asked.layers.length - 1 - i][j].toFixed(3)}`,
        ];
      },
      { signed: true, head: "patched at →" },
    ),
  ];
}

const TABS = {
  entropy: ["Entropy", entropy],
  roles: ["Head roles", roles],
  lens: ["Logit lens", lens],
  rollout: ["Rollout", rollout],
  attribution: ["Attribution", attribution],
  patching: ["Patching", patching],
};
// What each of them shows, as long as none is open.
const HINTS = {
  entropy: "attention entropy per head",
  roles: "which head links which words",
  lens: "the prediction after each layer",
  rollout: "attention over all layers",
  attribution: "what the prediction depends on",
  patching: "where two sentences differ",
};
const TEXT_ONLY = new Set(["roles", "patching"]);

export function more(model, question, found) {
  const tabs = model.analyses.filter((name) => !question.file || !TEXT_ONLY.has(name));
  const place = h("div", { id: "more" }),
    bar = h("div", { class: "bar" });
  const node = h(
    "section",
    { class: "card", "aria-label": "More analyses" },
    h("header", {}, h("h2", { text: "More analyses" }), bar),
    place,
  );
  let last = null;
  function choose(state) {
    const open = tabs.includes(state.more) ? state.more : null;
    const key = JSON.stringify([open, state.patch, state.place, state.stack]);
    if (key === last) return;
    last = key;
    put(
      bar,
      segment(
        "",
        tabs.map((name) => [name, TABS[name][0]]),
        open,
        (name) => go({ more: name === open ? "" : name }),
      ),
    );
    if (!open) {
      put(place, h("p", { class: "note", text: tabs.map((name) => HINTS[name]).join(" · ") }));
      return;
    }
    put(place, loading());
    node.setAttribute("aria-busy", "true");
    TABS[open][1](question, model, found, state, place)
      .then(
        (parts) => {
          if (key === last) put(place, parts);
        },
        (error) => {
          if (key === last)
            put(place, open === "patching" ? [...place.children].slice(0, 2) : [], failure(error));
        },
      )
      .finally(() => {
        if (key === last) node.setAttribute("aria-busy", "false");
      });
  }
  return { node, choose };
}
