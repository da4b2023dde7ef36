"""The page and the picture of the comparison on tables: ranks, wins, and the figures of each table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.peers import ASKED_FOR, LIBRARIES

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "tables.md"
PICTURE = DOCS / "pictures" / "tables.png"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
SMALL = 2_000
"""The most rows of the tables on which all libraries are compared."""
OURS = "credax"
Losses = dict[str, dict[str, float]]
"""A figure for each table and library; the lower the better."""


# -- figures ----------------------------------------------------------------------------------------


def losses(figures: dict[str, Any], *measures: str) -> Losses:
    """For each table and library, the mean over the splits of the first of the measures that the table has.

    Only splits are used that all libraries of a table have, apart from those that run when they are asked for.
    A library that failed on a split has an infinite loss on the table.
    """
    found: Losses = {}
    for table, entry in sorted(figures.items(), key=lambda item: item[1]["rows"]):
        given = {name: entry["libraries"][name] for name in LIBRARIES if name in entry["libraries"]}
        deciding = [set(cells) for name, cells in given.items() if name not in ASKED_FOR]
        splits = set.intersection(*(deciding or [set(cells) for cells in given.values()]))
        known = {key for cells in given.values() for cell in cells.values() for key in cell}
        measure = next((each for each in measures if each in known), None)
        if splits and measure:
            found[table] = {
                name: float(np.mean([cells[split].get(measure, math.inf) for split in splits]))
                for name, cells in given.items()
                if splits <= set(cells)
            }
    return found


def tables_of(
    figures: dict[str, Any], task: str | None = None, most_rows: float = math.inf
) -> set[str]:
    """The tables of a task with no more than so many rows."""
    return {
        table
        for table, entry in figures.items()
        if task in (None, entry["task"]) and entry["rows"] <= most_rows
    }


def ranked(figures: dict[str, Any], most_rows: float = math.inf) -> list[str]:
    """The libraries that are run on all tables of this size and have been measured."""
    measured = {name for entry in figures.values() for name in entry["libraries"]}
    return [
        name
        for name, library in LIBRARIES.items()
        if name in measured and name not in ASKED_FOR and library.most_rows >= most_rows
    ]


def complete(found: Losses, tables: Iterable[str], libraries: Sequence[str]) -> np.ndarray:
    """The figures as ``(tables, libraries)``, of those tables on which all libraries have been measured."""
    tables = set(tables)
    rows = [
        [each[name] for name in libraries]
        for table, each in found.items()
        if table in tables and all(name in each for name in libraries)
    ]
    return np.array(rows).reshape(len(rows), len(libraries))


def average_ranks(table: np.ndarray) -> np.ndarray:
    """The mean over the rows of the rank of each column, 1 for the lowest; equal figures share a rank."""
    return stats.rankdata(table, axis=1).mean(0)


def critical_difference(libraries: int, tables: int, level: float = 0.05) -> float:
    r"""The least difference of two average ranks that is significant in the test of Nemenyi.

    .. math:: q_\alpha \sqrt{\frac{k (k + 1)}{6 N}}

    where :math:`q_\alpha` is the quantile of the studentised range of k values, divided by the root of two
    (Demšar, 2006).
    """
    quantile = stats.studentized_range.ppf(1 - level, libraries, math.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(libraries * (libraries + 1) / (6 * tables)))


def groups(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """The longest runs of libraries, sorted by rank, whose first and last are not significantly different."""
    ranks = sorted(ranks)
    runs = []
    for first in range(len(ranks)):
        last = max(i for i in range(len(ranks)) if ranks[i] - ranks[first] < difference)
        if last > first and (not runs or last > runs[-1][1]):
            runs.append((first, last))
    return runs


def wins(found: Losses, tables: Iterable[str], peer: str, ours: str = OURS) -> tuple[int, int]:
    """On how many tables we have the lower figure, and on how many the peer; half-way cases count for none."""
    pairs = complete(found, tables, [ours, peer])
    return int(np.sum(pairs[:, 0] < pairs[:, 1])), int(np.sum(pairs[:, 0] > pairs[:, 1]))


# -- the page ---------------------------------------------------------------------------------------


def write(figures: dict[str, Any], page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Put the tables into the page, each between its two comments, and draw the picture."""
    text = page.read_text()
    for name, part in parts(figures).items():
        begin, end = BEGIN.format(name), END.format(name)
        before, after = text[: text.index(begin) + len(begin)], text[text.index(end) :]
        text = f"{before}\n{part}\n{after}"
    page.write_text(text)
    draw(figures, picture)


def parts(figures: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page."""
    loss, distance = losses(figures, "nll"), losses(figures, "rmse", "error")
    made = {"summary": summary(figures), "second split": second_split(figures)}
    for task in ("regression", "classification"):
        tables = tables_of(figures, task)
        made[f"loss, {task}"] = table_of(figures, {t: f for t, f in loss.items() if t in tables})
        made[f"error, {task}"] = table_of(
            figures, {t: f for t, f in distance.items() if t in tables}
        )
    return made


def second_split(figures: dict[str, Any]) -> str:
    """On how many tables credax does better than each library, on the second split alone."""
    rows = []
    for library in (name for name in LIBRARIES if name != OURS):
        pairs = [
            (found[OURS]["1"], found[library]["1"])
            for found in (entry["libraries"] for entry in figures.values())
            if all("1" in found.get(name, {}) for name in (OURS, library))
        ]
        if not pairs:
            continue
        error = lambda cell: cell.get("rmse", cell.get("error", math.nan))  # noqa: E731
        cells = [
            f"{sum(of(ours) < of(theirs) for ours, theirs in pairs)} : "
            f"{sum(of(ours) > of(theirs) for ours, theirs in pairs)}"
            for of in (lambda cell: cell["nll"], error)
        ]
        rows.append([library, str(len(pairs)), *cells])
    header = ("library", "tables", "credax better : worse", "by RMSE or error")
    return _markdown(header, rows)


def summary(figures: dict[str, Any]) -> str:
    """A row for each library: its average ranks, how often credax does better, coverage and seconds."""
    loss, score = losses(figures, "nll"), losses(figures, "crps")
    distance = losses(figures, "rmse", "error")
    coverage, seconds = losses(figures, "coverage"), losses(figures, "seconds")
    everywhere = tables_of(figures)
    header = (
        "library",
        "rank",
        f"rank, up to {SMALL:,} rows",
        "rank by CRPS",
        "rank by RMSE or error",
        "credax better : worse",
        "coverage",
        "off by",
        "seconds, median",
        "seconds, longest",
    )
    columns = [
        _ranks(loss, everywhere, ranked(figures)),
        _ranks(loss, tables_of(figures, most_rows=SMALL), ranked(figures, SMALL)),
        _ranks(score, everywhere, ranked(figures)),
        _ranks(distance, everywhere, ranked(figures)),
    ]
    rows = []
    for name in LIBRARIES:
        if not any(name in entry["libraries"] for entry in figures.values()):
            continue
        cells = [column.get(name, "") for column in columns]
        won, lost = wins(loss, everywhere, name)
        cells.append(f"{won} : {lost}" if won + lost else "")
        covered = [
            each[name] for each in coverage.values() if math.isfinite(each.get(name, math.inf))
        ]
        cells.append(f"{100 * np.mean(covered):.1f} %" if covered else "")
        cells.append(f"{100 * np.mean(np.abs(np.array(covered) - 0.9)):.1f} %" if covered else "")
        took = [each[name] for each in seconds.values() if math.isfinite(each.get(name, math.inf))]
        cells += [f"{np.median(took):.2g}", f"{max(took):,.0f}"] if took else ["", ""]
        rows.append([name, *cells])
    return _markdown(header, rows)


def _ranks(found: Losses, tables: Iterable[str], libraries: Sequence[str]) -> dict[str, str]:
    """The average rank of each library in words, the best in bold."""
    table = complete(found, tables, libraries)
    if not len(table) or len(libraries) < 2:
        return {}
    ranks = average_ranks(table)
    return {
        name: f"**{rank:.2f}**" if rank == ranks.min() else f"{rank:.2f}"
        for name, rank in zip(libraries, ranks, strict=True)
    }


def table_of(figures: dict[str, Any], found: Losses) -> str:
    """A row for each table and a column for each library; the best figure of a table in bold."""
    libraries = [name for name in LIBRARIES if any(name in each for each in found.values())]
    rows = []
    for table, each in found.items():
        best = f"{min(each.values()):.3f}"
        texts = {name: f"{value:.3f}" for name, value in each.items()}
        cells = [f"**{texts[n]}**" if texts.get(n) == best else texts.get(n, "") for n in libraries]
        entry = figures[table]
        rows.append([table, f"{entry['rows']:,}", f"{entry['columns']}", *cells])
    return _markdown(("table", "rows", "columns", *libraries), rows)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# -- the picture ------------------------------------------------------------------------------------


def draw(figures: dict[str, Any], path: Path) -> None:
    """The average ranks with the critical difference, on all tables and on the small ones (Demšar, 2006)."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    found, panels = losses(figures, "nll"), []
    for title, most_rows in (("all tables", math.inf), (f"tables of up to {SMALL:,} rows", SMALL)):
        libraries = ranked(figures, most_rows)
        table = complete(found, tables_of(figures, most_rows=most_rows), libraries)
        if len(table) and len(libraries) > 1:
            panels.append((f"{title}: {len(table)}", libraries, table))
    if not panels:
        return
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(7.5, 2.5 * len(panels)), squeeze=False, layout="constrained"
    )
    for axis, (title, libraries, table) in zip(axes[:, 0], panels, strict=True):
        _diagram(axis, title, libraries, average_ranks(table), len(table))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _diagram(
    axis: Any, title: str, libraries: Sequence[str], ranks: np.ndarray, tables: int
) -> None:
    """One axis of ranks; lines lead from it to the names, and bars join what is not significantly different."""
    count = len(libraries)
    difference = critical_difference(count, tables)
    order = np.argsort(ranks)
    names, ranks = [libraries[i] for i in order], ranks[order]
    left = (count + 1) // 2
    joined = groups(ranks.tolist(), difference)
    first = 0.5 + 0.35 * len(joined)  # the depth of the uppermost name, below the bars
    axis.plot([1, count], [0, 0], color="black", lw=1)
    for rank in range(1, count + 1):
        axis.plot([rank, rank], [0, 0.15], color="black", lw=1)
        axis.text(rank, 0.25, str(rank), ha="center", va="bottom", fontsize=9)
    for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        on_left = place < left
        depth = first + 0.55 * (place if on_left else count - 1 - place)
        end = 1 - 0.15 if on_left else count + 0.15
        ours = name == OURS
        colour = "#c8502d" if ours else "#333333"
        axis.plot([rank, rank, end], [0, -depth, -depth], color=colour, lw=1.6 if ours else 0.9)
        text = f"{name}  {rank:.2f}" if on_left else f"{rank:.2f}  {name}"
        aligned = "right" if on_left else "left"
        weight = "bold" if ours else "normal"
        nudge = -0.05 if on_left else 0.05
        axis.text(
            end + nudge,
            -depth,
            text,
            ha=aligned,
            va="center",
            color=colour,
            weight=weight,
            fontsize=9,
        )
    for place, (a, b) in enumerate(joined):
        height = -0.28 - 0.35 * place
        axis.plot(
            [ranks[a] - 0.04, ranks[b] + 0.04],
            [height] * 2,
            color="#1f3b73",
            lw=4,
            solid_capstyle="butt",
        )
    axis.plot([1, 1 + difference], [1.15, 1.15], color="black", lw=1)
    for end in (1, 1 + difference):
        axis.plot([end, end], [1.05, 1.25], color="black", lw=1)
    text = f"critical difference {difference:.2f}"
    axis.text(1 + difference + 0.08, 1.15, text, va="center", fontsize=9)
    axis.set_title(title, loc="left", fontsize=10, weight="bold")
    axis.set(xlim=(1 - 0.34 * count, count + 0.34 * count), ylim=(-first - 0.55 * left, 1.5))
    axis.axis("off")
