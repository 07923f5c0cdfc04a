// Elements. Every text of a model goes through here as a text node, so that it can never become markup.

/** Return an element: attributes, `on…` handlers and properties of `options`, then children (text or nodes). */
export function h(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return an SVG element. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Return text of a model or of a file; marks that change the direction of text stay inside it. */
export function said(text, tag = "span", options = {}) {
  return h(tag, { ...options, class: `said ${options.class ?? ""}`.trim() }, String(text));
}

export function clear(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a labelled field: a caption above an input, select or textarea. */
export function field(caption, input, hint) {
  return h("label", { class: "field" }, h("span", { class: "caption" }, caption), input, hint ? h("small", {}, hint) : null);
}

/** Return a slider that shows its value. */
export function slider(caption, { min, max, step, value, onchange }) {
  const shown = h("output", {}, String(value));
  const input = h("input", {
    type: "range", min: String(min), max: String(max), step: String(step),
    oninput: () => { shown.textContent = input.value; },
    onchange: () => onchange?.(),
  });
  input.value = String(value);
  return { input, element: h("label", { class: "field" }, h("span", { class: "caption" }, caption, " ", shown), input) };
}

export function percent(share) {
  const value = 100 * share;
  return `${value > 0 && value < 0.1 ? "<0.1" : value.toFixed(value < 9.95 ? 1 : 0)} %`;
}

export function decimal(value) {
  return (value < 0 ? "−" : "") + Math.abs(value).toFixed(2);
}

/** Return a row with a bar: a name, a share from 0 to 1 as length, and the value in writing; `kind` is a class of the bar. */
export function bar(name, share, value, note, kind = "") {
  const fill = h("span", { class: `fill ${kind}`.trim() });
  fill.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return h("li", { class: "bar" },
    h("span", { class: "name" }, name, note ? h("small", {}, ` ${note}`) : null),
    h("span", { class: "track", "aria-hidden": "true" }, fill),
    h("span", { class: "value" }, value));
}

/** Return a table of names and values, or with `head` of rows below a header. */
export function table(rows, { head = null, caption = null } = {}) {
  return h("div", { class: "wide", tabindex: head && head.length > 2 ? "0" : null },
    h("table", {},
      caption ? h("caption", {}, caption) : null,
      head ? h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))) : null,
      h("tbody", {}, rows.map(([first, ...cells]) =>
        h("tr", {}, said(first, "th", { scope: "row" }), cells.map((cell) => said(cell, "td")))))));
}

/** Return a function that calls another one when it has not been called for some time. */
export function debounce(work, milliseconds) {
  let timer = 0;
  const later = () => { clearTimeout(timer); timer = setTimeout(work, milliseconds); };
  later.cancel = () => clearTimeout(timer);
  return later;
}

const WORD = /\[MASK\]|<mask>|_{3,}|[\p{L}\p{N}\p{M}_]+(?:['’][\p{L}\p{N}\p{M}_]+)?/gu;

/** Return the words of a text with their characters: {text, start, end}. */
export function findWords(text) {
  return [...text.matchAll(WORD)].map((match) => ({ text: match[0], start: match.index, end: match.index + match[0].length }));
}

/** Return the words of a text as buttons, with what is between them as text. */
export function wordButtons(text, { isPressed, onpress, show = (word) => word.text }) {
  const parts = [];
  let position = 0;
  findWords(text).forEach((word, index) => {
    parts.push(text.slice(position, word.start));
    const pressed = isPressed(index, word);
    parts.push(h("button", {
      type: "button", class: "word", "aria-pressed": String(pressed), onclick: () => onpress(index, word),
    }, said(show(word, pressed))));
    position = word.end;
  });
  return [...parts, text.slice(position)];
}

/** Move the focus among elements by arrow keys, of which one is in the order of Tab; `columns` of a grid. */
export function roveFocus(elements, { columns = 1, onfocus = () => {} } = {}) {
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  elements.forEach((element, index) => {
    element.tabIndex = index ? -1 : 0;
    element.addEventListener("focus", () => {
      elements.forEach((other) => { other.tabIndex = other === element ? 0 : -1; });
      onfocus(index);
    });
    element.addEventListener("keydown", (event) => {
      let target = event.key === "Home" ? 0 : event.key === "End" ? elements.length - 1 : index + (moves[event.key] ?? NaN);
      if (columns === 1 && (event.key === "ArrowDown" || event.key === "ArrowUp")) target = index + moves[event.key];
      if (elements[target]) { event.preventDefault(); elements[target].focus(); }
    });
  });
}
