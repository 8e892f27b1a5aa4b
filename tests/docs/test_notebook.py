"""The notebook of the examples runs from top to bottom, and says what its text promises."""

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="what runs notebooks is not installed: pip install '.[dev]'")
nbclient = pytest.importorskip("nbclient", reason="what runs notebooks is not installed: pip install '.[dev]'")
pytest.importorskip("ipykernel", reason="what runs notebooks is not installed: pip install '.[dev]'")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each code cell, by a part of its source."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        resources = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    cells = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    def of(part):
        (found,) = [cells[source] for source in cells if part in source]
        return found

    return of


def text(outputs):
    """What a cell prints and returns, as plain text."""
    return "\n".join(output.text if "text" in output else output.data["text/plain"] for output in outputs)


@pytest.mark.slow
def test_it_goes_from_features_to_a_page(outputs):
    error = float(re.fullmatch(r"([\d.]+) % error\n", text(outputs("CapsuleClassifier().fit")))[1])
    assert 0 < error < 5
    table = outputs("cappronet.probe(")
    assert "| capsule |" in table[-1].data["text/markdown"]
    assert re.search(r"\(array\(\[[\d, ]+\]\), array\(\[[\d, ]+\]\)\)", text(outputs("result.predict(")))
    shown = text(outputs("write_page"))
    wrong, total = map(int, re.search(r"(\d+) of (\d+) samples misclassified", shown).groups())
    assert total == 450
    assert 0 < wrong < 0.05 * total
    page = Path(re.search(r"open (.*report\.html)", shown)[1])
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_progress_is_shown_in_a_notebook_and_disappears(outputs):
    shown = outputs("cappronet.train(")
    line, result = [output for output in shown if output.output_type != "stream"]
    warnings = "".join(output.text for output in shown if output.output_type == "stream")
    assert 'install "ipywidgets"' not in warnings  # as rich says whose bar is used without them
    assert line.output_type == "display_data"
    assert line.data["text/plain"] == ""
    assert "| resnet8 | capsule c=4 |" in result.data["text/markdown"]
