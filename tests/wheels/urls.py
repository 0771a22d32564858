"""Writes where the project is at home into ``pyproject.toml``, for what is about to be published.

    python -m tests.wheels.urls https://HOST/OWNER/NAME

The checkout names no address, as it has the same contents wherever it is kept. The release workflow
knows the one of the repository that it runs in, and calls this before it builds. Labels are those
that package indexes know (PyPA's specification of well-known project URLs).
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

__all__ = ["main", "project_urls", "with_urls"]

#: Line that comes after ``[project]`` in ``pyproject.toml``
_NEXT: Final = re.compile(r"^\[project\.scripts\]$", re.MULTILINE)


def project_urls(repository: str, version: str) -> dict[str, str]:
    """Name the pages of a release.

    Parameters
    ----------
    repository : str
        Where its repository can be read, such as ``https://HOST/OWNER/NAME``.
    version : str
        The release. Its tag is this behind a ``v``.

    Returns
    -------
    dict of str
        The address of each page, by its label.

    Raises
    ------
    ValueError
        If `repository` is not the https address of a repository.
    """
    parts = urlsplit(repository)
    named = [name for name in parts.path.split("/") if name]
    if (
        parts.scheme != "https"
        or not parts.netloc
        or len(named) != 2
        or parts.query
        or parts.fragment
        or re.search(r'[\s"\\]', repository)
    ):
        raise ValueError(f"not the address of a repository, https://HOST/OWNER/NAME: {repository}")
    home = repository.rstrip("/")
    return {
        "Homepage": home,
        "Source": home,
        "Documentation": f"{home}/blob/v{version}/docs/index.md",
        "Changelog": f"{home}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def with_urls(pyproject: str, urls: dict[str, str]) -> str:
    """Add a table of addresses to the text of a ``pyproject.toml``.

    Raises
    ------
    ValueError
        If it has such a table already, or no place for one.
    """
    if "urls" in tomllib.loads(pyproject)["project"]:
        raise ValueError("pyproject.toml has [project.urls] already")
    table = "".join(f'{label} = "{address}"\n' for label, address in urls.items())
    added, places = _NEXT.subn(lambda found: f"[project.urls]\n{table}\n{found[0]}", pyproject)
    if places != 1:
        raise ValueError("pyproject.toml has no [project.scripts], before which addresses go")
    return added


def main(arguments: list[str] | None = None) -> int:
    """Write them; ends with 2 where an address is none, or there are some already."""
    parser = argparse.ArgumentParser(prog="urls", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkout", type=Path, default=Path())
    parser.add_argument("repository", help="https://HOST/OWNER/NAME")
    chosen = parser.parse_args(arguments)
    path = chosen.checkout / "pyproject.toml"
    workspace = tomllib.loads((chosen.checkout / "Cargo.toml").read_text())["workspace"]
    try:
        urls = project_urls(chosen.repository, workspace["package"]["version"])
        path.write_text(with_urls(path.read_text(), urls))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
