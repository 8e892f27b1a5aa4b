"""Commands in the process of the tests: a new one takes seconds to import what it needs."""

import pytest

from cappronet.cli import app, run_app


@pytest.fixture
def shown(capsys):
    """A function that runs a command and returns what it printed."""

    def printed(*arguments):
        capsys.readouterr()
        app.meta(list(map(str, arguments)), result_action="return_value")
        return capsys.readouterr().out

    return printed


@pytest.fixture
def mistake(capsys, monkeypatch):
    """A function that runs a command with a mistake in it, and returns the one line that reports it."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.delenv("CAPPRONET_TRACEBACK", raising=False)

    def reported(*arguments):
        with pytest.raises(SystemExit) as ended:
            run_app(lambda: app.meta(list(map(str, arguments))))
        assert ended.value.code == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ")
        return line

    return reported
