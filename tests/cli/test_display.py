"""The progress bar and the tables of the commands."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cappronet import reporting
from cappronet.cli.display import CommandConsole, print_csv, print_table, print_text, printable, progress_bar
from cappronet.reporting import Table


def test_the_progress_bar_shows_what_is_reported_and_disappears():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress_bar(console) as report:
        report("epoch 3/30  loss 0.123 [bold]", 5, 10)
    shown = console.file.getvalue()
    assert "epoch 3/30  loss 0.123 [bold]" in shown  # text, not markup
    assert shown.endswith("\x1b[2K")  # the line is erased


@pytest.fixture
def clock(monkeypatch):
    """Seconds since the start, which a test sets."""
    seconds = [0.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: seconds[0])
    return seconds


def test_a_log_gets_one_line_for_each_epoch_with_the_time_left(clock):
    console = Console(file=io.StringIO(), width=40)
    with progress_bar(console) as report:
        report("epoch 2/4", 10, 40)  # resumed: one epoch was done before
        for done in (15, 20, 25, 30):
            clock[0] += 5
            report(f"epoch {-(-done // 10)}/4  loss {1 / done:.3f}  error {done}.00 %  9 images/s", done, 40)
    assert console.file.getvalue().splitlines() == [
        "epoch 2/4  loss 0.050  error 20.00 %  9 images/s  about 20 s left",
        "epoch 3/4  loss 0.033  error 30.00 %  9 images/s  about 10 s left",
    ]


def test_work_of_another_kind_has_an_estimate_of_its_own(clock):
    console = Console(file=io.StringIO(), width=80)
    with progress_bar(console) as report:
        report("tuning run 1/1", 0, 10)
        clock[0] += 1000
        report("tuning run 1/1", 10, 10)
        report("run 1/2", 0, 20)
        clock[0] += 10
        report("run 1/2", 5, 20)
    assert console.file.getvalue().splitlines() == ["tuning run 1/1", "run 1/2  about 30 s left"]


def test_other_work_gets_a_line_a_minute_and_none_if_it_is_short(clock):
    console = Console(file=io.StringIO(), width=80)
    with progress_bar(console) as report:
        report("evaluating", 0, 10)
        clock[0] += 40
        report("evaluating", 4, 10)
        assert console.file.getvalue() == ""
        clock[0] += 40
        report("evaluating", 8, 10)
    assert console.file.getvalue() == "evaluating  about 20 s left\n"


def test_the_time_left_is_not_estimated_from_the_first_steps(clock):
    console = Console(file=io.StringIO(), width=80)
    with progress_bar(console) as report:
        report("run 1/2", 0, 1000)
        clock[0] += 70  # compiling
        report("run 1/2", 1, 1000)
        clock[0] += 70
        report("run 1/2", 140, 1000)
    assert console.file.getvalue().splitlines() == ["run 1/2", "run 1/2  about 14 min left"]


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_no_progress(terminal):
    console = CommandConsole(file=io.StringIO(), force_terminal=terminal)
    console.shows_progress = False
    with progress_bar(console) as report:
        report("epoch 1/1  loss 1", 1, 1)
    assert console.file.getvalue() == ""


def test_csv_holds_names_from_elsewhere():
    console = Console(file=io.StringIO())
    print_csv(("file", "row"), [('a,"b.png', None), ("caf\udce9.png", 3)], console)
    assert console.file.getvalue() == 'file,row\n"a,""b.png",\ncaf\\udce9.png,3\n'


def test_cells_are_text_and_wide_tables_come_in_parts():
    console = Console(file=io.StringIO(), width=40)
    headings = ("image", *(f"column{i}" for i in range(6)))
    print_table(Table(headings, [("[red]a.png", *"123456")]), console)
    lines = [line for line in console.file.getvalue().splitlines() if "[red]a.png" in line]
    assert len(lines) > 1
    cells = [cell.strip() for line in lines for cell in line.split("│")[2:-1]]
    assert cells == list("123456")


HOSTILE = (
    "cat [/x]",
    "dog [male]",
    ":dog:",
    "a\x1b[31mb",
    "a\x07b",
    "a\nb",
    "a\rb",
    "a\u202eb",
    "a\x9b31m",
    "caf\udce9",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_elsewhere_are_shown_as_text_and_control_nothing(name):
    shown = printable(name)
    assert "\n" not in shown
    console = Console(file=io.StringIO(), width=120)
    print_text(f"class {name}", console)
    print_table(Table((name, "n"), [(name, "1")], title=name), console)
    with progress_bar(Console(file=io.StringIO(), force_terminal=True)) as report:
        report(name, 1, 2)
    output = console.file.getvalue()
    assert output.count(shown) == 4
    assert output.replace("\n", "").isprintable()
    output.encode()


@given(st.text())
def test_printable_text_is_one_line_of_utf8_without_controls(text):
    shown = printable(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not set(shown) & {chr(code) for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F))}


@pytest.mark.parametrize("text", ["Zürich", "猫", "नमस्ते", "क\u200cष", "👩\u200d🔬", "a  b", "C:\\x"])
def test_ordinary_text_stays(text):
    assert printable(text) == text
