"""What an installation brings, and what it leaves alone."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def build(source: Path, target: Path) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_writes_below_its_own_names_only(wheel: zipfile.ZipFile):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {"ullage", "ullage-0.1.0.dist-info"}


def test_the_wheel_has_its_types_its_schemas_and_its_licence(wheel: zipfile.ZipFile):
    names = wheel.namelist()
    assert "ullage/py.typed" in names
    assert "ullage/report/schemas/devices-1.schema.json" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_only_entry_points_are_the_command_and_the_plugin(wheel: zipfile.ZipFile):
    entries = configparser.ConfigParser()
    entries.read_string(wheel.read("ullage-0.1.0.dist-info/entry_points.txt").decode())
    assert {section: dict(entries[section]) for section in entries.sections()} == {
        "console_scripts": {"ullage": "ullage.cli:main"},
        "vllm.general_plugins": {"ullage": "ullage.vllm_plugin:register"},
    }


def test_the_engine_s_pinned_packages_satisfy_every_dependency():
    """So installing ullage beside that engine changes no version of anything."""
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", read("engine.txt"), re.MULTILINE))
    pinned = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for dependency in map(Requirement, settings["project"]["dependencies"]):
        assert dependency.specifier.contains(pinned[dependency.name]), dependency


def test_the_metadata_distribution_names_vllm_and_holds_no_code(tmp_path: Path):
    built = build(ROOT / "packaging" / "vllm-metadata", tmp_path)
    assert {name.partition("/")[0] for name in built.namelist()} == {"vllm-0.32.0+cpu.dist-info"}
    record = built.read("vllm-0.32.0+cpu.dist-info/RECORD").decode()
    assert all(line.strip() for line in record.splitlines())


def read(name: str) -> str:
    return (ROOT / "requirements" / name).read_text()


@pytest.mark.parametrize("name", ["torch.txt", "engine.txt", "dev.txt"])
def test_every_requirement_is_pinned_to_one_version(name: str):
    lines = [line for line in read(name).splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert [each.operator for each in Requirement(line).specifier] == ["=="], line


def test_nothing_that_breaks_the_engine_is_installed():
    names = {line.partition("==")[0].lower() for line in read("engine.txt").splitlines()}
    assert names & {"torch", "torchvision", "torchaudio", "torchcodec"} == set()
    assert "llvmlite==0.47" in read("engine.txt")
