// Chat: messages and answers in turn; an answer grows while it is generated.

import { latest, stream } from "/page/api.js";
import { clear, field, h, said, slider } from "/page/dom.js";
import { pickModel } from "/page/picker.js";

function mount(panel, models) {
  const picker = pickModel(models, "chat", {
    verb: "chat", needs: "serve a model with a chat template, such as `pretune serve smollm2`.", onchange: () => restart(),
  });
  if (!picker.model()) return clear(panel, picker.element);

  let messages = [];
  const list = h("ol", { class: "chat", "aria-label": "Chat", "aria-live": "polite" });
  const note = h("p", { class: "note", role: "status" });
  const text = h("textarea", { rows: "2", required: true, placeholder: "Write a message" });
  const system = h("textarea", { rows: "1", placeholder: "How to answer" });
  const temperature = slider("Temperature", { min: 0, max: 2, step: 0.05, value: 0.7 });
  const topP = slider("Top-p", { min: 0.05, max: 1, step: 0.05, value: 0.95 });
  const length = slider("Tokens", { min: 16, max: 512, step: 16, value: 256 });
  const halt = h("button", { type: "button", hidden: true, onclick: () => { run.cancel(); finish(); } }, "Stop");
  const run = latest((message) => {
    note.textContent = message;
    if (!messages.at(-1)?.content) { // the message was not answered
      messages.pop();
      text.value ||= messages.pop()?.content ?? "";
    }
    finish();
  });

  function show() {
    clear(list, messages.map((message) => h("li", { class: message.role }, said(message.content || "…"))));
    list.lastElementChild?.scrollIntoView({ block: "nearest" });
  }

  function finish() {
    halt.hidden = true;
    if (messages.at(-1) && !messages.at(-1).content) messages.at(-1).content = " ";
    show();
  }

  function restart() {
    run.cancel();
    messages = [];
    note.textContent = "";
    finish();
  }

  function ask() {
    const content = text.value;
    if (!content.trim() || !halt.hidden) return;
    const first = system.value.trim() ? [{ role: "system", content: system.value }] : [];
    const answer = { role: "assistant", content: "" };
    messages.push({ role: "user", content });
    const body = {
      model: picker.model().id, max_tokens: Number(length.input.value), temperature: Number(temperature.input.value),
      top_p: Number(topP.input.value),
    };
    let asked = [...messages];
    messages.push(answer);
    text.value = note.textContent = "";
    halt.hidden = false;
    show();
    run(async (signal) => {
      for (;;) {
        try {
          await stream("/v1/chat/completions", { ...body, messages: [...first, ...asked] }, (index, piece) => {
            if (signal.aborted) return;
            answer.content += piece;
            show();
          }, signal);
          break;
        } catch (error) {
          if (error.status !== 400 || asked.length < 3 || !/limit|characters/.test(error.message)) throw error;
          asked = asked.slice(2); // the oldest turn
          note.textContent = "The chat is longer than the model can read: it answers without the oldest messages.";
        }
      }
      finish();
    });
  }

  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  clear(panel, picker.element, list, note,
    h("form", { onsubmit: (event) => { event.preventDefault(); ask(); } },
      field("Message", text, "Enter sends, Shift+Enter starts a line."),
      h("div", { class: "row actions" },
        h("button", { class: "primary" }, "Send"), halt, h("button", { type: "button", onclick: restart }, "New chat"))),
    h("details", {}, h("summary", {}, "Settings"), field("System message", system),
      h("div", { class: "row" }, temperature.element, topP.element, length.element)));
}

export const chat = { id: "chat", title: "Chat", capability: "chat", isOptional: true, mount };
