"""A release has one version in all its files, and its image and crates can be published."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.wheels import release, urls

ROOT = Path(__file__).parents[2]
FILES = (
    *("Cargo.toml", "Cargo.lock", "CHANGELOG.md", "CITATION.cff", "recipe/recipe.yaml"),
    "python/pyproject.toml",
)
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_files_of_this_checkout_have_one_version() -> None:
    assert release.disagreements(ROOT, [f"v{VERSION}", "benchmarks"]) == []
    assert release.notes((ROOT / "CHANGELOG.md").read_text(), VERSION)


@pytest.mark.parametrize("name", FILES[1:])
def test_file_with_another_version_is_named(checkout: Path, name: str) -> None:
    path = checkout / name
    path.write_text(path.read_text().replace(VERSION, "9.8.7"))
    (found, *_) = release.disagreements(checkout, [])
    assert found.startswith(name)
    assert found.endswith(f"9.8.7, not {VERSION}")


def test_dependency_and_tag_with_another_version_are_named(checkout: Path) -> None:
    path = checkout / "Cargo.toml"
    path.write_text(
        path.read_text().replace(f'proto", version = "{VERSION}"', 'proto", version = "9"')
    )
    assert release.disagreements(checkout, ["v9.8.7"]) == [
        f"Cargo.toml, dependency backhaul-proto: 9, not {VERSION}",
        f"tag v9.8.7: 9.8.7, not {VERSION}",
    ]


def test_notes_are_the_section_of_a_version_alone() -> None:
    text = "# Changelog\n\n## [0.2.0] - today\n\n- new\n\n## [0.1.0] - before\n\n- old\n"
    assert release.notes(text, "0.2.0") == "- new\n"
    assert release.notes(text, "0.1.0") == "- old\n"
    for absent in ("0.3.0", "0.1"):
        with pytest.raises(ValueError, match=re.escape(absent)):
            release.notes(text, absent)


def test_crate_that_is_published_needs_only_published_crates() -> None:
    """Cargo refuses a package whose dependency has no version."""
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version=1", "--offline"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    packages = {package["name"]: package for package in json.loads(listed.stdout)["packages"]}
    paths = {str(path) for path in urls.published(ROOT)}
    published = {name for name, each in packages.items() if each["manifest_path"] in paths}
    assert published >= {"backhaul", "backhaul-proto"}
    for name in published:
        needed = {
            dependency["name"]
            for dependency in packages[name]["dependencies"]
            if "path" in dependency and dependency["kind"] != "dev"
        }
        assert needed <= published, name


def test_image_is_not_roots_and_has_a_health_check() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    (user,) = [line.removeprefix("USER ") for line in lines if line.startswith("USER ")]
    assert all(int(part) > 0 for part in user.split(":"))
    (check,) = [line.strip() for line in lines if line.strip().startswith('CMD ["python"')]
    assert "HEALTHCHECK" in lines[lines.index(f"    {check}") - 1]
    compile(json.loads(check.removeprefix("CMD "))[2], "check", "exec")


def test_image_runs_the_command_of_the_manifest_for_kubernetes() -> None:
    """The manifest names the whole command, behind which an entry point would come."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert not [line for line in lines if line.startswith("ENTRYPOINT")]
    (default,) = [line for line in lines if line.startswith("CMD ")]
    manifest = yaml.safe_load((ROOT / "examples/kubernetes/daskcluster.yaml").read_text())
    (container,) = manifest["spec"]["scheduler"]["spec"]["containers"]
    assert json.loads(default.removeprefix("CMD ")) == container["args"]


def test_steps_with_an_unknown_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        release.main(["upload"])
    assert ended.value.code == 2
    assert "upload" in capsys.readouterr().err
