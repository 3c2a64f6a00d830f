// One page with four views. Each is a function of the address; a view that has been left draws nothing any more.

import { ask, takeToken } from "./api.js";
import { failure, h, loading, put } from "./dom.js";
import { address, go, read } from "./route.js";
import decode from "./decode.js";
import learn from "./learn.js";
import look from "./look.js";
import train from "./train.js";

const PAGES = { look: ["Look", look], decode: ["Decode", decode], train: ["Train", train], learn: ["Learn", learn] };
const main = document.getElementById("main");
const models = document.getElementById("model");
let shelf = null;
let current = 0;
let leave = () => {};

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "☀" : "☾";
}

// What had the focus, as a selector that finds it again after the page is drawn anew.
function focused() {
  const element = document.activeElement;
  if (!element || !main.contains(element)) return null;
  if (element.id) return "#" + CSS.escape(element.id);
  for (const name of ["data-head", "data-row", "data-station"]) {
    if (element.hasAttribute(name)) return `[${name}="${CSS.escape(element.getAttribute(name))}"]`;
  }
  const group = element.closest("[role=group][aria-label]");
  if (group && element.hasAttribute("data-value")) return `[aria-label="${CSS.escape(group.getAttribute("aria-label"))}"] [data-value="${CSS.escape(element.dataset.value)}"]`;
  return element.getAttribute("aria-label") ? `${element.localName}[aria-label="${CSS.escape(element.getAttribute("aria-label"))}"]` : null;
}

async function show() {
  const mine = ++current;
  const before = focused();
  const state = read();
  const page = PAGES[state.page] ? state.page : "look";
  put(document.getElementById("tabs"), Object.entries(PAGES).map(([name, [title]]) => {
    const same = { model: state.model, text: state.text, file: state.file, name: state.name, page: name };
    return h("a", { href: address(name === page ? state : same), "aria-current": name === page ? "page" : null, text: title });
  }));
  document.title = `${PAGES[page][0]} · regard studio`;
  try {
    shelf ||= await ask("shelf", {}, { keep: false });
  } catch (error) {
    put(main, failure(error));
    return;
  }
  if (mine !== current) return;
  const model = shelf.models.includes(state.model) ? state.model : shelf.models[0];
  put(models, shelf.models.map((name) => h("option", { value: name, text: name })));
  if (model) models.value = model;
  models.closest("label").hidden = !shelf.models.length || page === "train";
  leave();
  const fresh = main.dataset.page !== page;
  main.dataset.page = page;
  main.style.minHeight = fresh ? "" : main.offsetHeight + "px"; // the page does not jump while it is drawn
  if (fresh) put(main, loading());
  main.setAttribute("aria-busy", "true");
  let left = false;
  const endings = [];
  leave = () => { left = true; endings.forEach((end) => end()); };
  const here = { main, state: { ...state, page, model }, shelf, gone: () => left, atEnd: (end) => endings.push(end) };
  try {
    if (page !== "train" && !model) {
      put(main, h("section", { class: "card" }, h("h2", { text: "No model here yet" }),
        h("p", { text: "A run writes its weights at its first checkpoint. Until then, Train shows how it goes." }),
        h("button", { class: "main", type: "button", onclick: () => go({ page: "train" }), text: "Watch the run" })));
    } else await PAGES[page][1](here);
  } catch (error) {
    if (!left) put(main, error.problem && main.querySelector("section.asks") ? [...main.querySelectorAll("section.asks"), failure(error)] : failure(error));
    if (!error.problem) console.error(error);
  }
  if (mine !== current) return;
  main.setAttribute("aria-busy", "false");
  main.style.minHeight = "";
  if (before && !main.contains(document.activeElement)) main.querySelector(before)?.focus({ preventScroll: true });
}

takeToken();
const wished = localStorage.getItem("regard-theme");
const system = window.matchMedia("(prefers-color-scheme: dark)");
theme(wished || (system.matches ? "dark" : "light"));
system.addEventListener("change", () => { if (!localStorage.getItem("regard-theme")) { theme(system.matches ? "dark" : "light"); show(); } });
document.getElementById("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  localStorage.setItem("regard-theme", document.documentElement.dataset.theme);
  show();
});
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
models.addEventListener("change", () => go({ model: models.value, aligned: "", at: "", head: "", off: "", pin: "", step: "", file: "", name: "", place: "", stack: "" }));
window.addEventListener("hashchange", show);
show();
