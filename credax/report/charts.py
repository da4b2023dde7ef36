"""Charts as inline SVG: axes with round numbers, and the few kinds of marks that a report needs.

Colours are CSS classes, so that a chart takes on the light, dark or print style of the page. Text is escaped
here, numbers that are not finite are left out, and marks are clipped at the axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

WIDTH, HEIGHT = 440, 300
TOP, RIGHT, BOTTOM, LEFT = 30, 16, 46, 50
CHARACTER = 6.4
"""The mean width of a character in a label."""
COLOURS = "abcdef"
"""The CSS classes of the colours for series."""
PATH = 250
"""The largest number of points in a line; more would not be visible."""
LONGEST = 20
"""The largest number of characters of a name on an axis."""


def ticks(lower: float, upper: float, count: int = 5) -> list[float]:
    """About ``count`` multiples of a round number (1, 2 or 5 times a power of ten) from ``lower`` to ``upper``.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not (math.isfinite(lower) and math.isfinite(upper)) or upper <= lower:
        return [lower]
    power = 10.0 ** math.floor(math.log10((upper - lower) / count))
    wanted = (upper - lower) / count / power
    step = power * next(
        (size for size in (1, 2, 5) if wanted <= size * 1.0001 + 0.2 * (size > 1)), 10
    )
    first, last = math.ceil(lower / step - 1e-9), math.floor(upper / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def tick_labels(values: Sequence[float], *, percent: bool = False) -> list[str]:
    """The numbers as text, with as many digits as are needed to tell them apart."""
    values = [100 * value for value in values] if percent else list(values)
    step = min((b - a for a, b in itertools.pairwise(values)), default=0.0)
    largest = max((abs(value) for value in values), default=0.0)
    if largest >= 1e7 or 0 < largest < 1e-3:
        labels = [f"{value:.3g}" for value in values]
    else:
        digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 2 * (largest < 100)
        labels = [f"{value:,.{digits}f}".replace(",", "\u202f") for value in values]
    return [label.replace("-", "\u2212") + ("\u00a0%" if percent else "") for label in labels]


def extent(*values: Any, margin: float = 0.04, zero: bool = False) -> tuple[float, float]:
    """An interval, never empty, from the least to the greatest finite number, with a margin at both ends.

    Args:
      *values: arrays of any shape.
      margin: the margin, as a share of the distance between the two numbers.
      zero: whether the interval must include zero; an end at zero has no margin.
    """
    joined = np.concatenate([np.ravel(np.asarray(each, float)) for each in values])
    joined = joined[np.isfinite(joined)]
    if not joined.size:
        return 0.0, 1.0
    lower, upper = float(joined.min()), float(joined.max())
    if zero:
        lower, upper = min(lower, 0.0), max(upper, 0.0)
    wide = upper - lower
    if wide <= 1e-9 * max(abs(lower), abs(upper)):
        half = 0.5 * abs(upper) or 0.5
        return lower - half * (not zero or lower < 0), upper + half * (not zero or upper >= 0)
    ends = (lower - margin * wide, upper + margin * wide)
    return (
        lower if zero and lower == 0 else ends[0],
        upper if zero and upper == 0 else ends[1],
    )


def some_of(rows: int, most: int) -> np.ndarray:
    """At most ``most`` of the indices 0, ..., rows - 1, evenly spaced, the first and last among them."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).round().astype(int))


def shortened(name: str, longest: int = LONGEST) -> str:
    """The name, cut to at most ``longest`` characters."""
    return name if len(name) <= longest else name[: longest - 1] + "\u2026"


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
      label: the name of the quantity.
      lower: the value at which the axis begins; if it is above ``upper``, the axis is reversed.
      upper: the value at which the axis ends.
      percent: whether the numbers are shares, to be shown as percentages.
      dates: whether the numbers are days since 1970, to be shown as dates.
      names: labels for the values 0, 1, 2, ... instead of numbers.
    """

    label: str
    lower: float = 0.0
    upper: float = 1.0
    percent: bool = False
    dates: bool = False
    names: tuple[str, ...] = ()

    @classmethod
    def of_names(cls, names: Sequence[str], label: str = "") -> Axis:
        """An axis with these names from top to bottom."""
        return cls(label, len(names) - 0.5, -0.5, names=tuple(map(shortened, names)))

    def ticks(self) -> list[tuple[float, str]]:
        """The position and the label of each tick."""
        if self.names:
            return list(enumerate(self.names))
        if self.dates:
            days, length = np.linspace(self.lower, self.upper, 4), self.upper - self.lower
            text = [
                str(np.datetime64(round(day), "D"))[: 7 if length > 730 else 10] for day in days
            ]
            return list(zip(days.tolist(), text, strict=True))
        values = ticks(self.lower, self.upper)
        return list(zip(values, tick_labels(values, percent=self.percent), strict=True))


@dataclass
class Chart:
    """A chart: two axes, and marks in the order in which they were added.

    Each mark takes the name of a CSS class (``"a"`` to ``"f"`` are the colours of series).

    Attributes:
      title: what the chart is, for screen readers.
      description: what the chart shows, for screen readers.
      x: the horizontal axis.
      y: the vertical axis, whose label is written above it.
      height: the height of the chart, in SVG units.
    """

    title: str
    description: str
    x: Axis
    y: Axis
    height: float = HEIGHT
    _marks: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        """The width of the margin for the labels of the y axis."""
        longest = max((len(label) for _, label in self.y.ticks()), default=0)
        return max(LEFT, 14 + CHARACTER * longest)

    def across(self, x: Any) -> np.ndarray:
        """The distance of these x values from the left edge of the axes."""
        share = (np.asarray(x, float) - self.x.lower) / (self.x.upper - self.x.lower)
        return share * (WIDTH - RIGHT - self.left)

    def down(self, y: Any) -> np.ndarray:
        """The distance of these y values from the upper edge of the axes."""
        share = (np.asarray(y, float) - self.y.lower) / (self.y.upper - self.y.lower)
        return (1 - share) * (self.height - TOP - BOTTOM)

    # -- marks ---------------------------------------------------------------------------------------

    def line(self, x: Any, y: Any, css: str = "a") -> Chart:
        """Add a line through the points in their order."""
        points = _points(self.across(x), self.down(y))
        return self._path("M" + "L".join(points), f"line {css}") if points else self

    def band(self, x: Any, lower: Any, upper: Any, css: str = "a") -> Chart:
        """Add the area between two lines."""
        x, lower, upper = (np.asarray(each, float) for each in (x, lower, upper))
        fine = np.isfinite(x) & np.isfinite(lower) & np.isfinite(upper)
        there = _points(self.across(x[fine]), self.down(lower[fine]))
        back = _points(self.across(x[fine]), self.down(upper[fine]))[::-1]
        return self._path("M" + "L".join(there + back) + "Z", f"band {css}") if there else self

    def dots(self, x: Any, y: Any, css: str = "a") -> Chart:
        """Add a dot at each point: a line of length zero with round ends, which takes the fewest bytes."""
        points = _points(self.across(x), self.down(y))
        return (
            self._path("".join(f"M{point}h0" for point in points), f"dots {css}")
            if points
            else self
        )

    def whiskers(self, x: Any, lower: Any, upper: Any, css: str = "a") -> Chart:
        """Add a vertical line from ``lower`` to ``upper`` at each x."""
        begin = _points(self.across(x), self.down(lower))
        end = _points(self.across(x), self.down(upper))
        return self._segments(begin, end, css)

    def spans(self, y: Any, lower: Any, upper: Any, css: str = "a") -> Chart:
        """Add a horizontal line from ``lower`` to ``upper`` at each y."""
        begin = _points(self.across(lower), self.down(y))
        end = _points(self.across(upper), self.down(y))
        return self._segments(begin, end, css)

    def histogram(self, edges: Any, heights: Any, css: str = "a") -> Chart:
        """Add a column, from zero up, between each pair of neighbouring edges."""
        places, tops, zero = self.across(edges), self.down(heights), float(self.down(0.0))
        columns = zip(places[:-1] + 0.75, places[1:] - 0.75, tops, strict=True)
        path = "".join(
            f"M{_short(a)} {_short(zero)}V{_short(top)}H{_short(b)}V{_short(zero)}Z"
            for a, b, top in columns
            if np.isfinite(top)
        )
        return self._path(path, f"area {css}") if path else self

    def bars(self, values: Any, css: str = "a") -> Chart:
        """Add a horizontal bar, from zero, at y = 0, 1, 2, ...."""
        ends, zero, places = (
            self.across(values),
            float(self.across(0.0)),
            np.arange(np.size(values)),
        )
        above, below = self.down(places - 0.32), self.down(places + 0.32)
        path = "".join(
            f"M{_short(zero)} {_short(a)}H{_short(end)}V{_short(b)}H{_short(zero)}Z"
            for end, a, b in zip(ends, above, below, strict=True)
            if np.isfinite(end)
        )
        return self._path(path, f"area {css}") if path else self

    def rug(self, x: Any) -> Chart:
        """Add a short stroke on the x axis at each value."""
        low = self.height - TOP - BOTTOM
        strokes = [f"M{_short(a)} {_short(low)}v-5" for a in self.across(x) if np.isfinite(a)]
        return self._path("".join(strokes), "rug") if strokes else self

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", css: str = "note"
    ) -> Chart:
        """Add text at a point."""
        place = f'x="{_short(float(self.across(x)))}" y="{_short(float(self.down(y)))}"'
        self._marks.append(
            f'<text class="{css}" {place} text-anchor="{anchor}">{escape(text)}</text>'
        )
        return self

    def _segments(self, begin: list[str], end: list[str], css: str) -> Chart:
        path = "".join(f"M{a}L{b}" for a, b in zip(begin, end, strict=True))
        return self._path(path, f"whisker {css}") if path else self

    def _path(self, path: str, css: str) -> Chart:
        self._marks.append(f'<path class="{css}" d="{path}"/>')
        return self

    # -- the SVG -------------------------------------------------------------------------------------

    def __str__(self) -> str:
        wide, high = WIDTH - RIGHT - self.left, self.height - TOP - BOTTOM
        inner = f'x="{_short(self.left)}" y="{TOP}" width="{_short(wide)}" height="{_short(high)}"'
        return (
            f'<svg role="img" viewBox="0 0 {WIDTH} {_short(self.height)}" '
            f'aria-label="{escape(self.title, quote=True)}">'
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
            f"{self._frame(wide, high)}<svg {inner}>{''.join(self._marks)}</svg></svg>"
        )

    def _frame(self, wide: float, high: float) -> str:
        left, base = self.left, TOP + high
        parts, grid = [], []
        for value, label in self.y.ticks():
            at = _short(TOP + float(self.down(value)))
            if not self.y.names:
                grid.append(f"M{_short(left)} {at}h{_short(wide)}")
            place = f'x="{_short(left - 8)}" y="{at}" dy="0.35em" text-anchor="end"'
            parts.append(f"<text {place}>{escape(label)}</text>")
        for value, label in self.x.ticks():
            at = float(self.across(value))
            above = -high if self.y.names else 4
            grid.append(f"M{_short(left + at)} {_short(base)}v{_short(above)}")
            # A long label at the right end would not fit into the chart.
            half = CHARACTER * len(label) / 2
            at = min(at, wide + RIGHT - half)
            place = f'x="{_short(left + at)}" y="{_short(base + 18)}" text-anchor="middle"'
            parts.append(f"<text {place}>{escape(label)}</text>")
        axis = f"M{_short(left)} {_short(base)}h{_short(wide)}"
        middle = f'x="{_short(left + wide / 2)}" y="{_short(base + 38)}" text-anchor="middle"'
        return (
            f'<g class="frame"><path class="grid" d="{"".join(grid)}"/><path class="axis" d="{axis}"/>'
            f'{"".join(parts)}<text class="name" {middle}>{escape(shortened(self.x.label, 60))}</text>'
            f'<text class="name" x="2" y="14">{escape(shortened(self.y.label, 60))}</text></g>'
        )


def _points(across: np.ndarray, down: np.ndarray) -> list[str]:
    across, down = np.broadcast_arrays(np.atleast_1d(across), np.atleast_1d(down))
    pairs = zip(across.tolist(), down.tolist(), strict=True)
    return [f"{_short(a)} {_short(b)}" for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _short(value: float) -> str:
    """A coordinate as text, to a tenth of a pixel; values far outside the chart are clipped."""
    text = f"{min(max(value, -1e4), 1e4):.1f}"
    return text[:-2] if text.endswith(".0") else text
