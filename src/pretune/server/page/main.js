// The page: tabs, the models of the server, and the token if it needs one.

import { get, setToken } from "/page/api.js";
import { clear, h } from "/page/dom.js";
import { attention } from "/page/attention.js";
import { chat } from "/page/chat.js";
import { classify } from "/page/classify.js";
import { compare } from "/page/compare.js";
import { fill } from "/page/fill.js";
import { models } from "/page/models.js";
import { search } from "/page/search.js";
import { write } from "/page/write.js";

const ALL_TABS = [chat, write, fill, classify, compare, attention, search, models];
const POLL_MILLISECONDS = 1000;
const status = document.getElementById("status");

function report(message) {
  status.textContent = message;
  status.hidden = !message;
}

/** Build the tabs, and a panel for each; a panel is filled when it is first shown. */
function buildTabs(available) {
  const panels = new Map(), buttons = new Map(), isFilled = new Set();
  const isUsable = (tab) => !tab.capability || available.some((model) => model.capabilities.includes(tab.capability));
  const tabs = ALL_TABS.filter((tab) => !tab.isOptional || isUsable(tab));

  function select(tab, focus = false) {
    for (const other of tabs) {
      const isSelected = other === tab;
      buttons.get(other).setAttribute("aria-selected", String(isSelected));
      buttons.get(other).tabIndex = isSelected ? 0 : -1;
      panels.get(other).hidden = !isSelected;
    }
    if (!isFilled.has(tab)) {
      isFilled.add(tab);
      tab.mount(panels.get(tab), available);
    }
    if (focus) buttons.get(tab).focus();
    history.replaceState(null, "", `#${tab.id}`);
  }

  function move(event, index) {
    const targets = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1 };
    if (!(event.key in targets)) return;
    event.preventDefault();
    select(tabs.at(targets[event.key] % tabs.length), true);
  }

  tabs.forEach((tab, index) => {
    buttons.set(tab, h("button", {
      type: "button", role: "tab", id: `tab-${tab.id}`, "aria-controls": `panel-${tab.id}`,
      onclick: () => select(tab), onkeydown: (event) => move(event, index),
    }, tab.title));
    panels.set(tab, h("section", {
      role: "tabpanel", id: `panel-${tab.id}`, "aria-labelledby": `tab-${tab.id}`, hidden: true,
    }));
  });
  clear(document.getElementById("tabs"), ...buttons.values());
  clear(document.getElementById("panels"), ...panels.values());
  const fromHash = () => tabs.find((tab) => `#${tab.id}` === location.hash);
  window.addEventListener("hashchange", () => { if (fromHash()) select(fromHash()); });
  select(fromHash() ?? tabs.find(isUsable) ?? models);
}

/** Wait until the models are loaded, then show the tabs; ask for a token if the server wants one. */
async function start() {
  for (;;) {
    try {
      const { data } = await get("/v1/models");
      const { status: state } = await get("/health").catch(() => ({ status: "loading" }));
      if (state === "ready") {
        report("");
        return buildTabs(data);
      }
      report(`The server is loading ${data.map((model) => model.id).join(", ")} …`);
    } catch (error) {
      if (error.status === 401) return askForToken(error.message);
      report(error.message);
    }
    await new Promise((resolve) => { setTimeout(resolve, POLL_MILLISECONDS); });
  }
}

function askForToken() {
  const form = document.getElementById("token-form"), input = document.getElementById("token");
  report(sessionStorage.getItem("token") ? "This token is wrong." : "This server needs a token: that of --token, or of PRETUNE_TOKEN.");
  form.hidden = false;
  input.focus();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(input.value);
    form.hidden = true;
    start();
  }, { once: true });
}

start();
