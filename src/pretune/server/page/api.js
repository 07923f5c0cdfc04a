// Requests to the server of this page.

let token = sessionStorage.getItem("token") ?? "";

export function setToken(value) {
  token = value;
  sessionStorage.setItem("token", value);
}

/** An answer that is an error, with its status. */
export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Return the response to a request; one that is an error raises a RequestError. */
export async function send(path, body, signal) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = body === undefined
    ? { headers, signal }
    : { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server does not answer. Is it still running?", 0);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  throw new RequestError(answer?.error?.message ?? `The server answered with status ${response.status}.`, response.status);
}

/** Return the JSON of a GET request. */
export async function get(path, signal) {
  return (await send(path, undefined, signal)).json();
}

/** Return the results of a POST request. */
export async function post(path, body, signal) {
  const answer = await (await send(path, body, signal)).json();
  return answer.results ?? answer;
}

/** Call `onpiece(index, text)` for pieces of completions or of answers while they are generated. */
export async function stream(path, body, onpiece, signal) {
  const response = await send(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const message = JSON.parse(data);
      if (message.error) throw new RequestError(message.error.message, 500);
      for (const choice of message.choices) onpiece(choice.index, choice.text ?? choice.delta.content ?? "");
    }
  }
}

/** Return a function that runs one request at a time: a new one ends the last. Errors go to `onerror`. */
export function latest(onerror) {
  let controller = new AbortController();
  const run = async (work) => {
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    try {
      await work(signal);
    } catch (error) {
      if (!signal.aborted) onerror(error.message);
    }
  };
  run.cancel = () => controller.abort();
  return run;
}
