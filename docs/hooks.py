"""What makes a site of documents that are also read in a checkout.

Documents link to each other, to files at the root of the checkout and to source files, by relative
paths that work in any viewer of Markdown. MkDocs knows only what is below ``docs/``: what is
linked to elsewhere becomes a page of the site here, and the link leads there. A link to what does
not exist is left as it is, so that a strict build refuses it.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

#: Files at the root, and the pages that they are. README has its page where the site begins.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
GENERATED = {path: page for path, page in ROOT_PAGES.items() if page != "index.md"}

#: How sources are shown, by the ends of their names
LANGUAGES = {
    ".rs": "rust",
    ".py": "python",
    ".pyi": "python",
    ".toml": "toml",
    ".yaml": "yaml",
    ".ipynb": "json",
    ".txt": "text",
}

#: Picture of the social card: what other sites show for a link to a page
CARD = "images/transfers.png"

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that come from outside of ``docs/``."""
    for path, page in GENERATED.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    outside: set[str] = set()
    for each in list(files.documentation_pages()):
        for target in links(each.content_string):
            path = in_checkout(each.src_uri, target)
            if is_source(path):
                outside.add(path)
    for path in sorted(outside):
        files.append(File.generated(config, page_of(path), content=shown(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links out of ``docs/`` lead to the pages of the site."""
    here = page.file.src_uri

    def lead(found: re.Match[str]) -> str:
        path = in_checkout(here, found[2])
        if path.startswith("docs/"):
            target = path.removeprefix("docs/")
            if here not in GENERATED.values():
                return found[0]
        elif path in ROOT_PAGES:
            target = ROOT_PAGES[path]
        elif is_source(path):
            target = page_of(path)
        else:
            return found[0]
        if target == "decisions":
            target = "decisions/index.md"
        return f"{found[1]}{posixpath.relpath(target, posixpath.dirname(here))}{found[3]}"

    return outside_of_fences(markdown, lambda line: LINK.sub(lead, line))


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Add the social card of a page, which needs the address of the site (``SITE_URL``)."""
    if not config.site_url:
        return output
    card = {
        "og:type": "website",
        "og:site_name": config.site_name,
        "og:title": page.title or config.site_name,
        "og:description": page.meta.get("description") or config.site_description or "",
        "og:url": page.canonical_url or config.site_url,
        "og:image": posixpath.join(config.site_url, CARD),
        "twitter:card": "summary_large_image",
    }
    tags = "".join(
        f'<meta property="{name}" content="{html.escape(text)}">\n' for name, text in card.items()
    )
    return output.replace("</head>", f"{tags}</head>", 1)


def in_checkout(page: str, target: str) -> str:
    """Give the path, from the root of the checkout, of what a page links to."""
    source = next((path for path, each in GENERATED.items() if each == page), f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def is_source(path: str) -> bool:
    """Tell whether a path of the checkout is shown as a source."""
    return (
        not path.startswith(("docs/", ".."))
        and path not in ROOT_PAGES
        and (ROOT / path).exists()
        and path != "."
    )


def page_of(path: str) -> str:
    """Give the page on which a source is shown."""
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def shown(path: str) -> str:
    """Write the page of a source: the file, or what a folder has in it."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in place.iterdir())
        listed = "\n".join(f"- `{name}`" for name in names if not name.startswith(("_", ".")))
        return f"# {path}/\n\n{listed}\n"
    language = LANGUAGES.get(place.suffix, "text")
    return f"# {path}\n\n````{language}\n{place.read_text(encoding='utf-8')}\n````\n"


def links(markdown: str) -> Iterator[str]:
    """List what a document links to by relative paths."""
    found: list[str] = []

    def note(line: str) -> str:
        found.extend(each[2] for each in LINK.finditer(line))
        return line

    outside_of_fences(markdown, note)
    yield from found


def outside_of_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Change the lines that are no code."""
    fence: str | None = None
    lines = []
    for line in markdown.split("\n"):
        mark = FENCE.match(line)
        if fence is None:
            fence = mark[1] if mark else None
            lines.append(line if mark else change(line))
        else:
            if mark and mark[1].startswith(fence):
                fence = None
            lines.append(line)
    return "\n".join(lines)
