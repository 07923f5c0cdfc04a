// Browsers start no Worker from a file:// address. The search of the site then runs in a hidden frame instead.
class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    this.onmessage = null;
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.documentElement.appendChild(frame);
    const scope = (this.scope = frame.contentWindow);
    this.ready = new Promise((resolve) => {
      scope.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      scope.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => this.load(script)), Promise.resolve());
      this.load(address).then(resolve);
    });
  }

  load(address) {
    return new Promise((resolve, reject) => {
      const script = this.scope.document.createElement("script");
      script.src = new URL(address, document.baseURI).href;
      script.onload = resolve;
      script.onerror = reject;
      this.scope.document.head.appendChild(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })));
  }

  terminate() {
    this.scope.frameElement.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = FrameWorker; // the worker asks for this name
  window.Worker = FrameWorker;
}
