// More analyses of the same run: a panel with tabs, each with a short explanation.

import { ask } from "./api.js";
import { failure, fixed, h, loading, percent, put, segment, shown } from "./dom.js";
import { attentionScale, scale as colourScale, css, heat, inkOn } from "./heat.js";
import { seen } from "./media.js";
import { count, go } from "./route.js";

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
  { shades = null, relative = false, scale = 1, title = "", digits = 3, room = 560 } = {},
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
  const end = fixed(scale, 2);
  const legend = shades ? attentionScale(relative) : colourScale(`−${end}`, end, { signed: true });
  return h("div", {}, h("h3", { text: title }), status, map.node, legend);
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
          relative: found.relative,
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
            relative: other.relative,
            title: `Cross-attention of decoder layer ${other.layer}`,
          })
        : mapped(other.rows, other.columns, other.values, {
            shades: other.shades,
            relative: other.relative,
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
  const [stack, choice] = stackOf(model, state);
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
      choice,
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

const range = (count) => [...Array(count).keys()];
// The stack that the address names, or the first one, and the buttons to choose another.
function stackOf(model, state) {
  const stacks = Object.keys(model.stacks),
    stack = stacks.includes(state.stack) ? state.stack : stacks[0];
  const choice =
    stacks.length > 1
      ? segment(
          "Stack",
          stacks.map((name) => [name, name]),
          stack,
          (name) => go({ stack: name, depth: "" }),
        )
      : null;
  return [stack, choice];
}

async function circuits(question, model, found, state, place, name, head) {
  const [stack, choice] = stackOf(model, state);
  const scored = await ask("circuits", { model: question.model, stack });
  const one = name.endsWith(".self")
    ? await ask("head_circuit", { model: question.model, text: question.text, name, head })
    : null;
  const size = one ? one.scores.flat().reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9) : 1;
  return [
    words(
      "What each head does on random tokens that repeat after a while: mean attention to the previous token, to the last occurrence of the same token (duplicate token), and to the token after that (induction). An induction head continues what it has seen before; it is built with a previous-token head of an earlier layer, through its keys (K-composition). Copying: whether a head raises the logits of what it attends to.",
    ),
    h("div", { class: "bar" }, choice),
    h(
      "div",
      { class: "two" },
      scored.kinds.map((kind, n) =>
        h(
          "div",
          {},
          h("h3", { text: `${kind}, chance ${scored.chance[n].toFixed(2)}` }),
          table(
            scored.names,
            range(scored.scores[n][0].length).map((k) => `head ${k}`),
            (i, j) => {
              const value = scored.scores[n][i][j],
                signed = kind === "copying";
              return value === null
                ? null
                : [
                    signed ? 0.5 + value / 2 : value,
                    value.toFixed(2),
                    `${scored.names[i]} head ${j}`,
                  ];
            },
            { signed: kind === "copying" },
          ),
        ),
      ),
    ),
    scored.strongest.length
      ? h(
          "div",
          { class: "scroll" },
          h("h3", {
            text: `Heads that compose most, of all pairs (unrelated matrices: ${scored.baseline.toFixed(3)})`,
          }),
          h(
            "table",
            { class: "plain", id: "composed" },
            h(
              "tr",
              {},
              ["through", "writes", "reads", "score"].map((text) => h("th", { text })),
            ),
            scored.strongest.map((pair) =>
              h(
                "tr",
                {},
                h("td", { text: { Q: "queries", K: "keys", V: "values" }[pair.mode] }),
                [pair.writer, pair.reader].map((each) => {
                  const cut = each.lastIndexOf(" ");
                  return h("td", {}, goTo(each.slice(0, cut), Number(each.slice(cut + 1))));
                }),
                h("td", { text: pair.score.toFixed(3) }),
              ),
            ),
          ),
        )
      : null,
    one
      ? h(
          "div",
          {},
          h("h3", { text: one.title }),
          words(
            "What the tokens of the input alone would do in this head, without positions: which token each would attend to (q · k), and which tokens become likelier when it is attended to.",
          ),
          table(
            one.tokens.slice(0, FIRST).map(shown),
            one.tokens.slice(0, FIRST).map(shown),
            (i, j) => [0.5 + one.scores[i][j] / (2 * size), one.scores[i][j].toFixed(1)],
            { signed: true, head: "query ↓ key →" },
          ),
          one.logits
            ? h(
                "div",
                { class: "scroll" },
                h(
                  "table",
                  { class: "plain", id: "promoted" },
                  h(
                    "tr",
                    {},
                    ["attending to", "promotes"].map((text) => h("th", { class: "prose", text })),
                  ),
                  one.tokens
                    .slice(0, FIRST)
                    .map((token, i) =>
                      h(
                        "tr",
                        {},
                        h("td", { class: "token", text: shown(token) }),
                        h("td", { class: "prose", text: one.promoted[i].map(shown).join("  ") }),
                      ),
                    ),
                ),
              )
            : null,
        )
      : h("p", {
          class: "note",
          text: "Choose a self-attention head to see its QK and OV circuits.",
        }),
  ];
}

async function angles(question, model, found, state, place, name, head) {
  const asked = await ask("angles", { ...question, name, head });
  const lengths = (title, names, values) => {
    const most = Math.max(...values);
    return h(
      "div",
      { class: "scroll tall", tabindex: 0, "aria-label": title },
      h("h3", { text: title }),
      h(
        "table",
        { class: "plain" },
        names
          .slice(0, FIRST)
          .map((token, i) =>
            h(
              "tr",
              {},
              h("td", { class: "token", text: shown(token) }),
              h(
                "td",
                { class: "bar" },
                h(
                  "div",
                  { class: "meter" },
                  h("i", { style: { width: `${(100 * values[i]) / most}%` } }),
                ),
              ),
              h("td", { text: values[i].toFixed(2) }),
            ),
          ),
      ),
    );
  };
  const columns = asked.keys.slice(0, FIRST);
  return [
    words(
      "A score is q · k = |q| |k| cos θ. The cosine says how well a key matches a query; a long query sharpens all of its attention, and a long key draws the attention of every query that it matches.",
    ),
    h("p", {
      text: `Variance of the scores over the keys of a query: cos θ alone explains ${asked.by_angle.toFixed(2)}, the lengths of keys alone ${asked.by_length.toFixed(2)} (1 is all of it).`,
    }),
    h("h3", { text: asked.title }),
    table(
      asked.queries.slice(0, FIRST).map(shown),
      columns.map(shown),
      (i, j) => {
        const value = asked.cosines[i][j];
        return value === null ? null : [0.5 + value / 2, value.toFixed(2)];
      },
      { signed: true, head: "query ↓ key →" },
    ),
    h(
      "div",
      { class: "two" },
      lengths("|q|, the lengths of queries", asked.queries, asked.query_lengths),
      lengths("|k|, the lengths of keys", asked.keys, asked.key_lengths),
    ),
  ];
}

async function neurons(question, model, found, state, place) {
  const [stack, choice] = stackOf(model, state);
  const layers = model.stacks[stack],
    layer = Math.min(layers - 1, count(state.depth, layers - 1)),
    neuron = count(state.neuron, NaN);
  const area = h("textarea", {
    id: "corpus",
    rows: 4,
    maxlength: 8000,
    "aria-label": "Texts, one a line",
    value: state.corpus || [...new Set([question.text, ...model.examples])].join("\n"),
  });
  const one = h("input", {
    type: "number",
    min: 0,
    id: "neuron",
    "aria-label": "Neuron, or empty for the most selective ones",
    placeholder: "neuron (or the selective ones)",
    value: Number.isNaN(neuron) ? "" : neuron,
  });
  const form = h(
    "form",
    {
      class: "spaced corpus",
      onsubmit: (event) => {
        event.preventDefault();
        go({ corpus: area.value.trim(), neuron: one.value });
      },
    },
    area,
    one,
    h("button", { class: "main", text: "Show" }),
  );
  const explains = words(
    "A feed-forward network is a memory: a neuron is active where its key matches, and adds its value to the residual stream. Below are the tokens that excite a neuron most in these texts, and what the output head makes of its value by itself.",
  );
  const bar = h(
    "div",
    { class: "bar" },
    choice,
    segment(
      "Layer",
      range(layers).map((k) => [k, String(k)]),
      layer,
      (k) => go({ depth: k }),
    ),
  );
  put(place, explains, form, bar, loading());
  const asked = await ask("neurons", {
    model: question.model,
    text: "",
    texts: area.value
      .split("\n")
      .filter((line) => line.trim())
      .slice(0, 64),
    stack,
    layer,
    neurons: Number.isNaN(neuron) ? [] : [neuron],
  });
  const list = (title, tokens) =>
    h("p", {}, h("span", { class: "label", text: title }), " ", tokens.map(shown).join("  "));
  return [
    explains,
    form,
    bar,
    h(
      "div",
      { class: "neurons" },
      asked.neurons.map((number, n) =>
        h(
          "section",
          { class: "neuron", "aria-label": `Neuron ${number}` },
          h(
            "h3",
            {},
            h("button", {
              type: "button",
              class: "small",
              text: `neuron ${number}`,
              onclick: () => go({ neuron: number }),
            }),
            h("span", {
              class: "note",
              text: ` mean ${asked.mean[n].toFixed(3)}, above 0 on ${percent(asked.active[n])} of ${asked.tokens} tokens`,
            }),
          ),
          h(
            "ul",
            { class: "excerpts" },
            asked.excerpts[n]
              .filter((_, k) => asked.activations[n][k] > asked.mean[n])
              .map((excerpt, k) =>
                h(
                  "li",
                  {},
                  h("span", { class: "number", text: asked.activations[n][k].toFixed(2) }),
                  ` ${excerpt.before}`,
                  h("mark", { text: shown(excerpt.token) }),
                  excerpt.after,
                ),
              ),
          ),
          asked.promoted.length
            ? [list("promotes", asked.promoted[n]), list("suppresses", asked.suppressed[n])]
            : null,
        ),
      ),
    ),
    h("p", { class: "note", text: asked.note }),
  ];
}

const TABS = {
  entropy: ["Entropy", entropy],
  roles: ["Head roles", roles],
  circuits: ["Circuits", circuits],
  angles: ["Angles", angles],
  neurons: ["Neurons", neurons],
  lens: ["Logit lens", lens],
  rollout: ["Rollout", rollout],
  attribution: ["Attribution", attribution],
  patching: ["Patching", patching],
};
// What each of them shows, as long as none is open.
const HINTS = {
  entropy: "attention entropy per head",
  roles: "which head links which words",
  circuits: "induction heads, composition, QK and OV",
  angles: "scores as lengths and angles",
  neurons: "what excites neurons, and what they promote",
  lens: "the prediction after each layer",
  rollout: "attention over all layers",
  attribution: "what the prediction depends on",
  patching: "where two sentences differ",
};
const TEXT_ONLY = new Set(["roles", "circuits", "neurons", "patching"]);
// Those that show the head that is chosen above.
const OF_ONE_HEAD = new Set(["circuits", "angles"]);

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
  function choose(state, name, head) {
    const open = tabs.includes(state.more) ? state.more : null;
    const { patch, place: at, stack, depth, neuron, corpus } = state;
    const key = JSON.stringify([
      ...[open, patch, at, stack, depth, neuron, corpus],
      OF_ONE_HEAD.has(open) ? [name, head] : null,
    ]);
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
    TABS[open][1](question, model, found, state, place, name, head)
      .then(
        (parts) => {
          if (key === last) put(place, parts);
        },
        (error) => {
          if (key === last)
            // The form stays, with what was wrong in it.
            put(
              place,
              [...place.children].filter((each) => !each.matches(".loading")).slice(0, 3),
              failure(error),
            );
        },
      )
      .finally(() => {
        if (key === last) node.setAttribute("aria-busy", "false");
      });
  }
  return { node, choose };
}
