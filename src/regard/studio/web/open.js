// Opening another model: one of the list, one that was opened lately, a folder on this machine, or a name on the hub.

import { ask } from "./api.js";
import { failure, h, loading, put } from "./dom.js";

// A dialog that calls `choose` with the name of a model of the list.
export function openDialog(shelf, current, choose) {
  const problem = h("div", { role: "alert" });
  const browser = h("div", { class: "folders" });
  const path = h("input", {
    type: "text",
    id: "path",
    name: "path",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": "Folder",
    placeholder: shelf.downloads
      ? "a folder on this machine, or owner/name on the Hub"
      : "a folder on this machine",
  });
  const dialog = h("dialog", {
    class: "card",
    "aria-label": "Open a model",
    onclose: () => dialog.remove(),
  });
  const close = () => dialog.close();
  const pick = (name) => {
    close();
    choose(name);
  };

  async function open(where) {
    if (!where.trim()) {
      put(
        problem,
        failure({
          problem: "no folder was entered",
          repair: "enter a path, or choose a folder below",
        }),
      );
      return;
    }
    put(problem, loading("Opening the model…"));
    try {
      const { model } = await ask("open_folder", { path: where.trim() }, { keep: false });
      pick(model);
    } catch (error) {
      put(problem, failure(error));
    }
  }
  async function browse(where) {
    put(browser, loading(""));
    try {
      const { folder, parent, folders } = await ask("folders", { path: where }, { keep: false });
      path.value = folder;
      put(
        browser,
        h("p", { class: "mono", text: folder }),
        h(
          "ul",
          { class: "plainlist" },
          parent === folder
            ? null
            : h(
                "li",
                {},
                h("button", {
                  type: "button",
                  class: "small",
                  text: "↑ parent folder",
                  onclick: () => browse(parent),
                }),
              ),
          folders.map(({ name, model }) =>
            h(
              "li",
              {},
              model
                ? h("button", {
                    type: "button",
                    class: "small main",
                    text: `Open ${name}`,
                    onclick: () => open(`${folder}/${name}`),
                  })
                : h("button", {
                    type: "button",
                    class: "small",
                    text: `${name}/`,
                    onclick: () => browse(`${folder}/${name}`),
                  }),
            ),
          ),
          folders.length ? null : h("li", { class: "note", text: "no subfolders" }),
        ),
      );
    } catch (error) {
      put(browser, failure(error));
    }
  }
  const list = (names, label, act) =>
    names.length
      ? [
          h("h3", { text: label }),
          h(
            "ul",
            { class: "plainlist" },
            names.map((name) =>
              h(
                "li",
                {},
                h("button", {
                  type: "button",
                  class: "small",
                  "aria-pressed": String(name === current),
                  text: name,
                  onclick: () => act(name),
                }),
              ),
            ),
          ),
        ]
      : null;
  put(
    dialog,
    h(
      "header",
      {},
      h("h2", { text: "Open a model" }),
      h("button", {
        type: "button",
        class: "quiet",
        "aria-label": "Close",
        text: "×",
        onclick: close,
      }),
    ),
    list(shelf.models, "Available models", pick),
    shelf.opens
      ? [
          list(shelf.recent, "Recently opened", open),
          h("h3", { text: "Another folder" }),
          h(
            "form",
            {
              class: "ask",
              onsubmit: (event) => {
                event.preventDefault();
                open(path.value);
              },
            },
            path,
            h("button", { class: "main", text: "Open" }),
            h("button", {
              type: "button",
              text: "Browse",
              onclick: () => browse(path.value.trim() || "~"),
            }),
          ),
          h("p", {
            class: "note",
            text: "No code from a model folder is executed; pickle files are refused.",
          }),
          problem,
          browser,
        ]
      : h("p", {
          class: "note",
          text: "This studio can be reached from the network, so it opens only the folders it was started with: regard studio FOLDER …",
        }),
  );
  document.body.append(dialog);
  dialog.showModal();
}
