"""Writes the address of the repository into the manifests, for what is about to be published.

    python -m tests.wheels.urls https://HOST/OWNER/NAME

The checkout names no address, as it has the same contents wherever it is kept. The release workflow
knows the one of the repository that it runs in, and calls this before it builds:
each ``pyproject.toml`` gets ``[project.urls]`` with the labels that package indexes know (PyPA's
specification of well-known project URLs), ``Cargo.toml`` and each crate that is published get
``repository``, and so does the conda recipe.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

__all__ = ["main", "project_urls", "published", "with_repository", "with_urls"]

#: Line that comes after ``[project]`` in ``pyproject.toml``
_NEXT: Final = re.compile(r"^\[(project\.scripts|project\.readme)\]$", re.MULTILINE)


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
        raise ValueError("pyproject.toml has no table before which addresses go")
    return added


def published(checkout: Path) -> list[Path]:
    """List the manifests of the crates that go to crates.io."""
    manifests = sorted(checkout.glob("crates/*/Cargo.toml"))
    return [
        path for path in manifests if "publish" not in tomllib.loads(path.read_text())["package"]
    ]


def with_repository(text: str, line: str, added: str) -> str:
    """Add a line behind one that a manifest has once.

    Raises
    ------
    ValueError
        If the manifest has the added line already, or another number of places for it.
    """
    if text.count(f"{line}\n") != 1 or added in text:
        raise ValueError(f"a manifest has {added!r} already, or not {line!r} once")
    return text.replace(f"{line}\n", f"{line}\n{added}\n")


def main(arguments: list[str] | None = None) -> int:
    """Write them; ends with 2 where an address is none, or there are some already."""
    parser = argparse.ArgumentParser(prog="urls", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkout", type=Path, default=Path())
    parser.add_argument("repository", help="https://HOST/OWNER/NAME")
    chosen = parser.parse_args(arguments)
    checkout: Path = chosen.checkout
    cargo, recipe = checkout / "Cargo.toml", checkout / "recipe" / "recipe.yaml"
    pyprojects = [checkout / "pyproject.toml", checkout / "python" / "pyproject.toml"]
    version = tomllib.loads(cargo.read_text())["workspace"]["package"]["version"]
    try:
        urls = project_urls(chosen.repository, version)
        licence, repository = 'license = "Apache-2.0"', f'repository = "{urls["Source"]}"'
        written = {
            **{path: with_urls(path.read_text(), urls) for path in pyprojects},
            cargo: with_repository(cargo.read_text(), licence, repository),
            recipe: with_repository(
                recipe.read_text(), "  license_file: LICENSE", f"  repository: {urls['Source']}"
            ),
        }
        for path in published(checkout):
            inherited = ("license.workspace = true", "repository.workspace = true")
            written[path] = with_repository(path.read_text(), *inherited)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path, text in written.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
