"""Pictures are drawn from the rows they are given."""

from PIL import Image

from cappronet.figures import comparison_figure
from cappronet.results import Row


def test_a_comparison_is_drawn(tmp_path):
    rows = [
        Row("digits", "pixels", "linear", (5.0, 5.5, 4.5), 650, 1.0),
        Row("digits", "pixels", "capsule c=4", (2.0, 2.5, 2.2), 2560, 1.0),
        Row("digits", "resnet8", "linear", (1.5,), 75_002, 7.0),
    ]
    path = tmp_path / "figure.png"
    comparison_figure(rows, path)
    with Image.open(path) as image:
        assert image.width > 2 * image.height
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # both kinds of heads are there
