"""The addresses of a release are those of the repository that it is built in."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.wheels import urls

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    manifests = [path.relative_to(ROOT) for path in ROOT.glob("crates/*/Cargo.toml")]
    for name in (
        Path("pyproject.toml"),
        Path("python/pyproject.toml"),
        Path("Cargo.toml"),
        Path("recipe/recipe.yaml"),
        *manifests,
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_release_has_the_addresses_of_its_repository(checkout: Path) -> None:
    before = tomllib.loads((checkout / "pyproject.toml").read_text())
    assert urls.main(["--checkout", str(checkout), "https://forge.example/owner/backhaul/"]) == 0
    after = tomllib.loads((checkout / "pyproject.toml").read_text())
    named = after["project"].pop("urls")
    assert after == before
    assert named["Source"] == "https://forge.example/owner/backhaul"
    bench = tomllib.loads((checkout / "python" / "pyproject.toml").read_text())
    assert bench["project"]["urls"] == named
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    workspace = tomllib.loads((checkout / "Cargo.toml").read_text())["workspace"]
    assert workspace["package"]["repository"] == named["Source"]
    crates = [tomllib.loads(path.read_text())["package"] for path in urls.published(checkout)]
    assert "backhaul" in {crate["name"] for crate in crates}
    assert all(crate["repository"] == {"workspace": True} for crate in crates)
    recipe = yaml.safe_load((checkout / "recipe" / "recipe.yaml").read_text())
    assert recipe["about"]["repository"] == named["Source"]
    # Their targets are in the checkout.
    for label in ("Documentation", "Changelog"):
        _, _, path = named[label].partition(f"/blob/v{version}/")
        assert (ROOT / path).is_file()


def test_what_is_no_repository_is_named_and_nothing_is_written(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (checkout / "pyproject.toml").read_text()
    for odd in (
        "",
        "owner/backhaul",
        "http://forge.example/owner/backhaul",
        "https://forge.example/backhaul",
        "https://forge.example/owner/backhaul?tab=code",
        'https://forge.example/owner/back"haul',
        "https:///owner/backhaul",
    ):
        assert urls.main(["--checkout", str(checkout), odd]) == 2
        assert capsys.readouterr().err.endswith(f": {odd}\n")
    assert (checkout / "pyproject.toml").read_text() == before


def test_addresses_are_written_once(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--checkout", str(checkout), "https://forge.example/owner/backhaul"]
    assert [urls.main(arguments), urls.main(arguments)] == [0, 2]
    assert "already" in capsys.readouterr().err
