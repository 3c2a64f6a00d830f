// Asking the studio. The token comes in the address that the terminal printed and is kept for this address only.

const KEY = "regard-token";

export class Failure extends Error {
  constructor(type, problem, repair) { super(problem); Object.assign(this, { type, problem, repair }); }
}

export function takeToken() {
  const given = new URLSearchParams(location.hash.replace(/^#\/?/, "").replace(/^.*\?/, "")).get("token");
  if (given) {
    localStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname + "#/look");
  }
}

const answered = new Map(); // for a while: a run that trains writes new weights now and then
const KEPT = 60;
export const FRESH = 30000;

export async function ask(view, question = {}, { keep = true } = {}) {
  const body = JSON.stringify(question);
  const key = view + body;
  if (keep && Date.now() - (answered.get(key)?.time ?? 0) < FRESH) return answered.get(key).answer;
  let response;
  try {
    response = await fetch("api/" + view, {
      method: "POST", body, headers: { "content-type": "application/json", "x-regard-token": localStorage.getItem(KEY) || "" },
    });
  } catch {
    throw new Failure("Gone", "the studio does not answer", "is it still running in its terminal?");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok || answer === null) {
    const error = answer?.error || {};
    throw new Failure(error.type || "Answer", error.problem || `the studio answered ${response.status}`, error.repair || "reload the page");
  }
  if (keep) {
    answered.set(key, { time: Date.now(), answer });
    if (answered.size > KEPT) answered.delete(answered.keys().next().value);
  }
  return answer;
}
