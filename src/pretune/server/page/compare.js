// Compare: a word in two sentences; its neighbours and similarity, static beside contextual.

import { latest, post } from "/page/api.js";
import { bar, clear, debounce, decimal, field, findWords, h, said, wordButtons } from "/page/dom.js";
import { pickModel } from "/page/picker.js";

const NEIGHBORS = 6;
const CONTEXT = 45;

/** Texts that are searched for neighbours at first: those of a model may hold anything. */
const TEXTS = [
  "The boat reached the shore of the lake before dark.", "They walked along the river to the old bridge.",
  "Grass grows on both sides of the stream.", "The fishermen sat on the bank and waited.",
  "Water ran over the stones at the edge of the field.", "The path follows the coast to a small harbour.",
  "She keeps her savings in an account.", "He paid the bill with a card at the shop.",
  "The bank lends money to small companies.", "The office opens at nine and closes at five.",
  "Her brother works in finance in the city.", "The price of a loan depends on the interest.",
  "The old house stands at the end of the street.", "Children play in the garden behind the school.",
  "A bird sings in the tall tree by the window.", "The train to the mountains leaves in the morning.",
  "It rained all night, and the roads are wet.", "The museum shows paintings of the sea.",
  "We bought bread, cheese and apples at the market.", "The teacher reads a story to the class.",
  "My sister plays the piano and sings well.", "The dog sleeps in the warm sun.",
  "They planted flowers in front of the town hall.", "The new film is funny and kind.",
];

function mount(panel, models) {
  const picker = pickModel(models, "compare", {
    verb: "compare words",
    needs: "serve a model with a tokenizer, such as `pretune serve runs/bert`, or a file of word vectors.",
    onchange: () => ask(),
  });
  if (!picker.model()) return clear(panel, picker.element);

  const out = h("div", { "aria-live": "polite" });
  const layer = h("select", { onchange: () => ask() });
  const source = h("select", { onchange: () => ask() },
    h("option", { value: "examples" }, "example sentences"), h("option", { value: "" }, "held-out texts"));
  const run = latest((message) => { clear(out, h("p", { class: "message" }, message)); });
  const askLater = debounce(() => ask(), 500);
  const sides = ["He sat on the bank of the river.", "She put the money in the bank."].map((sentence, number) => buildSide(sentence, number, askLater));

  function ask() {
    askLater.cancel();
    const model = picker.model();
    if (sides.some((side) => !side.word())) return clear(out, h("p", { class: "note" }, "Choose a word in each sentence."));
    const [first, second] = sides.map((side) => ({ word: side.word(), sentence: side.text.value }));
    run(async (signal) => {
      clear(out, h("p", { class: "note" }, "Comparing …"));
      const options = { model: model.id, k: NEIGHBORS, texts: source.value ? TEXTS : [], ...(layer.value && model.inputs.shape !== "vectors" ? { layer: Number(layer.value) } : {}) };
      const similarity = await post("/compare", { model: model.id, first, second }, signal);
      updateLayers(similarity.layers.length);
      const lists = h("div", { class: "columns" }, h("p", { class: "note" }, "Searching for neighbours …"));
      clear(out, showSimilarity(similarity), lists);
      const neighbors = await Promise.all([first, second].map((side) => post("/neighbors", { ...options, ...side }, signal)));
      clear(lists, neighbors.map((result, index) => showNeighbors([first, second][index], result)));
    });
  }

  function updateLayers(count) {
    const chosen = layer.value;
    const names = Array.from({ length: count }, (_, index) => [String(index), index ? `layer ${index}` : "embeddings"]);
    clear(layer, h("option", { value: "" }, "last layer"), names.map(([value, name]) => h("option", { value }, name)));
    layer.value = names.some(([value]) => value === chosen) ? chosen : "";
    layer.disabled = !count;
  }

  function showSimilarity({ layers, static: fixed }) {
    const place = layer.value === "" ? layers.length - 1 : Number(layer.value);
    return h("section", { class: "card" },
      h("h3", {}, "How similar are the two words?"),
      h("ol", { class: "bars" },
        layers.length ? bar("In context", layers[place], decimal(layers[place]), layer.value === "" ? "last layer" : place ? `layer ${place}` : "embeddings") : null,
        bar("Static", fixed, decimal(fixed), "without context")),
      layers.length
        ? h("details", {}, h("summary", {}, "Every layer"), h("ol", { class: "bars" }, layers.map((value, index) => bar(index ? `Layer ${index}` : "Embeddings", value, decimal(value)))))
        : h("p", { class: "note" }, "Word vectors have one vector per word, whatever its sentence."),
      h("p", { class: "note" }, "Cosine of the two vectors: 1 is the same direction, 0 unrelated."));
  }

  updateLayers(0);
  clear(panel, picker.element, h("div", { class: "columns" }, sides.map((side) => side.element)), h("div", { class: "row" }, field("Layer of the neighbours", layer), field("Texts to search for them", source)), out);
  ask();
}

/** Return a sentence with one chosen word; the second word by default is that of both sentences. */
function buildSide(sentence, number, onchange) {
  let chosen = "bank";
  const text = h("textarea", { rows: "2" });
  text.value = sentence;
  const words = h("p", { class: "words", role: "group", "aria-label": `Words of sentence ${number + 1}; press the one to compare` });
  const word = () => findWords(text.value).find((item) => item.text.toLowerCase() === chosen.toLowerCase())?.text;

  function show() {
    let isFirst = true;  // only the first occurrence is compared
    clear(words, wordButtons(text.value, {
      isPressed: (_, item) => {
        const isChosen = isFirst && item.text.toLowerCase() === chosen.toLowerCase();
        isFirst = isFirst && !isChosen;
        return isChosen;
      },
      show: (item, pressed) => (pressed ? `▸ ${item.text}` : item.text),
      onpress: (index, item) => { chosen = item.text; show(); words.children[index]?.focus(); onchange(); },
    }));
  }
  text.addEventListener("input", () => { show(); onchange(); });
  show();
  return { text, word, element: h("div", {}, field(`Sentence ${number + 1}`, text), words) };
}

function showNeighbors({ word }, { context, static: fixed, words }) {
  return h("section", { class: "card" },
    h("h3", {}, "Neighbours of ", said(`“${word}”`)),
    context.length ? [h("h4", {}, `In context, among ${words.toLocaleString("en")} words of text`), h("ol", { class: "hits" }, context.map(showOccurrence))] : null,
    h("details", { open: !context.length }, h("summary", {}, "Static vector: neighbours in the whole vocabulary"),
      h("ol", { class: "bars" }, fixed.map((item) => bar(said(item.word), item.score, decimal(item.score))))));
}

function showOccurrence({ word, text, start, score }) {
  const end = start + word.length, before = text.slice(Math.max(start - CONTEXT, 0), start), after = text.slice(end, end + CONTEXT);
  return h("li", {},
    h("span", {}, start > CONTEXT ? "…" : "", said(before), h("mark", {}, said(word)), said(after), end + CONTEXT < text.length ? "…" : ""),
    h("span", { class: "value" }, decimal(score)));
}

export const compare = { id: "compare", title: "Compare", capability: "compare", mount };
