// The address is the state: what is on the page is what the part after # says, so a link restores the exact view.

const DEFAULTS = { text: "The cat sat on the mat." };

export function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "look", ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(query || "")) };
}

export function address(state) {
  const { page, ...rest } = state;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(rest)) if (value !== undefined && value !== null && value !== "") query.set(name, value);
  return `#/${page}?${query}`;
}

export function go(changes, { quietly = false } = {}) {
  const target = address({ ...read(), ...changes });
  if (quietly) history.replaceState(null, "", target);
  else location.hash = target;
}

export const offList = (state) => (state.off || "").split(",").filter(Boolean).map((each) => {
  const cut = each.lastIndexOf(".");
  return [each.slice(0, cut), Number(each.slice(cut + 1))];
});
export const offText = (list) => list.map(([name, head]) => `${name}.${head}`).join(",");
