"""Pictures are drawn from the rows they are given, once for light and once for dark pages."""

import pytest
from PIL import Image

from cappronet.training.figures import comparison_figure, dark_path
from cappronet.training.results import Row

ROWS = [
    Row("digits", "pixels", "linear", (5.0, 5.5, 4.5), 650, 1.0),
    Row("digits", "pixels", "capsule c=4", (2.0, 2.5, 2.2), 2560, 1.0),
    Row("digits", "resnet8", "linear", (1.5,), 75_002, 7.0),
]


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "figure.png"
    comparison_figure(ROWS, path)
    return path


@pytest.mark.parametrize(("theme", "paper"), [("light", (255, 255, 255)), ("dark", (13, 17, 23))])
def test_a_comparison_is_drawn_in_both_themes(figure, theme, paper):
    path = figure if theme == "light" else dark_path(figure)
    with Image.open(path) as image:
        assert image.width > 2 * image.height
        assert image.convert("RGB").getpixel((0, 0)) == paper
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # both kinds of heads are there


def test_the_dark_version_has_its_own_name(figure):
    assert sorted(path.name for path in figure.parent.iterdir()) == ["figure-dark.png", "figure.png"]
