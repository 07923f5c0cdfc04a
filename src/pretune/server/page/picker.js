// Choice of a model for a tab: only those that can do it; what the others lack is one line each.

import { field, h, said } from "/page/dom.js";

/**
 * Return the models with a capability, and an element to choose one of them.
 * Without such a model the element is one line: what is missing, and how to get it.
 */
export function pickModel(models, capability, { verb, needs, onchange = () => {} }) {
  const able = models.filter((model) => model.capabilities.includes(capability));
  const others = models.filter((model) => !model.capabilities.includes(capability));
  if (!able.length) {
    return { model: () => null, element: h("p", { class: "message" }, `No served model can ${verb}: `, ...code(needs)) };
  }
  const select = h("select", { onchange: () => onchange(current()) }, able.map((model) => h("option", { value: model.id }, model.id)));
  const current = () => able.find((model) => model.id === select.value);
  const reasons = others.length
    ? h("details", { class: "missing" },
      h("summary", {}, `${others.length} other model${others.length > 1 ? "s" : ""} cannot ${verb}`),
      h("ul", {}, others.map((model) =>
        h("li", {}, h("b", {}, said(model.id)), ": ", said(model.missing[capability] ?? "not loaded")))))
    : null;
  return { model: current, element: h("div", { class: "picker" }, field("Model", select), reasons) };
}

/** Return a text whose parts between backticks are code. */
export function code(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}
