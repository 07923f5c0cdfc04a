// Models: what each can do, its card and data card, cost, and training curves.

import { get, latest } from "/page/api.js";
import { drawChart } from "/page/chart.js";
import { clear, field, h, said, table } from "/page/dom.js";

const NAMES = {
  complete: "write", embed: "embed", fill: "fill blanks", predict: "classify", explain: "explain a prediction", score: "score texts",
  search: "search", neighbors: "find neighbours", compare: "compare words", attention: "show attention", tokenize: "tokenize",
};

function mount(panel, models) {
  if (!models.length) return clear(panel, h("p", { class: "message" }, "No model is served."));
  const select = h("select", { onchange: () => show() }, models.map((model) => h("option", { value: model.id }, model.id)));
  const out = h("div", { "aria-live": "polite" });
  const run = latest((message) => { clear(out, h("p", { class: "message" }, message)); });

  function show() {
    const model = models.find((item) => item.id === select.value);
    run(async (signal) => {
      const { results } = await get(`/card?model=${encodeURIComponent(model.id)}`, signal);
      clear(out, showModel(model, results));
    });
  }

  clear(panel, field("Model", select), out);
  show();
}

function showModel(model, card) {
  const missing = Object.entries(model.missing);
  const known = new Set((card.run ?? []).map(([name]) => name));
  return [
    section("Abilities",
      h("ul", { class: "chips" }, model.capabilities.map((name) => h("li", {}, `✓ ${NAMES[name] ?? name}`))),
      missing.length ? h("details", {}, h("summary", {}, `It cannot do ${missing.length} other things`),
        h("ul", {}, missing.map(([name, reason]) => h("li", {}, h("b", {}, NAMES[name] ?? name), ": ", said(reason))))) : null),
    card.notes.map((note) => h("p", { class: "message" }, said(note))),
    section("Model", table([...(card.run ?? []), ...card.facts.filter(([name]) => !known.has(name))])),
    card.scores.length ? section("Scores", table(card.scores.slice(1), { head: card.scores[0] })) : null,
    card.curves.length ? section("Training curves", h("div", { class: "columns" }, card.curves.map(drawChart))) : null,
    card.cost.length ? section("Cost of training", table(card.cost)) : null,
    card.data ? section("Data card",
      h("p", {}, said(card.data.splits.join("; "))),
      table(card.data.sources.slice(1), { head: card.data.sources[0] }),
      table(card.data.facts)) : null,
    card.card ? section("Model card", h("details", {}, h("summary", {}, "README.md"), said(card.card, "pre"))) : null,
    card.run ? null : h("p", { class: "note" }, "Runs of pretune also show cost, data and training curves."),
  ];
}

function section(title, ...children) {
  return h("section", { class: "card" }, h("h3", {}, title), ...children);
}

export const models = { id: "models", title: "Models", capability: null, mount };
