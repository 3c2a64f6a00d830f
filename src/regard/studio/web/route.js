// The address is the state: what is on the page is what the part after # says, so a link restores the exact view.

export function read() {
  const [path, ...query] = location.hash.replace(/^#\/?/, "").split("?"); // a question mark may stand in a sentence too
  return { page: path || "look", ...Object.fromEntries(new URLSearchParams(query.join("?"))) };
}

export function address(state) {
  const { page, ...rest } = state;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(rest)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  return `#/${page}?${query}`;
}

export function go(changes, { quietly = false } = {}) {
  const target = address({ ...read(), ...changes });
  if (quietly) history.replaceState(null, "", target);
  else location.hash = target;
}

// Heads that are switched off: "encoder.0.self.3,decoder.1.cross.0" ⇄ [["encoder.0.self", 3], …].
export const offList = (state) =>
  (state.off || "")
    .split(",")
    .filter(Boolean)
    .map((each) => {
      const cut = each.lastIndexOf(".");
      return [each.slice(0, cut), Number(each.slice(cut + 1))];
    });
export const offText = (list) => list.map(([name, head]) => `${name}.${head}`).join(",");

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
  captions: "",
  compare: "",
  text2: "",
  model2: "",
  patch: "",
};
