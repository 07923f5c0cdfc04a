// Attention: heads by layer; point at a token to see what it attends to.

import { latest, post } from "/page/api.js";
import { clear, debounce, field, h, percent, roveFocus, said } from "/page/dom.js";
import { pickModel } from "/page/picker.js";

const CELL = 3;

function mount(panel, models) {
  const picker = pickModel(models, "attention", {
    verb: "show attention",
    needs: "serve a transformer with its tokenizer, such as `pretune serve runs/bert`; recurrent models have no attention.",
    onchange: () => { updateParts(); ask(); },
  });
  if (!picker.model()) return clear(panel, picker.element);

  const text = h("textarea", { rows: "2", oninput: () => askLater() });
  text.value = "The old man saw a bird because it sang.";
  const part = h("select", { onchange: () => ask() }), partField = field("Part", part);
  const out = h("div", {});
  const run = latest((message) => { clear(out, h("p", { class: "message", role: "status" }, message)); });
  const askLater = debounce(() => ask(), 500);

  function updateParts() {
    const names = Object.keys(picker.model().inputs.attention);
    clear(part, names.map((name) => h("option", { value: name }, name)));
    partField.hidden = names.length < 2;
  }

  function ask() {
    askLater.cancel();
    if (!text.value.trim()) { run.cancel(); return clear(out); }
    run(async (signal) => {
      const view = await post("/heads", { model: picker.model().id, text: text.value, part: part.value }, signal);
      showView(out, view);
    });
  }

  updateParts();
  clear(panel, picker.element, field("Text", text), partField, out);
  ask();
}

/** Show the grid of heads, and the tokens of the chosen one. */
function showView(out, view) {
  let head = [view.weights.length - 1, -1], token = Math.min(1, view.tokens.length - 1);
  const layers = view.weights.map((heads) => [mean(heads), ...heads]);  // the mean is column 0
  const names = view.patterns.map((patterns) => ["mean", ...patterns]);
  const detail = h("section", { class: "card", "aria-live": "polite" });
  const cells = layers.flatMap((row, layer) => row.map((weights, column) => {
    const title = column ? `Layer ${layer + 1}, head ${column}` : `Layer ${layer + 1}, mean of its heads`;
    const pattern = column ? names[layer][column] : "mean";
    return h("button", {
      type: "button", class: "head", "aria-label": pattern && column ? `${title}: ${pattern}` : title, title: pattern && column ? `${title}: ${pattern}` : title,
      "aria-pressed": "false", onclick: () => choose(layer, column),
    }, drawWeights(weights), h("small", {}, pattern || "–"));
  }));
  const columns = layers[0].length;
  roveFocus(cells, { columns });

  function choose(layer, column) {
    head = [layer, column];
    cells.forEach((cell, index) => cell.setAttribute("aria-pressed", String(index === layer * columns + column)));
    showTokens();
  }

  /** Show the tokens that attend as buttons, and beside each key its share of the chosen token's attention. */
  function showTokens() {
    const [layer, column] = head, weights = layers[layer][column];
    const shares = h("ol", { class: "keys" });
    const title = h("h3", {}), heading = h("h4", {});
    title.textContent = column ? `Layer ${layer + 1}, head ${column}${names[layer][column] ? `: ${names[layer][column]}` : ""}` : `Layer ${layer + 1}, mean of its heads`;
    const buttons = view.tokens.map((name, index) => h("button", {
      type: "button", class: "word", "aria-pressed": "false",
      onmouseenter: () => point(index), onclick: () => point(index),
    }, said(name)));
    function point(index) {
      token = index;
      buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === index)));
      clear(heading, said(`“${view.tokens[index]}”`), " attends to");
      const largest = Math.max(...weights[index], 1e-9);
      clear(shares, view.keys.map((key, other) => {
        const weight = weights[index][other], column_ = h("span", { class: "column", "aria-hidden": "true" }, h("span", { class: "fill" }));
        column_.firstChild.style.height = `${100 * weight / largest}%`;
        return h("li", { class: weight === largest ? "largest" : "" }, column_, said(key, "span", { class: "key" }), h("span", { class: "value" }, percent(weight)));
      }));
    }
    roveFocus(buttons, { onfocus: point });
    clear(detail, title, h("p", { class: "caption" }, "Point at a token, or use the arrow keys"), h("p", { class: "words", role: "group", "aria-label": "Tokens" }, buttons), heading, shares);
    point(Math.min(token, view.tokens.length - 1));
  }

  const grid = h("div", { class: "heads", role: "group", "aria-label": "Heads by layer; arrow keys move" });
  grid.style.setProperty("--columns", String(columns));
  layers.forEach((row, layer) => grid.append(h("span", { class: "layer" }, `Layer ${layer + 1}`), ...cells.slice(layer * columns, (layer + 1) * columns)));
  clear(out,
    h("p", { class: "note" }, "A row is a layer, a picture a head: each line of it is a token, strongest where it attends. The name is the pattern of the head in this text."),
    view.truncated ? h("p", { class: "note" }, `Only the first ${view.tokens.length} tokens are shown.`) : null,
    h("div", { class: "wide" }, grid), detail);
  choose(head[0], 0);
}

function mean(heads) {
  return heads[0].map((row, query) => row.map((_, key) => heads.reduce((sum, head) => sum + head[query][key], 0) / heads.length));
}

/** Return a picture of attention weights, in the colour of the text. */
function drawWeights(weights) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  canvas.width = CELL * weights[0].length;
  canvas.height = CELL * weights.length;
  const context = canvas.getContext("2d");
  weights.forEach((row, query) => {
    const largest = Math.max(...row, 1e-9);
    row.forEach((weight, key) => {
      context.globalAlpha = weight / largest;
      context.fillStyle = "#7a8aa0";
      context.fillRect(CELL * key, CELL * query, CELL, CELL);
    });
  });
  return canvas;
}

export const attention = { id: "attention", title: "Attention", capability: "attention", mount };
