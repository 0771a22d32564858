"""Conversion of keys of tasks to texts, the form of keys in the core, and back."""

from __future__ import annotations

from typing import Any

from backhaul.dask.serialize.codec import codec

__all__ = ["KeyTexts"]

#: Prefix of the text of a key that is not a string
_MARK = "\0"

#: Prefix of the text of a key that msgpack cannot encode; Dask accepts no such keys
_ODD = "\0\u0100"


class KeyTexts:
    """Converts keys to texts and back; most keys are strings, which are their own texts.

    The text of a tuple or number is a prefix that no string key has, and its msgpack with one
    character for each byte, so that the engine can send the key without Python
    (``crates/dask/src/hot/keys.rs``). Equal keys, such as 1 and 1.0, have the same text while one
    of them is known. Keys of a graph that stayed bytes are not in the tables here: their texts are
    computed on each call.
    """

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}
        self._keys: dict[str, Any] = {}
        #: Whether a key had a text with the prefix `_ODD`
        self.has_odd = False
        self._has_packed = False

    def expect_packed(self, expected: bool) -> None:
        """Note whether the core may have keys that are no strings and not in the tables here."""
        self._has_packed = expected

    def text(self, key: Any) -> str:
        """Return the text of a key; a new key is added to the tables."""
        if type(key) is str and not key.startswith(_MARK):
            return key
        text = self._texts.get(key)
        if text is None:
            text = self._made(key)
            self._texts[key] = text
            self._keys[text] = key
        return text

    def known(self, key: Any) -> str | None:
        """Return the text of a key, or None; a key that is no string may not be hashable."""
        if type(key) is str and not key.startswith(_MARK):
            return key
        try:
            text = self._texts.get(key)
            return _packed(key) if text is None and self._has_packed else text
        except Exception:  # Any error of msgpack
            return None

    def key(self, text: str) -> Any:
        """Return the key of a text, which may belong to no task any more."""
        known = self._keys.get(text)
        if known is not None or not text.startswith(_MARK) or text.startswith(_ODD):
            return text if known is None else known
        return codec.unpack(text[len(_MARK) :].encode("latin-1"))

    @property
    def are_keys(self) -> bool:
        """True if all texts in use equal their keys."""
        return not (self._keys or self._has_packed)

    def translated(self, value: Any) -> Any:
        """Put keys in the place of a text, of those in a list, or of those that a dict is by."""
        if type(value) is str:
            return self.key(value)
        if type(value) is list:
            return [self.key(text) for text in value]
        return {self.key(text): one for text, one in value.items()}

    def forget(self, text: str) -> None:
        """Release a text that belongs to no task any more."""
        if text.startswith(_MARK):
            key = self._keys.pop(text, None)
            self._texts.pop(key, None)

    def _made(self, key: Any) -> str:
        try:
            text = _packed(key)
        except Exception:  # Any error of msgpack
            text = _ODD
        if text == _ODD or text in self._keys:
            self.has_odd = True
            text = f"{_ODD}{type(key).__name__} {key!r}"
            while text in self._keys:
                text += "'"
        return text


def _packed(key: Any) -> str:
    return _MARK + str(codec.pack(_canonical(key)).decode("latin-1"))


def _canonical(key: Any) -> Any:
    """Return the one of equal keys that has integers where possible."""
    if isinstance(key, tuple):
        return tuple(map(_canonical, key))
    if isinstance(key, (bool, float)) and key == (whole := int(key)) and abs(whole) < _EXACT_MAX:
        return whole
    return key


#: Below it each whole number is a float
_EXACT_MAX = 1 << 53
