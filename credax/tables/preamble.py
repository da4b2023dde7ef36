"""What stands in a file of text besides the table: lines above the names of columns, odd ends of lines."""

from __future__ import annotations

import re

_EXCEL = re.compile(rb'"?sep=(?P<separator>.)"?[ \r]*\n', re.IGNORECASE)
"""The line with which Excel is told the separator."""
_COMMENTS = re.compile(rb"(?:#[^\n]*\n|[ \t\r]*\n)+")
_PADDED = re.compile(rb'[,;|\t "\n]0\d\d')


def table_of(content: bytes) -> tuple[bytes, str, list[str]]:
    r"""The table in a text, without what stands above the names of its columns.

    Returns:
      The text, the separator that its first line names (empty if there is no such line), and sentences about
      what was left out.

    >>> table_of(b"# by hand\n\na,b\n1,2\n")[0], table_of(b"sep=;\na;b\n1;2\n")[1]
    (b'a,b\n1,2\n', ';')
    """
    notes = []
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")  # as old programs end lines
    separator = ""
    excel = _EXCEL.match(content)
    if excel:
        separator, content = excel["separator"].decode("latin-1"), content[excel.end() :]
    comments = _COMMENTS.match(content)
    if comments and content.startswith(b"#"):
        above, below = comments[0].rstrip().splitlines(), content[comments.end() :]
        # The names of the columns may begin with a hash too: then their line has as many fields as the next.
        names = above[-1] if _fields(above[-1]) == _fields(below.partition(b"\n")[0]) > 1 else b""
        left_out = len(above) - bool(names)
        content = names + b"\n" + below if names else below
        if left_out:
            lines = "line that begins" if left_out == 1 else f"{left_out} lines that begin"
            notes.append(f"The {lines} with # above the table {_were(left_out)} left out.")
    return content, separator, notes


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _fields(line: bytes) -> int:
    """The number of fields of a line, by the most frequent of the usual separators."""
    return 1 + max(line.count(separator) for separator in (b",", b";", b"\t", b"|"))


def has_padded_numbers(content: bytes) -> bool:
    """Whether a field begins like a code with leading zeros, such as 01234, which is no number."""
    return bool(_PADDED.search(content))


def is_spaced(sample: str) -> bool:
    r"""Whether lines are names and then numbers, with nothing but spaces between them.

    >>> is_spaced("a b\n1 2\n3  4"), is_spaced("full name\nAnn Lee")
    (True, False)
    """
    lines = [line.split() for line in sample.splitlines() if line.strip()]
    if len(lines) < 2 or len({len(line) for line in lines}) > 1 or len(lines[0]) < 2:
        return False
    try:
        for line in lines[1:]:
            [float(field) for field in line]
    except ValueError:
        return False
    return True
