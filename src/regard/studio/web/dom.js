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
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const put = (place, ...children) => { place.replaceChildren(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false)); return place; };

// A token as people read it: without the mark that a word begins, and with white space that can be seen.
export function shown(token) {
  const bare = token.length > 1 ? token.replace(/^[▁Ġ]+/, "") : token;
  return (bare === "" || bare === " " ? "␣" : bare).replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}
export const clipped = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
export const fixed = (value, digits = 3) => value === null || value === undefined ? "–" : value.toFixed(digits);

export function segment(label, options, chosen, choose, kind = "") {
  return h("span", { class: "segment", role: "group", "aria-label": label }, h("span", { class: "label", text: label }),
    options.map(([value, text]) => h("button", {
      type: "button", class: kind, "aria-pressed": String(value === chosen), "data-value": value, onclick: () => choose(value), text,
    })));
}

export function slider(label, value, [least, most, step], change, show = (v) => String(v)) {
  const said = h("output", { text: show(value) });
  return h("label", { class: "field" }, h("span", {}, label, " ", said),
    h("input", { type: "range", min: least, max: most, step, value, "aria-label": label,
      oninput: (event) => { said.textContent = show(Number(event.target.value)); },
      onchange: (event) => change(Number(event.target.value)) }));
}

export const loading = (text = "Working…") => h("div", { class: "loading", role: "status", text });

export function failure(error) {
  return h("div", { class: "error", role: "alert" }, h("strong", { text: error.problem || "Something failed" }),
    error.repair ? h("div", { class: "repair", text: "→ " + error.repair }) : null);
}
