// @ts-check
// Asking the studio. The token comes in the address that the terminal printed and is kept for this address only.

const KEY = "regard-token";

export class Failure extends Error {
  /** @param {string} type @param {string} problem @param {string} repair */
  constructor(type, problem, repair) {
    super(problem);
    Object.assign(this, { type, problem, repair });
  }
}

export function takeToken() {
  const token = new URLSearchParams(location.hash.replace(/^#\/?/, "").replace(/^.*\?/, "")).get(
    "token",
  );
  if (token) {
    setToken(token);
    history.replaceState(null, "", location.pathname + "#/look");
  }
}

export const setToken = (/** @type {string} */ token) => localStorage.setItem(KEY, token.trim());

const answered = new Map(); // for a while: a run that trains writes new weights now and then
const KEPT = 60;
const FRESH = 30000;

// Numbers come packed: the length of some JSON, the JSON, and then the bytes of one array. Attention has its shades behind
// it, from 0 to 1, one byte each: the same as in pages and pictures of `regard look`.
/** @param {ArrayBuffer} buffer */
function unpacked(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const count = header.shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
  if (header.bytes) return { ...header, values: new Uint8Array(buffer, 4 + length, count) };
  return {
    ...header,
    values: new Float32Array(buffer, 4 + length, count),
    shades: Float32Array.from(new Uint8Array(buffer, 4 + length + 4 * count), (b) => b / 255),
  };
}

// A page that was exported computes the answers itself: a function of the view and the question.
/** @type {((view: string, body: string) => Promise<any>) | null} */
let answerer = null;
/** @param {(view: string, body: string) => Promise<any>} other */
export const answerWith = (other) => {
  answerer = other;
};

/** @param {string} view @param {any} body */
async function send(view, body) {
  if (answerer) return answerer(view, body);
  let response;
  try {
    response = await fetch("api/" + view, {
      method: "POST",
      body,
      headers: { "x-regard-token": localStorage.getItem(KEY) || "" },
    });
  } catch {
    throw new Failure(
      "Gone",
      "the studio does not respond",
      "check that it is still running in its terminal",
    );
  }
  const packed = response.headers.get("content-type") === "application/octet-stream";
  const answer = await (packed ? response.arrayBuffer().then(unpacked) : response.json()).catch(
    () => null,
  );
  if (response.ok && answer !== null) return answer;
  const error = answer?.error || {};
  throw new Failure(
    error.type || "Answer",
    error.problem || `the studio returned HTTP status ${response.status}`,
    error.repair || "reload the page",
  );
}

/** @param {string} view @param {Record<string, any>} question */
export async function ask(view, question = {}, { keep = true } = {}) {
  const body = JSON.stringify(question);
  const key = view + body;
  if (keep && Date.now() - (answered.get(key)?.time ?? 0) < FRESH) return answered.get(key).answer;
  const answer = await send(view, body);
  if (keep) {
    answered.set(key, { time: Date.now(), answer });
    if (answered.size > KEPT) answered.delete(answered.keys().next().value);
  }
  return answer;
}

// A picture or a recording; what comes back is its name from now on.
export const hand = async (/** @type {File | Blob} */ file) => (await send("file", file)).file;
