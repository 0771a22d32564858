"""Headless Chromium, spoken to over its DevTools protocol.

Source of the methods: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

DEADLINE_S = 300

#: Names under which it is installed.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def chromium() -> str | None:
    """Find the program."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser that shows nothing.

    Parameters
    ----------
    program : str
        Chromium.
    folder : Path
        Empty, for its files.
    width, height : int
        Size of the window, in pixels.
    """

    def __init__(self, program: str, folder: Path, *, width: int = 1440, height: int = 940) -> None:
        self._command = [
            program,
            "--headless",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            # It refuses to run as root otherwise; it sees pages of this machine only.
            "--no-sandbox",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self._size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._calls = 0
        #: Errors of the page, in its own words.
        self.complaints: list[str] = []

    async def __aenter__(self) -> Browser:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                self._socket = await self._attach()
        except BaseException:
            await self._end()
            raise
        await self.call("Page.enable")
        await self.call("Runtime.enable")
        await self.call("Emulation.setDeviceMetricsOverride", **self._size)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()
        await self._end()

    async def open(self, url: str) -> None:
        """Go to a page; returns before it is complete."""
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """Run JavaScript in the page and give its result."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Run JavaScript again and again until it gives something true, and give that."""
        last: object = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    try:
                        last = await self.evaluate(expression)
                    except RuntimeError as error:
                        # While the page is being made.
                        last = error
                    else:
                        if last:
                            return last
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{expression} gives {last}; {self.complaints}") from None

    async def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        for at in (x - 2, x):
            await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=at, y=y)

    async def screenshot(self, path: Path) -> None:
        """Save what is seen as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._calls += 1
        request = {"id": self._calls, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(request))
        async with asyncio.timeout(DEADLINE_S):
            while True:
                text = await self._socket.read_message()
                if text is None:
                    raise ConnectionError(f"the browser ended at {method}")
                message = json.loads(text)
                if message.get("method") == "Runtime.exceptionThrown":
                    self.complaints.append(json.dumps(message["params"])[:2000])
                if message.get("id") == self._calls:
                    if "error" in message:
                        raise RuntimeError(f"{method}: {message['error']}")
                    result: dict[str, Any] = message["result"]
                    return result

    async def _attach(self) -> WebSocketClientConnection:
        assert self._process.stderr is not None
        said = b""
        while (found := re.search(rb"listening on ws://([^/]+)/", said)) is None:
            line = await self._process.stderr.readline()
            if not line:
                raise ConnectionError(f"the browser did not start: {said.decode()}")
            said += line
        request = HTTPRequest(
            f"http://{found[1].decode()}/json/new?about:blank", method="PUT", body=""
        )
        answer = await AsyncHTTPClient().fetch(request)
        url = json.loads(answer.body)["webSocketDebuggerUrl"]
        return await websocket_connect(url, max_message_size=1 << 28)

    async def _end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
