"""The task runner: what it says when something is missing. Nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Programs that the script itself uses; everything else is absent in the tests' PATH.
TOOLS = ("sh", "sed", "dirname", "mkdir", "head", "cat", "tr", "cksum", "printf", "env", "uname")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script alone, so that the real .venv is out of reach."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copy(ROOT / "dev", folder / "dev")
    return folder


def call(checkout: Path, *args: str, programs: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``./dev args`` with a PATH that holds TOOLS and ``programs`` (name -> shell text)."""
    folder = checkout.parent / "bin"
    folder.mkdir(exist_ok=True)
    for tool in TOOLS:
        found = shutil.which(tool)
        if found and not (folder / tool).exists():
            (folder / tool).symlink_to(found)
    for name, text in (programs or {}).items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(f"#!{shutil.which('sh')}\n{text}\n")
        (folder / name).chmod(0o755)
    env = {"PATH": str(folder), "HOME": str(checkout.parent / "home")}
    shell = shutil.which("sh")
    assert shell
    return subprocess.run(
        [shell, str(checkout / "dev"), *args], env=env, capture_output=True, text=True, timeout=30, check=False
    )


PYTHON = {"python3": "exit 0"}
NOT_ROOT = {"id": "echo 1000"}


def test_is_plain_posix_shell() -> None:
    assert (ROOT / "dev").read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(ROOT / "dev")], check=True, timeout=30)
    if shutil.which("dash"):
        subprocess.run(["dash", "-n", str(ROOT / "dev")], check=True, timeout=30)


def test_help_names_the_commands(checkout: Path) -> None:
    done = call(checkout, "help")
    assert done.returncode == 0
    for command in ("demo", "test", "lint", "wheel"):
        assert f"./dev {command}" in done.stdout


def test_an_unknown_command_is_named(checkout: Path) -> None:
    done = call(checkout, "tset")
    assert done.returncode != 0
    assert "tset" in done.stderr
    assert "./dev test" in done.stderr


def test_missing_packages_without_the_right_to_install(checkout: Path) -> None:
    programs = {**PYTHON, **NOT_ROOT, "apt-get": "echo must not be called; exit 99", "apt-cache": "exit 0"}
    done = call(checkout, "demo", programs=programs)
    assert done.returncode != 0
    assert "sudo apt-get update && sudo apt-get install -y --no-install-recommends g++ openjdk-17-jre-headless" in (
        done.stderr
    )


def test_a_newer_java_is_named_where_17_is_not_offered(checkout: Path) -> None:
    only_21 = 'case "$2" in openjdk-21-*) exit 0;; esac; exit 1'
    programs = {**PYTHON, **NOT_ROOT, "g++": "exit 0", "apt-get": "exit 99", "apt-cache": only_21}
    done = call(checkout, "demo", programs=programs)
    assert "openjdk-21-jre-headless" in done.stderr


def test_an_old_java_is_not_enough(checkout: Path) -> None:
    old = "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2"
    programs = {**PYTHON, **NOT_ROOT, "g++": "exit 0", "java": old, "apt-get": "exit 99", "apt-cache": "exit 0"}
    done = call(checkout, "demo", programs=programs)
    assert "openjdk-17-jre-headless" in done.stderr


def test_without_apt_the_needs_are_named(checkout: Path) -> None:
    done = call(checkout, "demo", programs={**PYTHON, **NOT_ROOT})
    assert done.returncode != 0
    for word in ("g++", "java", "17", "package manager"):
        assert word in done.stderr


def test_the_fast_run_asks_for_no_java(checkout: Path) -> None:
    programs = {**PYTHON, **NOT_ROOT, "apt-get": "exit 99", "apt-cache": "exit 0"}
    done = call(checkout, "test", "--fast", programs=programs)
    assert "g++" in done.stderr
    assert "openjdk" not in done.stderr


def test_ci_runs_the_readme_command() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "./dev test" in ci
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert os.access(ROOT / "dev", os.X_OK)


def test_bench_of_no_such_name_lists_the_names(checkout: Path) -> None:
    shutil.copytree(ROOT / "benchmarks", checkout / "benchmarks")
    grep = shutil.which("grep")
    for name in ("nope", "report"):
        done = call(checkout, "bench", name, programs={"grep": f'exec {grep} "$@"'})
        assert done.returncode != 0
        assert "allreduce" in done.stderr
        assert "report" not in done.stderr
