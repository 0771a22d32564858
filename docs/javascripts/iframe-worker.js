// A Worker for pages that are opened as files, where browsers start none: the search runs in one.
//
// Its script runs in a hidden frame, on the thread of the page. The theme's plugin `offline` asks
// for such a script, and takes one from another site where extra.polyfills names none.
class IframeWorker extends EventTarget {
  constructor(url) {
    super()
    this.pending = []
    const frame = document.createElement("iframe")
    frame.hidden = true
    document.body.append(frame)
    this.scope = frame.contentWindow
    // Otherwise Firefox loads an empty page later, in the place of this one.
    this.scope.document.open()
    this.scope.document.write("<body></body>")
    this.scope.document.close()
    // A worker posts to the page that made it, and imports scripts without a page.
    this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
    this.scope.importScripts = (...urls) =>
      urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve())
    this.load(url).then(() => {
      const pending = this.pending
      this.pending = undefined
      pending.forEach(data => this.deliver(data))
    })
  }

  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.scope.document.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = () => reject(new Error(`cannot load ${url}`))
      this.scope.document.body.append(script)
    })
  }

  // Messages wait for the script, as those to a Worker do.
  postMessage(data) {
    this.pending ? this.pending.push(data) : this.deliver(data)
  }

  deliver(data) {
    this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }))
  }

  terminate() {
    this.scope.frameElement?.remove()
  }
}

if (location.protocol === "file:") {
  window.Worker = IframeWorker
}
