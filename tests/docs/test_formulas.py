"""Formulas in pages become MathML in the site, and nothing else does."""

import re
from pathlib import Path

import pytest

markdown = pytest.importorskip(
    "markdown", reason="zensical, which builds the site, is not installed: pip install '.[dev]'"
)
pytest.importorskip("latex2mathml", reason="what builds the site is not installed: pip install '.[dev]'")

DOCS = Path(__file__).parents[2] / "docs"
# What code hosts take for formulas: in lines of their own, and within a line.
DISPLAYED = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\\$\w`])\$([^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])")


def rendered(text):
    return markdown.markdown(text, extensions=["tools.mathml", "tables", "fenced_code"])


def test_a_formula_in_a_sentence():
    html = rendered(r"The capsule is $v = W_l z$, a vector.")
    assert re.fullmatch(r"<p>The capsule is <math .*</math>, a vector.</p>", html)
    assert "<msub><mi>W</mi><mi>l</mi></msub>" in html


def test_a_formula_in_a_line_of_its_own():
    html = rendered("Above\n\n$$\nx^\\top W\n$$\n\nbelow")
    assert html.startswith('<p>Above</p>\n<div class="formula"><math')
    assert 'display="block"' in html
    assert html.endswith("</div>\n<p>below</p>")


def test_bars_are_fences():
    html = rendered(r"$a = \lVert v \rVert^2$")
    assert html.count('fence="true"') == 2


@pytest.mark.parametrize(
    "text",
    ["it costs $5 and $6", "`$x$` in code", "```sh\nsrun --run $NODE --job $JOB\n```", r"an escaped \$x$ dollar"],
)
def test_other_dollars_stay(text):
    assert "<math" not in rendered(text)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_every_formula_is_understood(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    formulas = [*DISPLAYED.findall(text), *INLINE.findall(DISPLAYED.sub("", text))]
    html = "".join(rendered(f"${formula}$") for formula in formulas)
    assert html.count("<math") == len(formulas)
    # What the converter does not know it writes out as it is.
    assert not re.search(r"\\[A-Za-z]|<mi>&(?:amp;)?</mi>", html)
    assert "$" not in DISPLAYED.sub("", INLINE.sub("", text))
    if page.stem == "theory":
        assert len(formulas) > 40
