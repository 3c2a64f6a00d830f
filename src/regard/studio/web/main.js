// One page with four views. Each is a function of the address; a view that has been left draws nothing any more.

import { ask, setToken, takeToken } from "./api.js";
import { readsWhat } from "./ask_card.js";
import { failure, h, loading, put } from "./dom.js";
import { openDialog } from "./open.js";
import { address, go, MODEL_STATE, read } from "./route.js";
import decode from "./decode.js";
import learn from "./learn.js";
import { present } from "./lesson.js";
import look from "./look.js";
import train from "./train.js";

const PAGES = {
  look: ["Look", look],
  decode: ["Decode", decode],
  train: ["Train", train],
  learn: ["Learn", learn],
};
const main = document.getElementById("main");
const models = document.getElementById("model");
let shelf = null;
let current = 0;
let currentModel = null;
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
  for (const name of ["data-head", "data-row", "data-station", "data-token"]) {
    if (element.hasAttribute(name)) return `[${name}="${CSS.escape(element.getAttribute(name))}"]`;
  }
  const group = element.closest("[role=group][aria-label]");
  if (group && element.hasAttribute("data-value")) {
    // The one that is pressed now: arrow keys press what they reach.
    return `[aria-label="${CSS.escape(group.getAttribute("aria-label"))}"] [data-value="${CSS.escape(element.dataset.value)}"]`;
  }
  return element.getAttribute("aria-label")
    ? `${element.localName}[aria-label="${CSS.escape(element.getAttribute("aria-label"))}"]`
    : null;
}

// The studio answers only pages that know its key: it is in the address that the terminal printed.
function askForKey() {
  const input = h("input", {
    type: "text",
    id: "key",
    "aria-label": "Key",
    autocomplete: "off",
    spellcheck: "false",
  });
  put(
    main,
    h(
      "section",
      { class: "card" },
      h("h2", { text: "Access key required" }),
      h("p", {
        text: "Open the address that `regard studio` printed in the terminal: it contains the key. Or paste the part after “token=” here:",
      }),
      h(
        "form",
        {
          class: "ask",
          onsubmit: (event) => {
            event.preventDefault();
            setToken(input.value);
            show();
          },
        },
        input,
        h("button", { class: "main", text: "Continue" }),
      ),
    ),
  );
  main.setAttribute("aria-busy", "false");
}

function tabs(state, page) {
  put(
    document.getElementById("tabs"),
    (shelf?.pages ?? Object.keys(PAGES)).map((name) => {
      const [title] = PAGES[name];
      const same = {
        model: state.model,
        text: state.text,
        file: state.file,
        name: state.name,
        captions: state.captions,
        slide: state.slide,
        page: name,
      };
      return h("a", {
        href: address(name === page ? state : same),
        "aria-current": name === page ? "page" : null,
        text: title,
      });
    }),
  );
}

async function show() {
  const mine = ++current;
  const before = focused();
  const state = read();
  try {
    shelf ||= await ask("shelf", {}, { keep: false });
  } catch (error) {
    tabs(state, "look");
    if (error.type === "Token") askForKey();
    else put(main, failure(error));
    return;
  }
  if (mine !== current) return;
  if (shelf.lesson) present(shelf.lesson);
  const pages = shelf.pages ?? Object.keys(PAGES);
  const page = pages.includes(state.page) ? state.page : "look";
  tabs(state, page);
  const isAlone = Boolean(shelf.pages); // a page that was exported opens nothing else
  document.getElementById("open").hidden = isAlone;
  const model = shelf.models.includes(state.model) ? state.model : shelf.models[0];
  put(
    models,
    shelf.models.map((name) => h("option", { value: name, text: name })),
  );
  if (model) models.value = model;
  currentModel = model;
  models.closest("label").hidden = !shelf.models.length || page === "train" || isAlone;
  document.title = `${PAGES[page][0]} · ${model ?? "regard studio"}`;
  document.getElementById("title").textContent =
    page === "train" ? "Train: runs" : `${PAGES[page][0]}: ${model ?? "no model"}`;
  leave();
  const fresh = main.dataset.page !== page;
  main.dataset.page = page;
  main.style.minHeight = fresh ? "" : main.offsetHeight + "px"; // the page does not jump while it is drawn
  if (fresh) {
    put(main, loading());
    window.scrollTo(0, 0);
  }
  main.setAttribute("aria-busy", "true");
  let left = false;
  const endings = [];
  leave = () => {
    left = true;
    endings.forEach((end) => end());
  };
  const here = {
    main,
    state: { ...state, page, model },
    shelf,
    gone: () => left,
    atEnd: (end) => endings.push(end),
  };
  try {
    if (page !== "train" && !model) {
      put(
        main,
        h(
          "section",
          { class: "card" },
          h("h2", { text: "No model yet" }),
          h("p", {
            text: "A run saves its weights at the first checkpoint. Until then, Train shows its progress.",
          }),
          h(
            "div",
            { class: "bar" },
            h("button", {
              class: "main",
              type: "button",
              onclick: () => go({ page: "train" }),
              text: "Show the run",
            }),
            h("button", { type: "button", onclick: openModel, text: "Open a model" }),
          ),
        ),
      );
    } else await PAGES[page][1](here);
  } catch (error) {
    if (!left)
      put(
        main,
        error.problem && main.querySelector("section.asks")
          ? [...main.querySelectorAll("section.asks"), failure(error)]
          : failure(error),
      );
    if (!error.problem) console.error(error);
  }
  if (mine !== current) return;
  main.setAttribute("aria-busy", "false");
  main.style.minHeight = "";
  if (before && !main.contains(document.activeElement))
    main.querySelector(before)?.focus({ preventScroll: true });
}

// A sentence of one's own is kept for the next model, unless that reads something else, such as a series; an example
// belongs to the model that offered it.
async function choose(name) {
  const state = read();
  const [before, after] = await Promise.all(
    [currentModel, name].map((model) => ask("model", { model }).catch(() => null)),
  );
  const reads = (model) => model && readsWhat(model)[0];
  const text =
    before?.examples.includes(state.text) || (after && reads(before) !== reads(after))
      ? ""
      : state.text;
  shelf = null; // a folder that was opened has new names
  go({ ...MODEL_STATE, model: name, text });
  if (read().model === state.model) show(); // the address has not changed
}

async function openModel() {
  shelf = await ask("shelf", {}, { keep: false }).catch(() => shelf);
  openDialog(shelf, read().model, choose);
}

takeToken();
const wished = localStorage.getItem("regard-theme");
const system = window.matchMedia("(prefers-color-scheme: dark)");
theme(wished || (system.matches ? "dark" : "light"));
system.addEventListener("change", () => {
  if (localStorage.getItem("regard-theme")) return;
  theme(system.matches ? "dark" : "light");
  show();
});
document.getElementById("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  localStorage.setItem("regard-theme", document.documentElement.dataset.theme);
  show();
});
document.getElementById("open").addEventListener("click", openModel);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
models.addEventListener("change", () => choose(models.value));
window.addEventListener("hashchange", show);
show();
