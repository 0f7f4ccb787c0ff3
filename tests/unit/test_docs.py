"""What the documents say is so: links, examples, generated pages, dependencies, layers."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "tests/*.md", "benchmarks/**/*.md", "changelog.d/*.md")
    for path in ROOT.glob(pattern)
)
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_link_leads_to_a_file(document: Path):
    links = LINK.findall(document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_python_file_that_is_named_exists(document: Path):
    mentioned = set(re.findall(r"`((?:\w+/)+\w+\.py)`", document.read_text()))
    roots = (ROOT, ROOT / "src" / "ullage")
    assert [name for name in mentioned if not any((root / name).is_file() for root in roots)] == []


def test_the_generated_reference_is_current():
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_published_schema_is_listed_and_only_those():
    page = (ROOT / "docs" / "reference" / "json.md").read_text()
    schemas = (ROOT / "src" / "ullage" / "report" / "schemas").glob("*.json")
    assert set(re.findall(r"`(\S+\.schema\.json)`", page)) == {path.name for path in schemas}


def test_the_four_lines_of_python_in_the_readme_run_and_print_a_true_number():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in example.splitlines() if line]) == 4
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True
    )
    answer = re.fullmatch(r"(\d+) of (\d+) bytes can be taken, says (\S+)\n", result.stdout)
    assert answer is not None, result.stdout
    assert 0 < int(answer[1]) < int(answer[2])


def test_the_readme_s_map_names_every_part_of_the_package():
    readme = (ROOT / "README.md").read_text()
    listed = set(re.findall(r"^      (\w+(?:/|\.py)) ", readme, re.MULTILINE))
    parts = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "src" / "ullage").iterdir()
        if not path.name.startswith("_") and path.name != "py.typed"
    }
    assert listed == parts


def test_every_dependency_is_imported_and_has_its_reason():
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    for requirement in SETTINGS["project"]["dependencies"]:
        name = re.split(r"[<>=!~\[ ]", requirement)[0]
        assert re.search(rf"^\s*(import|from) {name}\b", sources, re.MULTILINE), f"{name}: unused"
        assert f"\n| {name} | " in architecture, f"{name}: no reason given"


def test_the_package_table_follows_the_layers_of_the_import_contract():
    (layers,) = (
        contract["layers"]
        for contract in SETTINGS["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    contracted = {name.strip() for layer in layers for name in layer.split("|")}
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Packages")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == contracted
