// @ts-check
// Text to token ids and back, as a tokenizer.json describes it. What it cannot read is refused when the page is written.

/** @typedef {{json: any, before: number[], after: number[], dropped: number[], special: number[], roles: Record<string, string>, plain: boolean}} TokenizerData */

// GPT-2's printable letter of each byte; those that print are themselves.
const BYTE_LETTERS = (() => {
  const prints = (/** @type {number} */ byte) =>
    (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0xad) || byte > 0xad;
  let others = 256;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCodePoint(prints(byte) ? byte : others++),
  );
})();
const LETTER_BYTES = new Map(BYTE_LETTERS.map((letter, byte) => [letter, byte]));
const GPT2 = /'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}]/u;

/** @param {any} pattern @returns {RegExp} */
function regexOf(pattern) {
  if (pattern.Regex !== undefined) return new RegExp(pattern.Regex, "gu");
  return new RegExp(pattern.String.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gu");
}

// ------------------------------------------------------------------ normalizers

const withoutAccents = (/** @type {string} */ text) =>
  text.normalize("NFD").replace(/\p{Mn}/gu, "");

/** @param {any} part @param {string} text */
function bertNormalized(part, text) {
  if (part.clean_text) text = text.replace(/[\t\n\r]/g, " ").replace(/[\0\ufffd\p{C}]/gu, "");
  if (part.clean_text) text = text.replace(/\s/gu, " ");
  if (part.handle_chinese_chars) text = text.replace(/\p{Unified_Ideograph}/gu, " $& ");
  if (part.strip_accents ?? part.lowercase) text = withoutAccents(text);
  return part.lowercase ? text.toLowerCase() : text;
}

/** @type {Record<string, (part: any, text: string) => string>} */
const NORMALIZERS = {
  Sequence: (part, text) =>
    part.normalizers.reduce(
      (/** @type {string} */ t, /** @type {any} */ p) => normalized(p, t),
      text,
    ),
  NFC: (_, text) => text.normalize("NFC"),
  NFD: (_, text) => text.normalize("NFD"),
  NFKC: (_, text) => text.normalize("NFKC"),
  NFKD: (_, text) => text.normalize("NFKD"),
  Lowercase: (_, text) => text.toLowerCase(),
  StripAccents: (_, text) => text.replace(/\p{Mn}/gu, ""),
  Replace: (part, text) => text.replace(regexOf(part.pattern), () => part.content),
  Strip: (part, text) => {
    if (part.strip_left) text = text.trimStart();
    return part.strip_right ? text.trimEnd() : text;
  },
  BertNormalizer: bertNormalized,
};
/** @param {any} part @param {string} text @returns {string} */
const normalized = (part, text) => (part ? NORMALIZERS[part.type](part, text) : text);

// ------------------------------------------------------------------ pre-tokenizers

/** The pieces between matches of a pattern, and the matches, in order. @param {string} text @param {RegExp} pattern */
function isolated(text, pattern) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    pieces.push(text.slice(end, match.index), match[0]);
    end = match.index + match[0].length;
  }
  return [...pieces, text.slice(end)].filter(Boolean);
}

/** @param {any} part @param {string} text @param {boolean} begins whether it is the start of the input */
function metaspaced(part, text, begins) {
  const mark = part.replacement;
  let marked = text.replaceAll(" ", mark);
  const prepends = part.prepend_scheme === "always" || (part.prepend_scheme === "first" && begins);
  if (prepends && !marked.startsWith(mark)) marked = mark + marked;
  return part.split === false
    ? [marked]
    : marked.split(new RegExp(`(?=${mark})`, "u")).filter(Boolean);
}

/** @param {string} text */
function byteLetters(text) {
  const bytes = new TextEncoder().encode(text);
  return Array.from(bytes, (byte) => BYTE_LETTERS[byte]).join("");
}

/** @type {Record<string, (part: any, text: string, begins: boolean) => string[]>} */
const SPLITTERS = {
  Sequence: (part, text, begins) =>
    part.pretokenizers.reduce(
      (/** @type {string[]} */ pieces, /** @type {any} */ each) =>
        pieces.flatMap((piece, i) => SPLITTERS[each.type](each, piece, begins && i === 0)),
      [text],
    ),
  Metaspace: metaspaced,
  Split: (part, text) => {
    const pattern = regexOf(part.pattern);
    if (part.behavior === "Isolated") return isolated(text, pattern);
    return part.invert ? text.match(pattern) || [] : text.split(pattern).filter(Boolean);
  },
  Whitespace: (_, text) => text.match(/[\p{L}\p{N}\p{M}_]+|[^\p{L}\p{N}\p{M}_\s]+/gu) || [],
  WhitespaceSplit: (_, text) => text.split(/\s+/u).filter(Boolean),
  BertPreTokenizer: (_, text) =>
    text.split(/\s+/u).flatMap((word) => isolated(word, new RegExp(PUNCTUATION, "gu"))),
  ByteLevel: (part, text) => {
    const spaced = part.add_prefix_space && !/^\s/u.test(text) ? " " + text : text;
    const pieces = part.use_regex === false ? [spaced] : spaced.match(GPT2) || [];
    return pieces.map(byteLetters);
  },
};

// ------------------------------------------------------------------ models

/** @param {any} model @param {string} piece @returns {string[]} */
function wordPieces(model, piece) {
  const letters = [...piece];
  if (letters.length > model.max_input_chars_per_word) return [model.unk_token];
  const tokens = [];
  let start = 0;
  while (start < letters.length) {
    let end = letters.length;
    const prefix = start ? model.continuing_subword_prefix : "";
    while (end > start && !(prefix + letters.slice(start, end).join("") in model.vocab)) end--;
    if (end === start) return [model.unk_token];
    tokens.push(prefix + letters.slice(start, end).join(""));
    start = end;
  }
  return tokens;
}

/** Joins the pair that was learned first until none is left. @param {string[]} parts @param {Map<string, number>} ranks */
function merged(parts, ranks) {
  for (;;) {
    let best = -1;
    let rank = Infinity;
    for (let i = 0; i + 1 < parts.length; i++) {
      const here = ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
      if (here < rank) [best, rank] = [i, here];
    }
    if (best < 0) return parts;
    parts.splice(best, 2, parts[best] + parts[best + 1]);
  }
}

export class Tokenizer {
  /** @param {TokenizerData} data */
  constructor(data) {
    this.data = data;
    const { json } = data;
    this.model = { ...json.model, vocab: Object.assign(Object.create(null), json.model.vocab) };
    /** @type {Map<string, number>} */
    this.ids = new Map(Object.entries(json.model.vocab));
    for (const { content, id } of json.added_tokens) this.ids.set(content, id);
    this.names = new Map([...this.ids].map(([token, id]) => [id, token]));
    const merges = (json.model.merges || []).map((/** @type {any} */ pair) =>
      Array.isArray(pair) ? pair.join(" ") : pair,
    );
    this.ranks = new Map(
      merges.map((/** @type {string} */ pair, /** @type {number} */ i) => [pair, i]),
    );
    this.dropped = new Set([...data.dropped, ...data.special]);
    this.marksWords = [...this.ids.keys()].some((token) => /^[▁Ġ]/u.test(token));
    this.spellsBytes = BYTE_LETTERS.every((letter) => this.ids.has(letter));
  }

  /** Token ids of a text, without special tokens around it. @param {string} text */
  encode(text) {
    return this.pieces(text).flatMap((piece) => this.pieceIds(piece));
  }

  /** @param {string} text @returns {(string | number)[]} pieces of words, and ids of tokens that stand in the text */
  pieces(text) {
    const { json, plain } = this.data;
    const added = json.added_tokens.filter((/** @type {any} */ t) => !plain || !t.special);
    const split = (/** @type {string} */ part, /** @type {boolean} */ begins) => {
      const clean = normalized(json.normalizer, part);
      const splitter = json.pre_tokenizer;
      return !clean ? [] : splitter ? SPLITTERS[splitter.type](splitter, clean, begins) : [clean];
    };
    if (!added.length) return split(text, true);
    const escaped = added.map((/** @type {any} */ t) => {
      const content = t.content.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
      return `${t.lstrip ? "\\s*" : ""}${content}${t.rstrip ? "\\s*" : ""}`;
    });
    const parts = isolated(text, new RegExp(escaped.join("|"), "gu"));
    return parts.flatMap((part, i) => {
      const token = added.find(
        (/** @type {any} */ t) => t.content === part || t.content === part.trim(),
      );
      return token ? [token.id] : split(part, i === 0);
    });
  }

  /** @param {string | number} piece @returns {number[]} */
  pieceIds(piece) {
    if (typeof piece === "number") return [piece];
    const { model } = this;
    if (model.type === "WordLevel") return this.known([piece]);
    if (model.type === "WordPiece") return this.known(wordPieces(model, piece));
    const whole = model.ignore_merges ? this.ids.get(piece) : undefined;
    return whole === undefined ? this.known(merged([...piece], this.ranks)) : [whole];
  }

  /** The ids of tokens: of one that there is not its bytes, or the unknown token. @param {string[]} tokens */
  known(tokens) {
    const unknown = this.ids.get(this.model.unk_token);
    /** @type {number[]} */
    const ids = [];
    for (const token of tokens) {
      const id = this.ids.get(token);
      const bytes = id === undefined && this.model.byte_fallback ? this.bytes(token) : null;
      if (id !== undefined) ids.push(id);
      else if (bytes) ids.push(...bytes);
      else if (unknown !== undefined && !(this.model.fuse_unk && ids.at(-1) === unknown))
        ids.push(unknown);
    }
    return ids;
  }

  /** @param {string} token @returns {number[] | null} */
  bytes(token) {
    const ids = Array.from(new TextEncoder().encode(token), (byte) =>
      this.ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
    );
    return ids.includes(undefined) ? null : /** @type {number[]} */ (ids);
  }

  /** Token ids as a model reads them. @param {string} text */
  inputIds(text) {
    return [...this.data.before, ...this.encode(text), ...this.data.after];
  }

  /** The words of a text that are the unknown token, by their position in the input. @param {string} text */
  unknownWords(text) {
    const unknown = this.roleId("unk");
    /** @type {Record<string, string>} */
    const words = {};
    let position = this.data.before.length;
    let end = 0;
    for (const piece of this.pieces(text)) {
      // As it stands in the text: a normalizer may have changed its letters.
      const word = String(piece).replace(/^[▁Ġ]/u, "");
      const start = text.toLowerCase().indexOf(word.toLowerCase(), end);
      if (start >= 0) end = start + word.length;
      for (const id of this.pieceIds(piece)) {
        if (id === unknown) words[position] = start < 0 ? word : text.slice(start, end);
        position++;
      }
    }
    return words;
  }

  /** @param {string} role */
  roleId(role) {
    return this.ids.get(this.data.roles[role]);
  }

  /** @param {number} id */
  name(id) {
    return this.names.get(id) ?? `<id ${id}>`;
  }

  /** @param {number[]} ids */
  tokens(ids) {
    const names = ids.map((id) => this.name(id));
    return this.spellsBytes ? names.map(spelt) : names;
  }

  /** The text of token ids, without special tokens. @param {number[]} ids */
  decode(ids) {
    const tokens = ids.filter((id) => !this.dropped.has(id)).map((id) => this.names.get(id) ?? "");
    const { decoder } = this.data.json;
    return decoder ? decoded(decoder, tokens).join("") : tokens.join(" ");
  }

  /** A token as it stands in a text. @param {number} id */
  surface(id) {
    const token = this.name(id);
    return token.startsWith("##") ? token.slice(2) : this.decode([id]).trim() || token;
  }

  /** Whether a token goes on with the word before it. @param {number} id */
  continuesWord(id) {
    const token = this.names.get(id) ?? "";
    if (this.data.special.includes(id)) return false;
    return token.startsWith("##") || (this.marksWords && !/^[▁Ġ]/u.test(token));
  }
}

// ------------------------------------------------------------------ decoders

/** @param {string[]} tokens */
function fromByteLetters(tokens) {
  const bytes = [...tokens.join("")].map((letter) => LETTER_BYTES.get(letter) ?? 0x3f);
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

/** @param {string[]} tokens bytes such as <0xC3> in place of letters */
function fromByteTokens(tokens) {
  /** @type {string[]} */
  const out = [];
  /** @type {number[]} */
  let bytes = [];
  for (const token of [...tokens, ""]) {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(token);
    if (byte) bytes.push(parseInt(byte[1], 16));
    else {
      if (bytes.length) out.push(new TextDecoder().decode(Uint8Array.from(bytes)));
      bytes = [];
      out.push(token);
    }
  }
  return out.filter((token) => token !== "");
}

/** @param {string} text WordPiece's own rules for English */
const cleanedUp = (text) =>
  text
    .replace(/ ([.?!,])/g, "$1")
    .replace(/ ' /g, "'")
    .replace(/ (n't|'m|'s|'ve|'re)/g, "$1")
    .replace(/ do not/g, " don't");

/** @type {Record<string, (part: any, tokens: string[]) => string[]>} */
const DECODERS = {
  Sequence: (part, tokens) =>
    part.decoders.reduce(
      (/** @type {string[]} */ t, /** @type {any} */ p) => decoded(p, t),
      tokens,
    ),
  Fuse: (_, tokens) => [tokens.join("")],
  ByteFallback: (_, tokens) => fromByteTokens(tokens),
  ByteLevel: (_, tokens) => [fromByteLetters(tokens)],
  Metaspace: (part, tokens) =>
    tokens.map((token, i) => {
      const text = token.replaceAll(part.replacement, " ");
      return i === 0 && part.prepend_scheme !== "never" ? text.replace(/^ /, "") : text;
    }),
  WordPiece: (part, tokens) =>
    tokens.map((token, i) => {
      const goesOn = token.startsWith(part.prefix);
      const text = i === 0 ? token : goesOn ? token.slice(part.prefix.length) : ` ${token}`;
      return part.cleanup ? cleanedUp(text) : text;
    }),
};
/** @param {any} part @param {string[]} tokens @returns {string[]} */
const decoded = (part, tokens) => DECODERS[part.type](part, tokens);

/** A token of byte-level BPE as text; the mark of the space before it stays. @param {string} token */
function spelt(token) {
  const text = token.replace(/^Ġ+/, "");
  const letters = [...text];
  if (/^[\x00-\x7f]*$/.test(text) || letters.some((letter) => !LETTER_BYTES.has(letter)))
    return token;
  const bytes = letters.map((letter) => /** @type {number} */ (LETTER_BYTES.get(letter)));
  let spelled;
  try {
    spelled = new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes));
  } catch {
    const hex = (/** @type {number} */ byte) => byte.toString(16).toUpperCase();
    spelled = bytes.map((b) => (b >= 0x80 ? `<0x${hex(b)}>` : String.fromCharCode(b))).join("");
  }
  return "Ġ".repeat(token.length - text.length) + spelled;
}
