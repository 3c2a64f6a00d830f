// @ts-check
// Formulas as MathML, from the line of text that the model's own parts give: "softmax(Q Kᵀ / √d + mask)".

const MATH = "http://www.w3.org/1998/Math/MathML";

/** @typedef {{kind: "word" | "number" | "sign", text: string, below: string, above: string, tight: boolean}} Token */
/** @typedef {{tokens: Token[], at: number}} Reader */

/** @param {string} name @param {(Element | string | null)[]} children @param {Record<string, string>} [attributes] @returns {Element} */
function m(name, children, attributes = {}) {
  const element = document.createElementNS(MATH, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const LOWERED = { "₀": "0", "₁": "1", "₂": "2", "₋": "−", ₜ: "t", ᵢ: "i" };
const RAISED = { ᵀ: "T", "²": "2" };
const TOKEN =
  /\s*(?:([\p{Script=Latin}\p{Script=Greek}]+?)(?=[_₀₁₂₋ₜᵢᵀ²]|[^\p{Script=Latin}\p{Script=Greek}]|$)(?:_(\w+))?([₀₁₂₋ₜᵢ]*)([ᵀ²]?)|(\d+(?:\.\d+)?)|(\S))/uy;

/** @param {string} text @param {Record<string, string>} table */
const plain = (text, table) => [...text].map((c) => table[c] ?? c).join("");

/** @param {string} text @returns {Token[]} */
export function tokens(text) {
  const list = [];
  TOKEN.lastIndex = 0;
  for (let found; TOKEN.lastIndex < text.length && (found = TOKEN.exec(text));) {
    const [all, word, below, lowered, raised, number, sign] = found;
    /** @type {Token["kind"]} */
    const kind = word ? "word" : number ? "number" : "sign";
    list.push({
      kind,
      text: word ?? number ?? sign,
      below: below ?? plain(lowered ?? "", LOWERED),
      above: plain(raised ?? "", RAISED),
      tight: !/^\s/.test(all), // nothing stands between it and what is before
    });
  }
  return list;
}

/** A name with its subscript and superscript. @param {Token} token */
function named({ text, below, above }) {
  const base = m("mi", [text]);
  const sub = below && m("mi", [below]);
  const sup = above && m("mi", [above], { mathvariant: "normal" });
  if (sub && sup) return m("msubsup", [base, sub, sup]);
  if (sub) return m("msub", [base, sub]);
  return sup ? m("msup", [base, sup]) : base;
}

const CLOSES = { "(": ")", "[": "]" };

/** What stands between brackets, with them. @param {Reader} reader */
function bracketed(reader) {
  const open = reader.tokens[reader.at++].text;
  const inside = expression(reader);
  const close = reader.tokens[reader.at++];
  return m("mrow", [
    m("mo", [open]),
    inside,
    m("mo", [close?.text ?? CLOSES[/** @type {"("} */ (open)]]),
  ]);
}

/** A root, a name with what it is applied to, a number, or something in brackets. @param {Reader} reader @returns {Element} */
function factor(reader) {
  const token = reader.tokens[reader.at];
  if (token.text === "√") {
    reader.at++;
    return m("msqrt", [factor(reader)]);
  }
  if (token.text in CLOSES) return bracketed(reader);
  reader.at++;
  if (token.kind === "number") return m("mn", [token.text]);
  if (token.kind === "sign") return m("mo", [token.text]);
  const next = reader.tokens[reader.at];
  if (next && next.text in CLOSES && next.tight)
    return m("mrow", [named(token), bracketed(reader)]);
  return named(token);
}

/** Factors without their outer brackets, as a fraction shows them. @param {Element[]} parts */
function bare(parts) {
  if (parts.length > 1) return m("mrow", parts);
  const [only] = parts;
  const isGroup = only.localName === "mrow" && only.firstElementChild?.textContent === "(";
  return isGroup ? m("mrow", [...only.children].slice(1, -1)) : only;
}

const ENDS = new Set([")", "]"]);
const isWord = (/** @type {Element} */ part) =>
  part.localName === "mi" && (part.textContent ?? "").length > 1;

/** Factors side by side, with a space where one is a word. @param {Element[]} parts */
function product(parts) {
  return parts.flatMap((part, i) => {
    const apart = i > 0 && (isWord(part) || isWord(parts[i - 1]));
    const gap = m("mspace", [], { width: apart ? ".35em" : ".12em" });
    return i > 0 ? [gap, part] : [part];
  });
}

/** Sums and products, up to the bracket that closes them. @param {Reader} reader @returns {Element} */
function expression(reader) {
  /** @type {Element[]} */
  const done = [];
  /** @type {Element[]} */
  let parts = [];
  const list = reader.tokens;
  while (reader.at < list.length && !ENDS.has(list[reader.at].text)) {
    const token = list[reader.at];
    if (token.text === "/" && parts.length) {
      reader.at++;
      parts = [m("mfrac", [bare(parts), bare([factor(reader)])])];
    } else if (token.kind === "sign" && token.text !== "√" && !(token.text in CLOSES)) {
      reader.at++;
      done.push(...product(parts), m("mo", [token.text]));
      parts = [];
    } else parts.push(factor(reader));
  }
  return m("mrow", [...done, ...product(parts)]);
}

/** A formula as an element; the line it was read from stays with it. @param {string} text */
export function formula(text) {
  /** @type {Reader} */
  const reader = { tokens: tokens(text), at: 0 };
  const parts = [];
  while (reader.at < reader.tokens.length) {
    parts.push(expression(reader));
    if (reader.at < reader.tokens.length) parts.push(m("mo", [reader.tokens[reader.at++].text]));
  }
  return m("math", parts, { class: "formula", displaystyle: "true", "data-formula": text });
}
