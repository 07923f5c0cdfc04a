// Classify: labels with probabilities, tags and spans in the text, and the tokens that mattered.

import { latest, post } from "/page/api.js";
import { bar, clear, decimal, field, h, percent, said, table } from "/page/dom.js";
import { pickModel } from "/page/picker.js";

const MAX_LABELS = 12;
const MAX_TOKENS = 6;

/** Captions of the inputs of a kind of task. */
const CAPTIONS = { span: ["Question", "Passage"], choice: ["Text", "Options, one per line"] };

/** Texts that the fields have at first, by kind of task, and of two texts. */
const EXAMPLES = {
  pair: ["A man plays the guitar on a stage.", "Someone is making music."],
  span: ["Where does the river begin?", "The river begins in the mountains, passes three towns and reaches the sea."],
  choice: ["The children played outside because", "the sun was shining.\nthe soup was salty."],
  words: ["Maria Lopez flew from Paris to Tokyo on Monday."],
  opinion: ["A warm and funny film with a wonderful cast."],
  text: ["The new library opens on Monday, and the whole town is invited."],
};
const OPINIONS = /^(pos|neg|good|bad|great|like|dislike|star|[1-5]\b)/i;

/** Return the first texts of the fields of a task. */
function findExample(task) {
  if (EXAMPLES[task.kind]) return EXAMPLES[task.kind];
  if (task.has_pair) return EXAMPLES.pair;
  if (["tagging", "srl", "dependency"].includes(task.kind)) return EXAMPLES.words;
  return task.labels.some((label) => OPINIONS.test(label)) ? EXAMPLES.opinion : EXAMPLES.text;
}

function mount(panel, models) {
  const picker = pickModel(models, "predict", {
    verb: "classify",
    needs: "serve a fine-tuned run, such as one of `pretune finetune runs/bert --train reviews.csv --out runs/reviews`.",
    onchange: () => showForm(),
  });
  if (!picker.model()) return clear(panel, picker.element);

  const form = h("form", { onsubmit: (event) => { event.preventDefault(); ask(); } });
  const out = h("div", { "aria-live": "polite" });
  const run = latest((message) => { clear(out, h("p", { class: "message" }, message)); });
  let task, taskSelect, text, second, predicate;

  function showForm() {
    const { tasks } = picker.model().inputs;
    taskSelect = h("select", { onchange: () => showFields() }, tasks.map((item, index) => h("option", { value: String(index) }, item.name)));
    const fields = h("div", {});
    clear(form, tasks.length > 1 ? field("Task", taskSelect) : null, fields,
      h("div", { class: "row actions" }, h("button", { class: "primary" }, "Classify"), h("span", { class: "note" }, h("kbd", {}, "Ctrl"), "+", h("kbd", {}, "Enter"))));
    function showFields() {
      task = tasks[Number(taskSelect.value)];
      const [first, other] = CAPTIONS[task.kind] ?? ["Text", "Second text"];
      text = h("textarea", { rows: task.kind === "span" ? "1" : "3", required: true });
      second = task.has_pair || task.kind === "choice" ? h("textarea", { rows: "4", required: true }) : null;
      predicate = task.kind === "srl" ? h("input", { type: "number", min: "1", value: "3" }) : null;
      const example = findExample(task);
      text.value = example[0];
      if (second) second.value = example[1];
      clear(fields, field(first, text), second ? field(other, second) : null,
        predicate ? field("Number of the word whose arguments are tagged", predicate) : null);
      clear(out);
    }
    showFields();
  }
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  function readInput() {
    if (task.kind === "choice") return { text: text.value, choices: second.value.split("\n").map((line) => line.trim()).filter(Boolean) };
    if (second) return [text.value, second.value];
    if (predicate) return { text: text.value, predicate: Number(predicate.value) - 1 };
    return text.value;
  }

  function ask() {
    const model = picker.model(), input = readInput();
    const common = picker.model().inputs.tasks.length > 1 ? { model: model.id, task: task.name } : { model: model.id };
    const why = h("section", { class: "card", "aria-live": "polite" });
    run(async (signal) => {
      const [prediction] = await post("/predict", { ...common, inputs: [input] }, signal);
      if (prediction.reason) return clear(out, h("p", { class: "note" }, `No prediction: ${prediction.reason}.`));
      const explain = (label) => showImportance(why, model, { ...common, input, ...(label === undefined ? {} : { label }) }, signal);
      clear(out, h("section", { class: "card" }, h("h3", {}, "Prediction"), showPrediction(prediction, explain)), why);
      await explain();
    });
  }

  /** Return what a prediction has: probabilities, a score, tags, a tree, a span or a text. */
  function showPrediction(prediction, explain) {
    const parts = [];
    if (prediction.probabilities) {
      const names = task.kind === "choice" ? second.value.split("\n").map((line) => line.trim()).filter(Boolean) : null;
      const shares = Array.isArray(prediction.probabilities)
        ? prediction.probabilities.map((share, index) => [names?.[index] ?? String(index), share])
        : Object.entries(prediction.probabilities);
      const isPredicted = (name, index) => (prediction.tags ? prediction.tags.includes(name) : name === prediction.label || index === prediction.label);
      const rows = shares.map(([name, share], index) => ({ name, share, isPredicted: isPredicted(name, index) }))
        .sort((a, b) => b.share - a.share).slice(0, MAX_LABELS);
      parts.push(h("ol", { class: "bars" }, rows.map((row) => bar(
        h("button", { type: "button", class: "plain", title: "Show the tokens that matter for this label", onclick: () => explain(row.name) }, said(row.name)),
        row.share, percent(row.share), row.isPredicted ? "✓ predicted" : null))));
      if (shares.length > rows.length) parts.push(h("p", { class: "note" }, `${shares.length - rows.length} less likely labels are not shown.`));
    } else if (prediction.heads) {
      parts.push(showTree(text.value.split(/\s+/).filter(Boolean), prediction));
    } else if (prediction.tags) {
      parts.push(showTags(text.value.split(/\s+/).filter(Boolean), prediction.tags, explain));
    } else if (prediction.label !== undefined) {
      parts.push(h("p", { class: "answer" }, said(prediction.label)));
    }
    if (prediction.score !== undefined) parts.push(h("p", { class: "answer" }, `Score ${prediction.score}`));
    if (prediction.text !== undefined) {
      parts.push(h("p", { class: "answer" }, prediction.text ? said(prediction.text) : "No answer in the passage"));
      if (prediction.span) parts.push(showSpan(second?.value ?? text.value, prediction.span));
    }
    return parts;
  }

  async function showImportance(element, model, request, signal) {
    if (!model.capabilities.includes("explain")) {
      return clear(element, h("p", { class: "note" }, "The tokens that mattered are not shown: ", said(model.missing.explain), "."));
    }
    try {
      const result = await post("/explain", request, signal);
      clear(element, h("h3", {}, "Tokens that mattered for ", said(`“${result.name}”`)), showTokens(result));
    } catch (error) {
      if (!signal.aborted) clear(element, h("p", { class: "note" }, error.message));
    }
  }

  showForm();
  clear(panel, picker.element, form, out);
}

/** Return a text with its tagged words marked; neighbouring words of one entity share a mark. */
function showTags(words, tags, explain) {
  const groups = [];
  words.forEach((word, index) => {
    const tag = tags[index] ?? "O", name = tag.replace(/^[BI]-/, "");
    const last = groups.at(-1);
    if (last && last.name === name && tag !== "O" && !tag.startsWith("B-")) last.words.push(word);
    else groups.push({ name, tag, words: [word], isTagged: tag !== "O" });
  });
  const names = [...new Set(groups.filter((group) => group.isTagged).map((group) => group.name))];
  return [
    h("p", { class: "reading" }, groups.flatMap((group) => [
      group.isTagged
        ? h("mark", { class: `tag c${names.indexOf(group.name) % 6}` }, said(group.words.join(" ")), " ",
          h("button", { type: "button", class: "plain", title: "Show the tokens that matter for this tag", onclick: () => explain(group.tag) }, said(group.name)))
        : said(group.words.join(" ")), " "])),
    names.length ? null : h("p", { class: "note" }, "No word is tagged."),
  ];
}

function showSpan(passage, [start, end]) {
  return h("p", { class: "reading" }, said(passage.slice(0, start)), h("mark", {}, said(passage.slice(start, end))), said(passage.slice(end)));
}

function showTree(words, { heads, relations }) {
  return table(words.map((word, index) => [word, relations[index], heads[index] ? words[heads[index] - 1] : "(root)"]), { head: ["word", "relation", "depends on"] });
}

/** Return tokens with their importance: shade and underline, blue and solid for the label, orange and wavy against it; the largest as a list. */
function showTokens({ name, tokens, scores, special }) {
  const rows = tokens.map((token, index) => ({ token, score: scores[index], isSpecial: special[index] }));
  const largest = Math.max(...rows.filter((row) => !row.isSpecial).map((row) => Math.abs(row.score)), 1e-12);
  const chips = rows.map((row) => {
    const share = Math.min(Math.abs(row.score) / largest, 1);
    const chip = said(row.token, "span", {
      class: `token ${row.isSpecial ? "special" : row.score < 0 ? "against" : "for"}`,
      title: `${row.token}: ${decimal(row.score / largest)}`,
    });
    if (!row.isSpecial) chip.style.setProperty("--share", share.toFixed(3));
    return [chip, " "];
  });
  const legend = ["for", "against"].map((side) => said(`${side} “${name}”`, "span", { class: `token ${side}` }));
  for (const sample of legend) sample.style.setProperty("--share", "1");
  const strongest = rows.filter((row) => !row.isSpecial).sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, MAX_TOKENS);
  return [
    h("p", { class: "key" }, "Tokens ", legend[0], " and ", legend[1]),
    h("p", { class: "reading tokens" }, chips),
    h("ol", { class: "bars" }, strongest.map((row) => bar(said(row.token), Math.abs(row.score) / largest, decimal(row.score / largest), row.score < 0 ? "against" : "for", row.score < 0 ? "against" : "for"))),
    h("p", { class: "note" }, "Gradient × input, relative to the largest. Grey tokens are no text."),
  ];
}

export const classify = { id: "classify", title: "Classify", capability: "predict", mount };
