// Write: the text grows while you type; Tab takes a continuation.

import { latest, stream } from "/page/api.js";
import { clear, debounce, field, h, said, slider } from "/page/dom.js";
import { pickModel } from "/page/picker.js";

const PAUSE_MILLISECONDS = 350;
const MAX_SHORTENINGS = 8;

function mount(panel, models) {
  const picker = pickModel(models, "complete", {
    verb: "write",
    needs: "serve a decoder or an encoder-decoder, such as `pretune serve runs/gpt`.",
    onchange: () => ask(),
  });
  if (!picker.model()) return clear(panel, picker.element);

  let texts = [], selected = 0;
  const text = h("textarea", { rows: "6", spellcheck: "false", "aria-describedby": "write-keys", placeholder: "Once upon a time" });
  const mirror = h("div", { class: "mirror", "aria-hidden": "true" });
  const list = h("ol", { class: "alternatives", "aria-label": "Continuations" });
  const note = h("p", { class: "note", role: "status" });
  const run = latest((message) => { note.textContent = message; });
  const askLater = debounce(() => ask(), PAUSE_MILLISECONDS);
  const onchange = () => ask();
  const temperature = slider("Temperature", { min: 0, max: 2, step: 0.05, value: 0.8, onchange });
  const topP = slider("Top-p", { min: 0.05, max: 1, step: 0.05, value: 0.95, onchange });
  const count = slider("Alternatives", { min: 1, max: 5, step: 1, value: 3, onchange });
  const length = slider("Tokens", { min: 1, max: 60, step: 1, value: 12, onchange });

  const isRewriting = () => picker.model().inputs.shape === "encoder-decoder";

  function show() {
    clear(list, texts.map((continuation, index) => h("li", {},
      h("button", {
        type: "button", class: "alternative", "aria-current": String(index === selected),
        onclick: () => { selected = index; take(); },
      }, said(continuation || "…")))));
    const ghost = isRewriting() ? "" : texts[selected] ?? "";
    clear(mirror, h("span", {}, text.value), said(ghost, "span", { class: "ghost" }), "\u200b");
    text.style.height = "auto";
    text.style.height = `${Math.max(text.scrollHeight, mirror.scrollHeight)}px`;
  }

  /** Ask for continuations; of a text that is too long for the model, of its last part. */
  function ask() {
    askLater.cancel();
    texts = [];
    selected = 0;
    note.textContent = "";
    show();
    const model = picker.model();
    if (!text.value.trim()) return run.cancel();
    run(async (signal) => {
      let prompt = text.value;
      const heat = Number(temperature.input.value);
      const options = {
        model: model.id, max_tokens: Number(length.input.value), temperature: heat, top_p: Number(topP.input.value),
        n: heat === 0 ? 1 : Number(count.input.value),
      };
      for (let attempt = 0; ; attempt += 1) {
        try {
          await stream("/v1/completions", { ...options, prompt }, (index, piece) => {
            if (signal.aborted) return;
            texts[index] = (texts[index] ?? "") + piece;
            texts = Array.from(texts, (part) => part ?? "");
            show();
          }, signal);
          break;
        } catch (error) {
          const isTooLong = error.status === 400 && /token|length|position/.test(error.message) && prompt.length > 40;
          if (!isTooLong || attempt === MAX_SHORTENINGS) throw error;
          prompt = prompt.slice(Math.ceil(prompt.length / 2)).replace(/^\S*\s/, "");
        }
      }
      if (prompt !== text.value) note.textContent = "The text is longer than the model can read: it continues the last part.";
      else if (!texts.some(Boolean)) note.textContent = "The model ends the text here.";
    });
  }

  function take() {
    if (!texts[selected]) return;
    text.value = isRewriting() ? texts[selected] : text.value + texts[selected];
    text.focus();
    text.setSelectionRange(text.value.length, text.value.length);
    ask();
  }

  text.addEventListener("input", () => { run.cancel(); texts = []; show(); askLater(); });
  text.addEventListener("keydown", (event) => {
    const hasTexts = texts.some(Boolean);
    if (event.key === "Tab" && !event.shiftKey && hasTexts) {
      event.preventDefault();
      take();
    } else if (event.key === "Escape") {
      run.cancel();
      askLater.cancel();
      texts = [];
      show();
    } else if (event.altKey && hasTexts && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      selected = (selected + (event.key === "ArrowDown" ? 1 : texts.length - 1)) % texts.length;
      show();
    }
  });

  clear(panel,
    picker.element,
    field("Text", h("span", { class: "paper" }, text, mirror)),
    h("p", { class: "note", id: "write-keys" },
      h("kbd", {}, "Tab"), " takes the marked continuation, ", h("kbd", {}, "Alt"), "+", h("kbd", {}, "↑"), h("kbd", {}, "↓"),
      " marks another, ", h("kbd", {}, "Esc"), " drops them (then ", h("kbd", {}, "Tab"), " leaves the field). Or click one."),
    note, list,
    h("div", { class: "row" }, temperature.element, topP.element, count.element, length.element));
  show();
}

export const write = { id: "write", title: "Write", capability: "complete", mount };
