"""Files that are written whole or not at all."""

import errno
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cappronet.data import files
from cappronet.data.files import in_use, locked, remove_leftovers, sha256_of, write_atomically


def test_the_digest_of_a_file_is_that_of_its_content(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, other, alive = (tmp_path / f".{name}.{number}" for name, number in
                          (("file", ended.pid), ("other", ended.pid), ("file", os.getppid())))  # fmt: skip
    for path in (left, other, alive, tmp_path / ".file.txt", tmp_path / f"file.{ended.pid}"):
        path.touch()
    write_atomically(tmp_path / "file", b"new")
    assert not left.exists()
    assert other.exists()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["file", ".file.txt", f"file.{ended.pid}", alive.name]
    )


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc to tell zombies by")
def test_what_a_killed_process_left_is_removed_before_its_parent_has_collected_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        os.kill(ended.pid, 0)  # the entry is still there
        (tmp_path / f".file.{ended.pid}").touch()
        write_atomically(tmp_path / "file", b"new")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_another_process_keeps_the_folder_until_it_ends(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from cappronet.data.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert in_use(tmp_path)
        with pytest.raises(BlockingIOError, match="another process is writing"), locked(tmp_path):
            pass
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path), locked(tmp_path):
        assert not in_use(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_fcntl_is_missing_an_open_file_is_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows keeps a file that is open from being removed."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("files_on_windows", files.__file__)
    assert spec is not None
    assert spec.loader is not None
    windows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(windows)
    unlink = Path.unlink

    def keep_open_files(path: Path, missing_ok: bool = False) -> None:
        opened = {str(link.resolve()) for link in Path("/proc/self/fd").iterdir()}
        if str(path.resolve()) in opened:
            raise PermissionError(f"{path} is used by another process")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", keep_open_files)
    (tmp_path / ".lock").touch()  # of a process that was killed
    with windows.locked(tmp_path):
        assert windows.in_use(tmp_path)
        with pytest.raises(BlockingIOError, match="another process is writing"), windows.locked(tmp_path):
            pass
    assert not windows.in_use(tmp_path)
    assert list(tmp_path.iterdir()) == []
