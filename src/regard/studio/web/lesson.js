// @ts-check
// A lesson: one step at a time beside the pages, which show what the step is about. Its number is in the address, so that
// a link leads to a step; a question is answered before the page shows what it asked for.

import { h, put } from "./dom.js";
import { count, read } from "./route.js";

/** @typedef {{title: string, text: string, state: string, point: string[], choices: string[], right: number | null, reveal: string}} Step */
/** @typedef {{title: string, steps: Step[]}} Lesson */

/** @type {Lesson | null} */
let lesson = null;
let at = -1;
/** @type {number | null} what was answered at this step */
let said = null;
const panel = h("section", { id: "lesson", "aria-label": "Lesson", tabindex: -1 });
const sheet = new CSSStyleSheet(); // which cards are shown changes with the step

// Bold, emphasis and code of a line; everything else is text.
/** @param {string} text */
const inline = (text) =>
  text.split(/(\*\*[^*]+\*\*|\*[^*]+\*|`[^`]+`)/).map((part) => {
    if (part.startsWith("**")) return h("strong", { text: part.slice(2, -2) });
    if (part.startsWith("*") && part.length > 2) return h("em", { text: part.slice(1, -1) });
    return part.startsWith("`") ? h("code", { text: part.slice(1, -1) }) : part;
  });
/** @param {string} text */
const paragraphs = (text) =>
  text
    .split(/\n\s*\n/)
    .filter(Boolean)
    .map((part) => h("p", {}, inline(part.replaceAll("\n", " "))));

/** Whether the step still waits for an answer. @param {Step} step */
const asks = (step) => step.choices.length > 0 && said === null;

// The state of a step; while it asks, the page stays as the step before it left it.
/** @param {number} number */
function addressOf(number) {
  const steps = /** @type {Lesson} */ (lesson).steps;
  const waits = number > 0 && asks(steps[number]);
  const { state } = steps[waits ? number - 1 : number];
  return `#/${state}${state.includes("?") ? "&" : "?"}slide=${number}`;
}

/** Only the cards that a step points at. @param {Step} step */
function showOnly(step) {
  const before = at > 0 ? /** @type {Lesson} */ (lesson).steps[at - 1].point : ["Answer"];
  const names = asks(step) ? before : step.point;
  const kept = names.map((name) => `[aria-label="${CSS.escape(name)}"]`).join(", ");
  const hidden = kept ? `html.lesson:not(.everything) main > section:not(${kept})` : "";
  sheet.replaceSync(hidden ? `${hidden} { display: none }` : "");
}

/** @param {number} number @param {number | null} [answer] */
function turn(number, answer = null) {
  if (number < 0 || number >= /** @type {Lesson} */ (lesson).steps.length) return;
  at = number;
  said = answer;
  const address = addressOf(at);
  draw();
  // The address may be the same: of a question at the first step.
  if (location.hash !== address) location.hash = address;
  window.scrollTo(0, 0);
  panel.scrollTo(0, 0);
}

// On, or first to the reveal of a question that nobody has answered.
function forward() {
  if (asks(/** @type {Lesson} */ (lesson).steps[at])) turn(at, -1);
  else turn(at + 1);
}
const everything = () => document.documentElement.classList.toggle("everything");
function fullScreen() {
  const done = document.fullscreenElement
    ? document.exitFullscreen()
    : document.documentElement.requestFullscreen();
  done.catch(() => {}); // a browser may refuse it, inside a frame
}

/** @param {Step} step */
function question(step) {
  return h(
    "div",
    { class: "choices", role: "group", "aria-label": "Answers" },
    step.choices.map((choice, i) => {
      const known = said !== null;
      const mark = !known ? "" : i === step.right ? " correct" : i === said ? " mistaken" : "";
      return h(
        "button",
        {
          type: "button",
          class: `choice${mark}`,
          "aria-pressed": String(i === said),
          onclick: () => turn(at, i),
        },
        h("kbd", { text: String(i + 1) }),
        h("span", {}, inline(choice)),
        mark ? h("span", { class: "verdict", text: mark === " correct" ? "✓" : "✗" }) : null,
      );
    }),
  );
}

function draw() {
  const { title, steps } = /** @type {Lesson} */ (lesson);
  const step = steps[at];
  const button = (/** @type {string} */ text, /** @type {() => void} */ onclick, more = {}) =>
    h("button", { type: "button", text, onclick, ...more });
  put(
    panel,
    h(
      "p",
      { class: "label" },
      `${title} · `,
      h("span", { id: "lesson-slide", text: `${at + 1} of ${steps.length}` }),
    ),
    h("h2", { text: step.title }),
    h("div", { class: "said", "aria-live": "polite" }, [
      paragraphs(step.text),
      step.choices.length ? question(step) : null,
      asks(step) ? null : paragraphs(step.reveal),
    ]),
    h(
      "div",
      { class: "bar" },
      button("◂ Back", () => turn(at - 1), { disabled: at === 0 }),
      button(asks(step) ? "Reveal ▸" : "Next ▸", forward, {
        class: "main",
        id: "lesson-next",
        disabled: at === steps.length - 1 && !asks(step),
      }),
      button("Whole page", everything, { class: "small", title: "A" }),
      button("Full screen", fullScreen, { class: "small", title: "F" }),
    ),
  );
  showOnly(step);
}

/** @type {Record<string, () => void>} */
const KEYS = {
  ArrowRight: forward,
  PageDown: forward,
  " ": forward,
  ArrowLeft: () => turn(at - 1),
  PageUp: () => turn(at - 1),
  a: everything,
  f: fullScreen,
};

/** @param {KeyboardEvent} event */
function pressed(event) {
  const target = /** @type {Element} */ (event.target);
  const isTyping = target.matches("input, textarea, select");
  if (isTyping || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const { choices } = /** @type {Lesson} */ (lesson).steps[at];
  const digit = Number(event.key) - 1;
  const key = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  const isPress = event.key === " " && target.matches("button, a, summary");
  if (digit >= 0 && digit < choices.length) turn(at, digit);
  else if (key && !isPress) key();
  else return;
  event.preventDefault();
}

/** Begins a lesson, or follows the address to another of its steps. @param {Lesson} wanted */
export function present(wanted) {
  const { slide } = /** @type {Record<string, string>} */ (read());
  const number = count(slide, 0);
  if (lesson === null) {
    lesson = wanted;
    document.documentElement.classList.add("lesson");
    document.body.append(panel);
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    document.addEventListener("keydown", pressed);
    turn(Math.min(number, lesson.steps.length - 1));
  } else if (slide !== undefined && number !== at) turn(number);
}
