// Search: an index by meaning (dense vectors) beside the same index by words (BM25).

import { latest, post } from "/page/api.js";
import { clear, field, findWords, h, said } from "/page/dom.js";
import { pickModel } from "/page/picker.js";

function mount(panel, models) {
  const picker = pickModel(models, "search", {
    verb: "search",
    needs: "serve an index, such as one of `pretune index runs/bert --input texts.txt --out library`.",
    onchange: () => ask(),
  });
  if (!picker.model()) return clear(panel, picker.element);

  const query = h("input", { type: "search", required: true, placeholder: "What are you looking for?" });
  const count = h("select", { onchange: () => ask() }, [5, 10, 20].map((number) => h("option", { value: String(number) }, String(number))));
  const out = h("div", { "aria-live": "polite" });
  const run = latest((message) => { clear(out, h("p", { class: "message" }, message)); });

  function ask() {
    if (!query.value.trim()) return;
    run(async (signal) => {
      const body = { model: picker.model().id, queries: [query.value], k: Number(count.value) };
      const [[dense], [words]] = await Promise.all([post("/search", body, signal), post("/search", { ...body, bm25: true }, signal)]);
      clear(out, h("div", { class: "columns" },
        showHits("By meaning", "dense vectors", dense, words, "by words", query.value),
        showHits("By words", "BM25", words, dense, "by meaning", query.value)));
    });
  }

  clear(panel, picker.element,
    h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); ask(); } },
      field("Query", query), field("Results", count), h("button", { class: "primary" }, "Search")),
    out);
}

function showHits(title, method, hits, others, otherName, query) {
  return h("section", { class: "card" },
    h("h3", {}, title, " ", h("small", {}, method)),
    hits.length ? null : h("p", { class: "note" }, "No text has a word of the query."),
    h("ol", { class: "hits numbered" }, hits.map((hit) => {
      const rank = others.findIndex((other) => other.id === hit.id);
      return h("li", {},
        h("span", {}, markWords(hit.text, query), h("small", {}, rank < 0 ? ` not among the first ${otherName}` : ` ${rank + 1}. ${otherName}`)),
        h("span", { class: "value" }, hit.score.toFixed(2)));
    })));
}

/** Return a text with the words of a query marked. */
function markWords(text, query) {
  const words = new Set(findWords(query).map((word) => word.text.toLowerCase()));
  const parts = [];
  let position = 0;
  for (const word of findWords(text)) {
    if (!words.has(word.text.toLowerCase())) continue;
    parts.push(said(text.slice(position, word.start)), h("mark", {}, said(word.text)));
    position = word.end;
  }
  return [...parts, said(text.slice(position))];
}

export const search = { id: "search", title: "Search", capability: "search", mount };
