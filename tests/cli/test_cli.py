"""The command line as a whole: its commands, their help, and one line for a mistake."""

import os
import subprocess
import sys

import pytest

from cappronet.cli import app, run_app

COMMANDS = ("train", "compare", "evaluate", "predict", "embed", "probe", "explore", "export", "list")


def cappronet(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "cappronet.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_there_are_nine_commands():
    assert {name for name in app if not name.startswith("-")} == set(COMMANDS)
    shown = cappronet("--help").stdout
    assert [name for name in COMMANDS if name not in shown] == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ("--recipe", "--resume", "--backbone", "--capsule-dim", "--strategy")),
        ("compare", ("--heads", "--seeds", "--jobs")),
        ("evaluate", ("--split", "--ood", "out-of-distribution")),
        ("explore", ("--images", "--output", "--csv")),
        ("export", ("--format", "torch-export", "--output")),
    ],
)
def test_help_explains_the_options(command, words, capsys):
    app([command, "--help"], result_action="return_value")
    shown = capsys.readouterr().out
    assert [word for word in words if word not in shown] == []


@pytest.mark.slow
def test_a_mistake_is_one_line_of_a_process_and_its_exit_code(tmp_path):
    done = cappronet("evaluate", "nowhere", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "nowhere" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "nowhere"], "nowhere"),
        (["predict", "nowhere"], "at least one image"),
        (["explore", "nowhere", "-o", "none/out.html"], "create it first"),
        (["compare", "--seeds", "0"], "got 0"),
        (["train", "--padding", "1000000000"], "padding must be at most the side of the images, 8 pixels"),
        (["train", "--data", "cat [/x]\x1b[31m"], "cat [/x]"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in mistake(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_suggests_the_nearest():
    done = cappronet("evalute")
    assert done.returncode != 0
    assert "evaluate" in done.stdout + done.stderr


@pytest.mark.parametrize("word", ["[/x]", "a\x1b[31m\x07b", "a\u202eb"])
def test_a_wrong_command_is_shown_as_text(word):
    done = cappronet(word)
    shown = done.stdout + done.stderr
    assert done.returncode != 0
    assert shown.startswith("error: ")
    assert shown.replace("\n", "").isprintable()


def shown_error(error, capsys, monkeypatch):
    def command():
        raise error

    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        run_app(command)
    assert ended.value.code == 1
    return capsys.readouterr().err


NO_FABRIC = "`CUDAAccelerator` can not run on your system since the accelerator is not available."
NO_DRIVER = "Found no NVIDIA driver on your system.\nPlease check"
NO_RAM = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory"),
        (RuntimeError(NO_RAM), "not enough memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nGPU 0"), "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (RuntimeError(NO_FABRIC), "no CUDA device is available on this machine: use --accelerator cpu"),
        (RuntimeError(NO_DRIVER), "no CUDA device is available"),
        (AssertionError("Torch not compiled with CUDA enabled"), "no CUDA device is available"),
        (RuntimeError("No supported gpu backend found!"), "no GPU device is available on this machine: use --accel"),
        (ValueError("class 'cat [/x]' \x1b[31m"), r"class 'cat [/x]' \x1b[31m"),
        (KeyError("weight"), "unexpected KeyError: 'weight'; CAPPRONET_TRACEBACK=1 shows"),
        (RuntimeError("shapes differ\nmore"), "unexpected RuntimeError: shapes differ; CAPPRONET_TRACEBACK=1 shows"),
    ],
)
def test_every_error_is_one_line(error, message, capsys, monkeypatch):
    monkeypatch.delenv("CAPPRONET_TRACEBACK", raising=False)
    (line,) = shown_error(error, capsys, monkeypatch).strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_tracebacks_on_request_include_what_led_to_the_error(capsys, monkeypatch):
    monkeypatch.setenv("CAPPRONET_TRACEBACK", "1")
    try:
        try:
            raise KeyError("the cause")
        except KeyError:
            raise ValueError("what the user reads") from None
    except ValueError as error:
        shown = shown_error(error, capsys, monkeypatch)
    assert "KeyError: 'the cause'" in shown
    assert shown.strip().endswith("ValueError: what the user reads")
    assert "Traceback" in shown


@pytest.mark.slow
def test_a_missing_gpu_is_one_line_and_leaves_nothing(tmp_path):
    done = cappronet("train", "--accelerator", "cuda", "--epochs", "1", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "no CUDA device is available" in line
    assert list(tmp_path.iterdir()) == []
