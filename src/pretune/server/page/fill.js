// Fill: click a word to hide it; the model's guesses as bars.

import { latest, post } from "/page/api.js";
import { bar, clear, debounce, field, findWords, h, percent, said, wordButtons } from "/page/dom.js";
import { pickModel } from "/page/picker.js";

const MASK = "[MASK]";
const isMask = (word) => /^(\[MASK\]|<mask>|_{3,})$/.test(word);

function mount(panel, models) {
  const picker = pickModel(models, "fill", {
    verb: "fill blanks",
    needs: "serve an encoder or an encoder-decoder with its vocabulary head, such as `pretune serve runs/bert`.",
    onchange: () => ask(),
  });
  if (!picker.model()) return clear(panel, picker.element);

  const hidden = new Set();
  const text = h("textarea", { rows: "3" });
  text.value = "The old man saw a big red bird in the garden.";
  const words = h("p", { class: "words", role: "group", "aria-label": "Words; press one to hide it" });
  const out = h("div", { "aria-live": "polite" });
  const pieces = h("select", { onchange: () => ask() }, [1, 2, 3].map((number) => h("option", { value: String(number) }, String(number))));
  const run = latest((message) => { clear(out, h("p", { class: "message" }, message)); });
  const askLater = debounce(() => ask(), 400);

  function showWords() {
    const focused = [...words.children].indexOf(document.activeElement);
    clear(words, wordButtons(text.value, {
      isPressed: (index, word) => hidden.has(index) || isMask(word.text),
      show: (word, pressed) => (pressed ? "▢ " + (isMask(word.text) ? "?" : word.text) : word.text),
      onpress: (index) => {
        if (!hidden.delete(index)) hidden.add(index);
        showWords();
        ask();
      },
    }));
    words.children[focused]?.focus();
  }

  function ask() {
    askLater.cancel();
    const blanks = findWords(text.value).filter((word, index) => hidden.has(index) || isMask(word.text));
    if (!blanks.length) {
      run.cancel();
      return clear(out, h("p", { class: "note" }, "Press a word above to hide it."));
    }
    let masked = "", position = 0;
    for (const word of blanks) {
      masked += text.value.slice(position, word.start) + MASK;
      position = word.end;
    }
    masked += text.value.slice(position);
    run(async (signal) => {
      const [result] = await post("/fill", {
        model: picker.model().id, texts: [masked], k: 8, pieces: Number(pieces.value),
      }, signal);
      clear(out, result.blanks.map((guesses, index) => showGuesses(blanks[index], guesses)), h("p", { class: "note" }, "Filled: ", said(result.filled)));
    });
  }

  function showGuesses(word, guesses) {
    const isRight = (guess) => guess.word.trim().toLowerCase() === word.text.toLowerCase();
    return h("section", { class: "card" },
      h("h3", {}, isMask(word.text) ? "Blank" : ["Hidden: ", said(word.text)]),
      h("ol", { class: "bars" }, guesses.map((guess) => bar(
        h("button", { type: "button", class: "plain", title: "Put it into the text", onclick: () => put(word, guess.word) }, said(guess.word)),
        guess.probability, percent(guess.probability), isRight(guess) ? "✓ the hidden word" : null))),
      isMask(word.text) || guesses.some(isRight) ? null : h("p", { class: "note" }, "The hidden word is not among the first eight."));
  }

  function put(word, filler) {
    text.value = text.value.slice(0, word.start) + filler.trim() + text.value.slice(word.end);
    hidden.clear();
    showWords();
    ask();
  }

  text.addEventListener("input", () => { hidden.clear(); showWords(); askLater(); });
  clear(panel,
    picker.element,
    field("Text", text),
    h("p", { class: "caption" }, "Press a word to hide it, and again to show it"),
    words,
    h("div", { class: "row" }, field("Tokens of a word at most", pieces, "More find longer words, and take longer.")),
    out);
  showWords();
  ask();
}

export const fill = { id: "fill", title: "Fill", capability: "fill", mount };
