"""Tables as text: for a page in Markdown, for a terminal in as many parts as its width needs, with no number cut."""

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """Headings and lines of text.

    Attributes:
        headings: one for each column.
        lines: one cell for each column.
        names: how many of the first columns name a line; the others are numbers.
        title: what a terminal shows above it.
    """

    headings: tuple[str, ...]
    lines: list[tuple[str, ...]]
    names: int = 1
    title: str = ""

    def markdown(self) -> str:
        """The table for a page."""
        rule = ["---" if i < self.names else "--:" for i in range(len(self.headings))]
        text = [f"| {' | '.join(self.headings)} |", f"|{'|'.join(rule)}|"]
        return "\n".join(text + [f"| {' | '.join(line)} |" for line in self.lines])

    def without(self, *headings: str) -> "Grid":
        """The same without these columns."""
        kept = [i for i, heading in enumerate(self.headings) if heading not in headings]
        lines = [tuple(line[i] for i in kept) for line in self.lines]
        names = sum(i < self.names for i in kept)
        return Grid(tuple(self.headings[i] for i in kept), lines, names, self.title)

    def tables(self, width: int) -> "list[Table]":
        """The table for a terminal of this width; what does not fit beside the names comes below, with them again."""
        widths = [self._width(i) for i in range(len(self.headings))]
        room = width - 1 - sum(wide + 3 for wide in widths[: self.names])
        parts: list[list[int]] = [[]]
        for i in range(self.names, len(widths)):
            if parts[-1] and sum(widths[j] + 3 for j in [*parts[-1], i]) > room:
                parts.append([])
            parts[-1].append(i)
        return [self._part([*range(self.names), *part], self.title if part is parts[0] else "") for part in parts]

    def _width(self, column: int) -> int:
        """Of the longest cell, or the longest word of the heading, which may take several lines."""
        words = self.headings[column].split()
        return max(map(len, [*words, *(line[column] for line in self.lines)]), default=0)

    def _part(self, columns: list[int], title: str) -> "Table":
        from rich.table import Table

        table = Table(title=title or None, title_justify="left")
        for i in columns:
            heading = "\n".join(textwrap.wrap(self.headings[i], max(1, self._width(i))))
            name = i < self.names
            table.add_column(heading, justify="left" if name else "right", no_wrap=not name)
        for number, line in enumerate(self.lines):
            if self.names > 1 and number and line[0] != self.lines[number - 1][0]:
                table.add_section()
            table.add_row(*(line[i] for i in columns))
        return table
