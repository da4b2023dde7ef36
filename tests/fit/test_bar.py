"""The progress bar keeps what matters in a narrow terminal, and says that a program compiles."""

import io
import time

import pytest
from rich.console import Console

import credax as cx
from credax.fit.progress import Bar

FIGURES = {"log_joint": -1234.5678, "acceptance_rate": 0.8123, "step_size": 0.00123, "energy": 5e4}


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("method", [cx.MAP(num_steps=20_000), cx.MicrocanonicalEnsemble()])
def test_the_bar_the_count_and_the_remaining_time_are_always_shown(width, method):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    bar = Bar(method, False, console=console)
    bar.update(method.num_steps // 2, FIGURES)
    with console.capture() as shown:
        console.print(bar._progress.make_tasks_table(bar._progress.tasks))
    lines = shown.get().splitlines()
    assert len(lines) == 1
    text = lines[0]
    assert type(method).__name__ in text
    assert "━" * 5 in text
    assert f"{method.num_steps // 2}/{method.num_steps}" in text
    assert ":" in text.partition(f"/{method.num_steps}")[2], "the remaining time"
    assert len(text) <= width


def test_the_seconds_of_compiling_go_on_by_themselves():
    shown = io.StringIO()
    console = Console(file=shown, width=120, color_system=None, force_terminal=True)
    with Bar(cx.MAP(num_steps=5), True, console=console) as bar:
        time.sleep(2.6)  # as a call of the compiler, during which nothing updates the bar
        assert "compiling 0 s" in shown.getvalue()
        assert "compiling 2 s" in shown.getvalue()
        bar.compiled()
        after = shown.getvalue()
        bar.update(5, FIGURES)
    assert "compiling" not in shown.getvalue()[len(after) :]
    assert "log joint" in shown.getvalue()
