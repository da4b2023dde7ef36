"""Tables of results, as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns separated by two spaces; the first is aligned to the left, the others to the right.

    >>> print(text_table(("", "mean"), [("0", "-1.234"), ("1", "0.5")]))
         mean
    0  -1.234
    1     0.5
    """
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def html_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str = "",
    notes: Sequence[str] = (),
) -> str:
    """A table as HTML, for ``_repr_html_``.

    Args:
      heads: the headings of the columns; none if empty.
      rows: the cells of each row.
      caption: a line above the table.
      notes: lines below the table.
    """
    cells = lambda tag, line: "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line)  # noqa: E731
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells('td', line)}</tr>" for line in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table>{title}{head}<tbody>{body}</tbody></table>{below}"
