// Pictures and sound: choosing a file, and where a place of it looks, laid over what the model sees.

import { ask, hand } from "./api.js";
import { linearTicks, tick } from "./chart.js";
import { failure, h, put, shown } from "./dom.js";
import { paint } from "./heat.js";
import { go } from "./route.js";

const KINDS = {
  image: {
    types: "image/png,image/jpeg",
    text: "Image (PNG or JPEG): choose a file, drop it here, or paste it.",
    none: "example image",
  },
  sound: {
    types: ".wav,audio/wav,audio/x-wav",
    text: "Recording (WAV, resampled to 16 kHz): choose a file or drop it here.",
    none: "example recording",
  },
};
const LARGEST = 1 << 23;

export function chooser(kind, state, reads, extras = null) {
  const { types, text, none } = KINDS[kind];
  const showsFile = state.file || !reads || state.text === undefined;
  const problem = h("div", { role: "alert" });
  const input = h("input", {
    type: "file",
    id: "file",
    accept: types,
    "aria-label": text,
    onchange: () => take(input.files[0]),
  });
  async function take(file) {
    if (!file) return;
    try {
      if (file.size > LARGEST)
        throw {
          problem: `this file has ${(file.size / 1e6).toFixed(1)} MB`,
          repair: "choose a file of at most 8 MB",
        };
      put(problem, h("div", { class: "loading", text: "Uploading the file…" }));
      go({ file: await hand(file), name: file.name || "pasted", pin: "" });
    } catch (error) {
      put(problem, failure(error));
    }
  }
  function pasted(event) {
    const file = [...event.clipboardData.files][0];
    if (!card.isConnected)
      document.removeEventListener("paste", pasted); // the page has moved on
    else if (file) {
      event.preventDefault();
      take(file);
    }
  }
  document.addEventListener("paste", pasted);
  const over = (event, on) => {
    event.preventDefault();
    card.classList.toggle("over", on);
  };
  const card = h(
    "section",
    {
      class: "card asks files",
      ondragover: (event) => over(event, true),
      ondragleave: (event) => over(event, false),
      ondrop: (event) => {
        over(event, false);
        take(event.dataTransfer.files[0]);
      },
    },
    h("label", { class: "file" }, input, h("span", { class: "faint", text })),
    h(
      "div",
      { class: "chips" },
      h("span", { class: "label", text: "Input:" }),
      h("strong", {
        id: "filename",
        text:
          state.file && state.file !== "example"
            ? state.name || "a file"
            : showsFile
              ? none
              : "sentence",
      }),
      (state.file && state.file !== "example") || (reads && !showsFile)
        ? h("button", {
            type: "button",
            text: "Use the example",
            onclick: () => go({ file: "example", name: "", pin: "", text: "" }),
          })
        : null,
    ),
    kind === "sound" && showsFile ? player(state.file || "example") : null,
    problem,
    extras,
  );
  return card;
}

// The recording, to be listened to. A file that cannot be had is a matter of the views, which say so.
function player(file) {
  const audio = h("audio", { controls: true, "aria-label": "Recording" });
  ask("recording", { file }).then(
    ({ values }) => {
      audio.src = URL.createObjectURL(new Blob([values], { type: "audio/wav" }));
    },
    () => audio.remove(),
  );
  return audio;
}

// A line over a spectrogram that moves with what is heard.
function playhead(seconds, canvas) {
  const line = h("div", { class: "playhead", hidden: true });
  // Events of players do not bubble; the document sees them on their way down.
  function follow({ target: audio }) {
    if (!line.isConnected) {
      stopFollowing();
      return;
    }
    line.hidden = audio.ended || (audio.paused && audio.currentTime === 0);
    const share = Math.min(1, audio.currentTime / seconds);
    line.style.left = `${share * canvas.clientWidth}px`;
    if (!audio.paused) requestAnimationFrame(() => follow({ target: audio }));
  }
  const EVENTS = ["play", "seeked", "ended"];
  const stopFollowing = () => {
    for (const name of EVENTS) document.removeEventListener(name, follow, true);
  };
  for (const name of EVENTS) document.addEventListener(name, follow, true);
  return line;
}

// The names of places: patches by row and column, moments by their time. `count` is how many places there are.
export async function placeNamer(question, count) {
  const found = await ask("picture", {
    model: question.model,
    text: question.text,
    file: question.file,
  });
  return (index) => {
    if (found.kind !== "image") return `${(((index + 0.5) / count) * found.seconds).toFixed(2)} s`;
    if (index < found.extras) return found.extras > 1 ? `extra ${index + 1}` : "class";
    return `${Math.floor((index - found.extras) / found.side) + 1} · ${((index - found.extras) % found.side) + 1}`;
  };
}

const WIDE = 620;
const VEIL = 0.8; // the densest, over what is not looked at; as in pages of `regard look`
const TIMES = 8; // on the axis below a recording, at most about

// The picture, bright where the chosen row looks. Rows are places of it, or tokens that look at it.
export async function seen(
  question,
  rows,
  columns,
  { pin, own, verb = "attends most to", how = null, id = null, size = null },
) {
  const found = await ask("picture", {
    model: question.model,
    text: question.text,
    file: question.file,
  });
  const [high, wide] = found.shape,
    colours = found.shape.length === 3,
    image = found.kind === "image";
  const base = document.createElement("canvas");
  if (colours) {
    base.width = wide;
    base.height = high;
    const context = base.getContext("2d"),
      data = context.createImageData(wide, high);
    for (let i = 0; i < wide * high; i++) {
      for (let c = 0; c < 3; c++) data.data[4 * i + c] = found.values[3 * i + c];
      data.data[4 * i + 3] = 255;
    }
    context.putImageData(data, 0, 0);
  } else
    paint(
      base,
      high,
      wide,
      (i) => found.values[(high - 1 - Math.floor(i / wide)) * wide + (i % wide)] / 255,
      { night: true },
    ); // low tones below, and loud ones bright
  const room = Math.min(size ?? (image ? WIDE : 1340), window.innerWidth - 72),
    tall = image ? room : size ? 110 : 220,
    strip = image ? 0 : 56,
    axis = image ? 0 : 18;
  const canvas = h("canvas", {
    class: "seen",
    width: room,
    height: tall + strip + axis,
    tabindex: own ? 0 : null,
    role: own ? "slider" : "img",
    "aria-valuemin": own ? 0 : null,
    "aria-valuemax": own ? rows.length - 1 : null,
    "aria-label": own ? "Query position; arrow keys move it" : "Attention over the input",
  });
  const summary = h("p", { class: "read", role: "status" });
  const context = canvas.getContext("2d");
  const { side, extras } = found,
    places = columns.length;
  // Whole pixels, so that neighbours neither overlap nor leave a line between them.
  const span = (i, many, whole) => {
    const a = Math.round((i * whole) / many);
    return [a, Math.round(((i + 1) * whole) / many) - a];
  };
  function box(j) {
    const [[x, w], [y, t]] = image
      ? [span((j - extras) % side, side, room), span(Math.floor((j - extras) / side), side, tall)]
      : [span(j, places, room), [0, tall]];
    return [x, y, w, t];
  }
  const named = (list, j, isPlace) =>
    !isPlace
      ? `“${shown(list[j])}”`
      : image
        ? j < extras
          ? extras > 1
            ? `extra token ${j + 1}`
            : "the class token"
          : `patch ${Math.floor((j - extras) / side) + 1} · ${((j - extras) % side) + 1}`
        : `${(((j + 0.5) / places) * found.seconds).toFixed(2)} s`;
  // Frequencies at the right edge, white on the night of the spectrogram.
  function frequencyAxis() {
    context.fillStyle = "rgb(255 255 255 / 0.85)";
    context.textAlign = "right";
    for (const [name, share] of Object.entries(found.frequencies)) {
      const y = Math.round(tall * (1 - share));
      context.fillRect(room - 5, y, 5, 1);
      context.fillText(name, room - 8, y + 4);
    }
  }
  // Seconds below the bars; names at the ends stay within the canvas.
  function timeAxis(ink) {
    context.fillStyle = ink;
    context.textAlign = "center";
    for (const second of linearTicks(0, found.seconds, { count: TIMES })) {
      const name = `${tick(second)} s`,
        half = context.measureText(name).width / 2;
      const x = (second / found.seconds) * room;
      context.fillRect(Math.min(room - 1, Math.round(x)), tall + strip, 1, 4);
      context.fillText(name, Math.max(half, Math.min(room - half, x)), tall + strip + 15);
    }
  }
  let marked = 0;
  // `shades` are those of the weights, from 0 to 1.
  function show(weights, { marked: asked = -1, title = "", shades } = {}) {
    marked = asked < 0 ? 0 : asked;
    const row = weights.subarray(marked * places, (marked + 1) * places);
    const shade = shades.subarray(marked * places, (marked + 1) * places);
    let most = 1e-12,
      best = 0;
    for (let j = image ? extras : 0; j < places; j++)
      if (row[j] > most) {
        most = row[j];
        best = j;
      }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, room, tall + strip + axis);
    context.imageSmoothingEnabled = true;
    context.drawImage(base, 0, 0, room, tall);
    for (let j = image ? extras : 0; j < places; j++) {
      const [x, y, w, t] = box(j);
      context.fillStyle = `rgb(8 10 16 / ${(VEIL * (1 - Math.sqrt(shade[j]))).toFixed(3)})`;
      context.fillRect(x, y, w, t);
    }
    const style = getComputedStyle(document.documentElement);
    if (!image) {
      context.font = "11px system-ui, sans-serif";
      frequencyAxis();
      timeAxis(style.getPropertyValue("--faint"));
      context.fillStyle = style.getPropertyValue("--accent");
      for (let j = 0; j < places; j++) {
        const t = Math.max(0.5, shade[j] * (strip - 8));
        context.fillRect((j * room) / places, tall + strip - t, Math.max(1, room / places), t);
      }
    }
    if (own && (!image || marked >= extras)) {
      const [x, y, w, t] = box(marked);
      context.strokeStyle = "#ffb454";
      context.lineWidth = 3;
      context.strokeRect(x + 1.5, y + 1.5, Math.max(2, w - 3), t - 3);
    }
    const rest = extras && image ? [...row.subarray(0, extras)].reduce((a, b) => a + b, 0) : 0;
    // Of equal weights, the first is not the largest.
    const alike = row.every((weight) => weight > 0.99 * most);
    const places_seen = alike
      ? "all positions equally"
      : `${named(columns, best, true)} (${(100 * row[best]).toFixed(1)} %)`;
    const text = `${named(rows, marked, own)} ${alike ? verb.replace(" most", "") : verb} ${places_seen}${extras && image ? `; ${extras > 1 ? "extra tokens" : "class token"}: ${(100 * rest).toFixed(1)} %` : ""}.`;
    summary.textContent = text[0].toUpperCase() + text.slice(1);
    canvas.dataset.title = title;
    if (own) {
      canvas.setAttribute("aria-valuenow", marked);
      canvas.setAttribute("aria-valuetext", text);
    }
    for (const each of chips.querySelectorAll("button"))
      each.setAttribute("aria-pressed", String(Number(each.dataset.row) === marked));
  }
  canvas.addEventListener("click", (event) => {
    const at = canvas.getBoundingClientRect(),
      x = (event.clientX - at.left) / at.width,
      y = (event.clientY - at.top) / at.height;
    if (own)
      pin(
        image
          ? // The last cells of a clip may be empty.
            Math.min(
              rows.length - 1,
              extras +
                Math.min(side - 1, Math.floor(y * side)) * side +
                Math.min(side - 1, Math.floor(x * side)),
            )
          : Math.min(places - 1, Math.floor(x * places)),
      );
  });
  canvas.addEventListener("keydown", (event) => {
    const step = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: image ? -side : 1,
      ArrowDown: image ? side : -1,
    }[event.key];
    if (!step || !own) return;
    event.preventDefault();
    pin(Math.max(0, Math.min(rows.length - 1, marked + step)));
  });
  if (id) canvas.id = id; // the keyboard finds it again when another place is picked
  const buttons = own ? [...Array(image ? extras : 0).keys()] : [...rows.keys()];
  const chips = h(
    "div",
    {
      class: "chips",
      role: "group",
      "aria-label": own ? "Tokens without a position" : "Query tokens",
    },
    buttons.map((i) =>
      h("button", {
        type: "button",
        "data-row": i,
        "aria-pressed": "false",
        text: own ? named(rows, i, true) : shown(rows[i]),
        onclick: () => pin(i),
      }),
    ),
  );
  how ||= own
    ? image
      ? "Select a patch, or move with the arrow keys. Brighter patches receive more of its attention, relative to uniform."
      : "Select a frame, or move with the arrow keys. Brightness and bars show its attention, relative to uniform."
    : "Select a token. Brighter parts receive more of its attention while it is generated.";
  return {
    wide: !image,
    node: h(
      "div",
      {},
      summary,
      chips,
      h("div", { class: "scroll" }, canvas, image ? null : playhead(found.seconds, canvas)),
      h("p", { class: "note", text: how }),
    ),
    show,
  };
}
