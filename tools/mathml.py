r"""A Python-Markdown extension: formulas between dollar signs become MathML when the site is built.

Code hosts render `$...$` and `$$...$$` themselves. In the site, browsers render MathML without a script or a font from
another host, so a formula is converted once, here.

    >>> import markdown
    >>> html = markdown.markdown("Lengths end at $\\lVert x \\rVert$.", extensions=["tools.mathml"])
    >>> html.startswith('<p>Lengths end at <math'), html.endswith('</math>.</p>')
    (True, True)
"""

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

__all__ = ["makeExtension"]

# As on code hosts: no space inside the dollars, no word character right before or after them.
INLINE = r"(?<![\\$\w])\$(?=[^\s$])([^$]+?)(?<=[^\s$\\])\$(?![\w$])"
BLOCK = re.compile(r"^\$\$\s*(.+?)\s*\$\$$", re.DOTALL)
# A bar in the middle of a formula gets the spaces of an operator, unless it is marked as a fence.
FENCES = {r"\lVert": r"\left\lVert", r"\rVert": r"\right\rVert", r"\lvert": r"\left\lvert", r"\rvert": r"\right\rvert"}


def _converted(formula: str, display: str) -> str:
    for bar, fence in FENCES.items():
        formula = formula.replace(bar, fence)
    return convert(formula, display=display)


class _Inline(InlineProcessor):
    """`$...$` within a line of text."""

    def handleMatch(self, m: "re.Match[str]", data: str) -> tuple[str, int, int]:  # noqa: ARG002
        """The placeholder of a formula; Markdown leaves what it stands for alone."""
        return self.md.htmlStash.store(_converted(m[1], "inline")), m.start(0), m.end(0)


class _Block(BlockProcessor):
    """`$$...$$` as a paragraph of its own."""

    def __init__(self, md: Markdown) -> None:
        super().__init__(md.parser)
        self.md = md

    def test(self, parent: Element, block: str) -> bool:  # noqa: ARG002
        """Whether this paragraph is a formula."""
        return BLOCK.match(block.strip()) is not None

    def run(self, parent: Element, blocks: list[str]) -> None:
        """A formula in a line of its own, which scrolls where it is too wide."""
        found = BLOCK.match(blocks.pop(0).strip())
        assert found is not None
        html = f'<div class="formula">{_converted(found[1], "block")}</div>'
        SubElement(parent, "p").text = self.md.htmlStash.store(html)


class _Mathml(Extension):
    """Formulas in text and in lines of their own."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Formulas come after code, which may contain dollars, and before what reads underscores."""
        md.inlinePatterns.register(_Inline(INLINE, md), "formula", 185)
        md.parser.blockprocessors.register(_Block(md), "formula", 75)


def makeExtension(**options: Any) -> Extension:
    """The extension, for `markdown_extensions` of mkdocs.yml."""
    return _Mathml(**options)
