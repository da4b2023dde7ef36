"""The demo: every method takes part in it, also one that it has never heard of."""

import dataclasses
import json

import numpy as np
import pytest

from credax import cli
from credax.cli import demo
from credax.inference import METHODS, Method
from credax.report.words import described


@dataclasses.dataclass(frozen=True)
class Novel(Method):
    """A method that was added to METHODS and nowhere else."""

    chains: int = 10
    num_warmup: int = 30_000
    num_draws: int = 500
    thin: int = 20
    optional: int | None = None

    kind = "exact"
    when = "never"

    @property
    def num_steps(self):
        return self.num_warmup + self.thin * self.num_draws

    @property
    def replicas(self):
        return self.chains

    def init(self, key, model, data):
        raise NotImplementedError

    def step(self, key, state, model, batch, step):
        raise NotImplementedError

    def posterior(self, model, trace):
        raise NotImplementedError


@pytest.fixture
def novel(monkeypatch):
    monkeypatch.setitem(METHODS, "novel", Novel)


@pytest.mark.parametrize("kind", [*METHODS.values(), Novel], ids=lambda kind: kind.__name__)
def test_every_method_has_settings_and_a_model_for_the_curve(kind):
    method = demo.curve_method(kind)
    assert type(method) is kind
    assert method.num_steps <= demo.STEPS
    assert method.replicas <= 10
    method.check(*demo.curve_model(method).prepare(demo._data()))


def test_a_long_run_is_shortened_and_has_fewer_replicas():
    assert demo.curve_method(Novel) == Novel(chains=2, num_warmup=12_000, num_draws=200)


def test_one_method_takes_discrete_weights_only():
    discrete = [
        name for name, kind in METHODS.items() if demo.curve_model(demo.curve_method(kind)).discrete
    ]
    assert discrete == ["enumeration"]


def test_every_method_has_a_picture(novel, tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    flat = np.zeros(len(demo.GRID))
    demo._draw(tmp_path / "picture.png", [demo.Curve(name, flat, flat, 1.0) for name in METHODS])
    monkeypatch.undo()
    titles = [place.get_title() for place in figures[0].axes if place.get_visible()]
    plt.close(figures[0])
    assert titles == [*METHODS, "novel"]
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_compared_methods_are_methods():
    assert set(demo.TABLE) <= set(METHODS.values())


def test_a_new_method_is_listed_completed_and_described(novel, capsys):
    assert cli.main(["methods", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1] == {
        "name": "novel",
        "class": "cx.Novel",
        "what": "A method that was added to METHODS and nowhere else.",
        "when": "never",
        "errs": "",
    }
    assert cli.main(["completion", "bash"]) == 0
    assert "laplace novel" in capsys.readouterr().out
    assert described(Novel())["name"] == "Novel"


@pytest.mark.slow
def test_the_demo(tmp_path):
    from rich.console import Console

    console = Console(record=True, width=120)
    demo.run(tmp_path, console)
    shown = console.export_text()
    assert "microcanonical-ensemble" in shown
    assert "held-out rows best" in shown
    assert (tmp_path / "methods.png").stat().st_size > 50_000
    assert "<html" in (tmp_path / "report.html").read_text()
