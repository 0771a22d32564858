"""Keys of tasks as the core has them: texts, each of one key."""

from __future__ import annotations

from typing import Any

from backhaul.dask.codec import codec

__all__ = ["KeyTexts"]

#: Begins the text of a key that is none
_MARK = "\0"

#: Begins that of one that msgpack has no form for, as it has one for all that Dask takes for a key
_ODD = "\0\u0100"


class KeyTexts:
    """Turns keys into texts and back; most are texts already.

    Tuples and numbers get a text that no key in use begins with, for as long as they are
    known: their msgpack, one character for each byte, so that they can be sent without Python
    (``crates/dask/src/hot/keys.rs``). Equal keys, such as 1 and 1.0, have one.
    """

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}
        self._keys: dict[str, Any] = {}
        #: Whether there was a key without such a form
        self.has_odd = False

    def text(self, key: Any) -> str:
        """Give the text of a key, which is noted if it is new."""
        if type(key) is str and not key.startswith(_MARK):
            return key
        text = self._texts.get(key)
        if text is None:
            text = self._made(key)
            self._texts[key] = text
            self._keys[text] = key
        return text

    def known(self, key: Any) -> str | None:
        """Give the text of a key if it has one; a key that is no text may not be hashable."""
        if type(key) is str and not key.startswith(_MARK):
            return key
        try:
            return self._texts.get(key)
        except TypeError:
            return None

    def key(self, text: str) -> Any:
        """Give the key of a text."""
        return self._keys.get(text, text)

    def recalled(self, text: str) -> Any:
        """Give the key of a text that may stand for no task any more."""
        if text in self._keys or not text.startswith(_MARK) or text.startswith(_ODD):
            return self.key(text)
        return codec.unpack(text[len(_MARK) :].encode("latin-1"))

    @property
    def are_keys(self) -> bool:
        """Whether each text in use is its key."""
        return not self._keys

    def translated(self, value: Any) -> Any:
        """Put keys in the place of a text, of those in a list, or of those that a dict is by."""
        known = self._keys
        if type(value) is str:
            return known.get(value, value)
        if type(value) is list:
            return [known.get(text, text) for text in value]
        return {known.get(text, text): one for text, one in value.items()}

    def forget(self, text: str) -> None:
        """Let go of a text that stands for no task any more."""
        if text.startswith(_MARK):
            key = self._keys.pop(text, None)
            self._texts.pop(key, None)

    def _made(self, key: Any) -> str:
        try:
            text = _MARK + codec.pack(key).decode("latin-1")
        except Exception:  # Whatever msgpack has against it
            text = _ODD
        if text == _ODD or text in self._keys:
            self.has_odd = True
            text = f"{_ODD}{type(key).__name__} {key!r}"
            while text in self._keys:
                text += "'"
        return text
