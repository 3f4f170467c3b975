// The search of the site runs in a worker, which a browser does not start for a page opened from a
// disk. There, a hidden frame runs it instead; loaded by mkdocs.yml in place of a copy on a server.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      this.ready = new Promise((resolve) => {
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data })
          this.dispatchEvent(event)
          if (this.onmessage) this.onmessage(event)
        }
        inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(
          () => this.load(each)), Promise.resolve())
        this.load(url).then(resolve)
      })
    }

    load(url) {
      return new Promise((resolve) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = new URL(url, location.href)
        script.onload = resolve
        this.frame.contentDocument.body.append(script)
      })
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
