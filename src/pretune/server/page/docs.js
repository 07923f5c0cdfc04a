// The page of the API: models in the examples, and forms that send them.

import { get, send } from "/page/api.js";
import { said } from "/page/dom.js";

const MAX_REPLY = 20000;
const status = document.getElementById("status");

/** Name in each body the first model that can do it; return without one if the server has a single model. */
async function nameModels() {
  const { data } = await get("/v1/models");
  for (const form of document.querySelectorAll("form[data-capability]")) {
    const model = data.find((item) => item.capabilities.includes(form.dataset.capability));
    const reply = form.querySelector(".reply"), text = form.querySelector("textarea");
    if (!model) reply.textContent = "No served model can do this.";
    else if (data.length > 1) text.value = JSON.stringify({ model: model.id, ...JSON.parse(text.value) }, null, 2);
  }
}

function report(error) {
  status.textContent = error.status === 401 ? "This server needs a token: enter it on the page at / in this tab, then come back." : error.message;
  status.hidden = false;
}

for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const reply = form.querySelector(".reply"), text = form.querySelector("textarea");
    reply.textContent = "…";
    try {
      const response = await send(form.dataset.path, text ? JSON.parse(text.value) : undefined);
      const answer = await response.text();
      reply.replaceChildren(said(answer.length > MAX_REPLY ? `${answer.slice(0, MAX_REPLY)} …` : answer));
    } catch (error) {
      reply.textContent = error.status ? `${error.status}: ${error.message}` : error.message;
    }
  });
}

nameModels().catch(report);
