"""Shows constructors of native classes: their stub has ``__new__``, not ``__init__``."""

from __future__ import annotations

from typing import Any

import griffe


class Constructors(griffe.Extension):
    """Has the signature of ``__new__`` stand for that of a class."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give a class that has only ``__new__`` the same as ``__init__``."""
        new = cls.members.get("__new__")
        if isinstance(new, griffe.Function) and "__init__" not in cls.members:
            cls.members["__init__"] = griffe.Function(
                "__init__", parameters=new.parameters, parent=cls, lineno=new.lineno
            )
