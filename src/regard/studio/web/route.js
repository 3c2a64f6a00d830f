// @ts-check
// The address is the state: what is on the page is what the part after # says, so a link restores the exact view.

export function read() {
  const [path, ...query] = location.hash.replace(/^#\/?/, "").split("?"); // a question mark may stand in a sentence too
  return { page: path || "look", ...Object.fromEntries(new URLSearchParams(query.join("?"))) };
}

/** @param {Record<string, any>} state */
export function address(state) {
  const { page, ...rest } = state;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(rest)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  return `#/${page}?${query}`;
}

// `quietly`: what is on the page has changed already. `instead`: the step back leads past the address that was left.
/** @param {Record<string, any>} changes */
export function go(changes, { quietly = false, instead = false } = {}) {
  const target = address({ ...read(), ...changes });
  if (quietly || instead) history.replaceState(null, "", target);
  else location.hash = target;
  if (instead) window.dispatchEvent(new HashChangeEvent("hashchange"));
}

// A number of the address, where it is one; a link may have been cut or changed by hand.
/** @param {any} text @param {number} usual */
export function number(text, usual, [least, most] = [-Infinity, Infinity]) {
  const value = text === undefined || text === "" ? NaN : Number(text);
  return Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : usual;
}
export const count = (/** @type {any} */ text, /** @type {number} */ usual) =>
  Math.floor(number(text, usual, [0, 8192]));

// Heads that are switched off: "encoder.0.self.3,decoder.1.cross.0" ⇄ [["encoder.0.self", 3], …].
/** @param {Record<string, any>} state @returns {[string, number][]} */
export const offList = (state) =>
  (state.off || "")
    .split(",")
    .filter(Boolean)
    .map((/** @type {string} */ each) => {
      const cut = each.lastIndexOf(".");
      return [each.slice(0, cut), Number(each.slice(cut + 1))];
    });
export const offText = (/** @type {[string, number][]} */ list) =>
  list.map(([name, head]) => `${name}.${head}`).join(",");

// What belongs to one model only, and is left behind when another is chosen.
export const MODEL_STATE = {
  aligned: "",
  at: "",
  head: "",
  off: "",
  pin: "",
  step: "",
  file: "",
  name: "",
  place: "",
  stack: "",
  layer: "",
  row: "",
  station: "",
  play: "",
  captions: "",
  compare: "",
  text2: "",
  model2: "",
  patch: "",
  depth: "",
  neuron: "",
};
