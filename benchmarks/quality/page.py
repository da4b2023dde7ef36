"""The page ``docs/evidence.md``, made from all stored figures. Its pictures are drawn by ``pictures``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality import goals, pictures, published, store

PAGE = Path(__file__).parent.parent.parent / "docs" / "evidence.md"
MIXED = 1.1
"""The largest R-hat of the predictions of a reference with which methods are compared."""
INTRODUCTION = """\
# The tables of the papers, measured again

Each section has the command that measures it and writes this page. A command goes on where it was stopped:
every finished cell is stored in `benchmarks/results`, and this page is made from what is stored there.
Settings are chosen inside the training rows; test rows are seen once, by the figures shown. Figures of papers
are marked as such, and stand for other implementations, other budgets and sometimes other settings of the
same method.
"""


def write() -> None:
    """Draw the page and its pictures."""
    parts = [INTRODUCTION.strip()]
    for section in (_goals, _uci, _mnist, _cifar, _lora, _bandit, _reference, _samplers):
        parts += section()
    PAGE.write_text("\n\n".join(parts) + "\n")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _command(*lines: str) -> str:
    return "\n".join(["```", *(f"python -m benchmarks {line}" for line in lines), "```"])


def _machine(name: str) -> str:
    """On what the figures of a benchmark were measured, and when it was last run."""
    path = store.RESULTS / f"{name}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    if "machine" not in stored:
        return ""
    machine = stored["machine"]
    return f"Last run {stored['date']}, on {machine['device']} with {machine['cores']} cores."


def _mean(values: Sequence[float], digits: int = 2) -> str:
    """The mean, and with several values its standard error."""
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f}"
    return text


def _goals() -> list[str]:
    found = goals.all_goals()
    text = (
        "## What was to be reached\n\n"
        "The figures of the papers, or those that later work reached, and what was measured here. A goal that "
        "is missed stays a goal; what was tried stands below the table and in the sections."
    )
    table = _table(["goal", "figure", "reached", "missed"], [goal.row() for goal in found])
    reasons = goals.missed(found)
    return [text, table, *(["\n".join(reasons)] if reasons else [])]


# -- UCI ----------------------------------------------------------------------------------------------


def _uci() -> list[str]:
    figures = store.figures("uci")
    splits = {
        name: {
            label: {number: c for number, c in cells.items() if "failed" not in c}
            for label, cells in labels.items()
        }
        for name, labels in figures.get("splits", {}).items()
    }
    if not splits:
        return []
    pictures.uci(splits)
    text = (
        "## UCI regression\n\n"
        "One hidden layer of 50 units on the splits of Hernandez-Lobato & Adams (2015), in the units of "
        "the target. For each split, one setting of each method (the scale of the prior, or the rate of "
        "dropout) is the one of three or four with the highest log likelihood on a tenth of the training "
        "rows, which were left out; then the method is fitted to all training rows. `MCDropout, default` "
        "chooses nothing. In the rows of *wider choice*, the same held-out rows also decide, one thing after "
        "the other: for dropout, whether the rate is 0.001; whether the noise is the same for all rows or "
        "predicted for each; whether a fit has four times as many steps (otherwise 5,000, 2,000 for "
        "ensembles, and at least 40 epochs of minibatches of 128 on tables of more than 2,000 rows); and by "
        "which factor a noise that is the same for all rows is multiplied after the fit. *Noise chosen* takes, "
        "on each split, the one of the two rows of `DeepEnsemble` that predicts the held-out rows better. "
        "Means over the splits, with standard errors; the column *splits* says how many. "
        "Those of the papers are over all 20 splits, so while there are few here, differences of a tenth "
        "mean little. The goals above compare the dropout of 2018 on the same splits, since its figures of "
        "single splits are known. In the picture, single splits outside of a panel are cut off."
    )
    parts = [text, _command("uci", "uci --tables yacht energy --splits 3 --methods IVON")]
    parts.append("![Log likelihood on the UCI tables](pictures/evidence_uci.png)")
    for measure, paper, digits, title in (
        (
            "log_likelihood",
            published.LOG_LIKELIHOOD,
            2,
            "Test log likelihood per row, higher is better",
        ),
        ("rmse", published.RMSE, 2, "Test RMSE, lower is better"),
        ("coverage", None, 2, "Share of test rows inside their 90 % intervals"),
    ):
        parts.append(f"**{title}.**")
        parts.append(_uci_table(splits, measure, paper, digits))
    parts.append(
        "Columns of papers: BBB of Zhang et al. (2018), dropout of the repository of Gal & Ghahramani "
        "with the tuning of 2018, ensembles of Lakshminarayanan et al. (2017) with a noise for each row, "
        "HMC of Bui et al. (2016)."
    )
    failed = [
        f"{label} on {name}, split {number}: {c['failed']}"
        for name, labels in figures["splits"].items()
        for label, cells in labels.items()
        for number, c in cells.items()
        if "failed" in c
    ]
    if failed:
        parts.append("Failed: " + "; ".join(failed) + ".")
    if figures.get("gaps"):
        parts += _gaps(figures["gaps"])
    return [*parts, _machine("uci")]


def _uci_table(splits: dict, measure: str, paper: Any, digits: int) -> str:
    names = [name for name in published.LOG_LIKELIHOOD if name in splits]
    labels = list(dict.fromkeys(label for name in names for label in splits[name]))
    rows = []
    for label in labels:
        counts, cells = set(), []
        for name in names:
            found = [c[measure] for c in splits[name].get(label, {}).values()]
            cells.append(_mean(found, digits) if found else "")
            counts |= {len(found)} if found else set()
        shown = "–".join(str(n) for n in sorted({min(counts), max(counts)})) if counts else ""
        rows.append([label, shown, *cells])
    for i, column in enumerate(published.UCI_COLUMNS if paper else ()):
        rows.append([f"*paper: {column}*", "", *(f"*{paper[name][i]:.2f}*" for name in names)])
    return _table(["method", "splits", *names], rows)


def _gaps(gaps: dict) -> list[str]:
    names = list(gaps)
    labels = list(dict.fromkeys(label for name in names for label in gaps[name]))
    rows = []
    for label in labels:
        cells = []
        for name in names:
            ratios = [c["ratio"] for c in gaps[name].get(label, {}).values() if "ratio" in c]
            worst = f" (lowest {min(ratios):.2g}, {len(ratios)} columns)" if ratios else ""
            middle = f"{np.median(ratios):.2g}" if ratios else ""
            cells.append(middle + worst)
        rows.append([label, *cells])
    text = (
        "**Splits with a gap** (Foong et al., 2019): the middle third of a column is left out of the "
        "training rows. Epistemic standard deviation in the gap over that at held-out rows outside of it "
        "(root mean squares): the median over the columns, which must be above 1."
    )
    return [text, _command("uci --gaps 20 --splits 0"), _table(["method", *names], rows)]


# -- images -------------------------------------------------------------------------------------------


def _mnist() -> list[str]:
    figures = store.figures("mnist")
    text = (
        "## MNIST, as in Blundell et al. (2015)\n\n"
        "Two hidden layers, the first 50,000 images, pixels divided by 126, minibatches of 128; the "
        "paper has 600 epochs. The area under the ROC curve (AUROC) says how well the uncertainty tells "
        "test images from those of Fashion-MNIST and of KMNIST: entropy / mutual information. Where a "
        "*setting* is named, it is the one with the lowest error on the 10,000 images for validation, after "
        "short trials; the others are the defaults."
    )
    parts = [
        text,
        _command(
            "mnist --units 1200 --trials 60",
            "mnist --units 400 --epochs 10 --methods IVON",
        ),
    ]
    if not figures:
        return [*parts, "Not yet run on this version."]
    for run, labels in figures.items():
        units = int(run.split()[0])
        rows = []
        for label, found in labels.items():
            paper = published.MNIST_ERROR.get(_paper_row(label), {}).get(units)
            outside = [
                " / ".join(f"{value:.3f}" for value in found["auroc"][name].values())
                for name in ("fashion-mnist", "kmnist")
            ]
            setting = found.get("setting", "defaults")
            rows.append(
                [
                    label if setting == "defaults" else f"{label}: {setting}",
                    f"{found['error']:.2f}",
                    "" if paper is None else f"*{paper:.2f}*",
                    f"{found['log_likelihood']:.4f}",
                    f"{found['calibration_error']:.4f}",
                    *outside,
                    f"{found['seconds']:.0f}",
                ]
            )
        header = ["method", "error, %", "paper, 600 epochs", "log likelihood", "calibration error"]
        header += ["AUROC Fashion", "AUROC KMNIST", "seconds"]
        parts += [f"**{run}.**", _table(header, rows)]
        pruned = next((found["pruning"] for found in labels.values() if "pruning" in found), None)
        if pruned:
            cells = [
                [
                    f"{100 * float(share):.0f} %",
                    f"{error:.2f}",
                    f"*{published.PRUNING[float(share)]:.2f}*",
                ]
                for share, error in pruned.items()
            ]
            header = ["weights removed", "error, %", "paper, 2 × 1200, 600 epochs"]
            parts += ["Pruning of the posterior with the mixture prior:", _table(header, cells)]
    for run, labels in store.figures("mnist_trials").items():
        rows = [
            [label, name, f"{c['error']:.2f}", f"{c.get('log_likelihood', np.nan):.4f}"]
            for label, cells in labels.items()
            for name, c in cells.items()
        ]
        header = ["method", "setting", "error for validation, %", "log likelihood"]
        parts += [f"Trials, {run}:", _table(header, rows)]
    return [*parts, _machine("mnist")]


def _paper_row(label: str) -> str:
    return {
        "MAP": "SGD",
        "MCDropout": "SGD + dropout",
        "BayesByBackprop, Gaussian prior": "Bayes by Backprop, Gaussian prior",
        "BayesByBackprop, mixture prior": "Bayes by Backprop, mixture prior",
    }.get(label, "")


def _cifar() -> list[str]:
    figures = {
        run: labels
        for run, labels in store.figures("cifar").items()
        if run.endswith("50000 rows, 10000 tests")
    }
    text = (
        "## CIFAR-10 against HMC\n\n"
        "ResNet-20 with filter response normalisation and swish, the prior N(0, 1/5), no augmentation, "
        "the same number of epochs for every network. Agreement and total variation are measured against "
        "the predictions of full-batch HMC by Izmailov et al. (2021), on the 10,000 test images."
    )
    tiny = "cifar --epochs 1 --rows 128 --tests 20 --methods MAP"
    parts = [
        text,
        _command(
            "cifar --methods SGHMC --setting 'rate 0.1, friction 0.02' --batch 256 --epochs 400",
            "cifar --trials 40 --methods IVON --epochs 200",
            f"{tiny}  # a trial on a CPU",
        ),
    ]
    header = ["method", "agreement, %", "total variation", "error, %", "seconds"]
    for run, labels in figures.items():
        rows = [
            [
                label,
                f"{c['agreement']:.1f}",
                f"{c['total_variation']:.3f}",
                f"{c['error']:.1f}",
                f"{c['seconds']:.0f}",
            ]
            for label, c in labels.items()
        ]
        parts += [f"**{run}.**", _table(header, rows)]
    for run, labels in store.figures("cifar_trials").items():
        rows = [
            [label, name, f"{c['log_likelihood']:.4f}" if "failed" not in c else "diverged"]
            for label, cells in labels.items()
            for name, c in cells.items()
        ]
        header = ["method", "setting", "log likelihood of a tenth of the training images"]
        parts += [f"Trials, {run}:", _table(header, rows)]
    parts.append(
        "Measured with an earlier version and its defaults, on an H200: 40 epochs for each network, four "
        "members in the ensemble. Papers: Wilson et al. (2022), with up to 1,000 epochs."
    )
    rows = [
        [label, f"{a:.1f}", f"{v:.3f}", "" if s is None else f"{s:.0f}"]
        for label, (a, v, s) in published.CIFAR_BEFORE.items()
    ]
    header = ["method", "agreement, %", "total variation", "seconds"]
    parts.append(_table(header, [*rows, *_cifar_papers()]))
    pictures.cifar(figures)
    return [*parts, "![Distance to HMC against time](pictures/evidence_cifar.png)"]


def _cifar_papers() -> list[list[str]]:
    return [
        [f"*paper: {label}*", f"*{a:.1f}*", f"*{v:.3f}*", ""]
        for label, (a, v) in published.CIFAR.items()
    ]


def _lora() -> list[str]:
    figures = store.figures("lora")
    text = (
        "## Low-rank adaptation with few labels\n\n"
        "A network with two layers of 128 units, trained on MNIST, is adapted to Fashion-MNIST by "
        "`cx.networks.lora` of rank 2 with 500 labelled images. Each method chooses the scale of the prior (1 "
        "or 3; *more scales*: 1, 2 or 3) and the number of steps (300 or 1,000) by the log loss of 100 of the "
        "500 images, which are left out; then it is fitted to all of them. The range of these grids and "
        "`hessian_init=0.1` of `IVON` were set after trials with other labelled images, the first of which "
        "were scored on the test images, those of the scale 2 on other training images. Means "
        "over the keys, each with its own labelled images, and standard errors. *Against MAP* is the "
        "difference of the log losses with the same images: below zero is better than the point estimate."
    )
    parts = [text, _command("lora", "lora --methods MAP IVON --keys 1")]
    if not figures:
        return [*parts, "Not yet run on this version."]
    point, rows = figures.get("MAP", {}), []
    for label, cells in figures.items():
        column = lambda name: [c[name] for c in cells.values()]  # noqa: B023, E731
        apart = [c["log_loss"] - point[k]["log_loss"] for k, c in cells.items() if k in point]
        compared = _mean(apart, 3) if apart and not label.startswith("MAP") else ""
        scores = [_mean(column("log_loss"), 3), compared, _mean(column("error"), 1)]
        rows.append([label, str(len(cells)), *scores, _mean(column("calibration_error"), 3)])
    header = ["method", "keys", "log loss", "against MAP", "error, %", "calibration error"]
    return [*parts, _table(header, rows), _machine("lora")]


# -- decisions and samplers -----------------------------------------------------------------------------


def _bandit() -> list[str]:
    figures = store.figures("bandit")
    text = (
        "## The mushroom bandit\n\n"
        "The protocol of Blundell et al. (2015), 5.3: the cumulative regret of Thompson sampling by "
        "several posteriors, and of greedy agents. The paper has 50,000 mushrooms and five runs; its "
        "figures are read off a plot, to about 3 %. Settings of Bayes by Backprop and of the greedy agent, "
        "which the paper does not give, were compared in shorter runs with keys of their own (trials)."
    )
    parts = [
        text,
        _command(
            "bandit",
            "bandit --steps 10000 --runs 1",
            "bandit --variant 12 --steps 10000 --keys 100",
        ),
    ]
    if not figures:
        return [*parts, "Not yet run on this version."]
    for run, agents in figures.items():
        steps = int(run.split()[0])
        rows = []
        for agent, cells in agents.items():
            paper = published.BANDIT.get(agent, {}).get(steps)
            final = _mean([c["final"] for c in cells.values()], 0)
            rows.append([agent, final, str(len(cells)), "" if paper is None else f"*{paper:,}*"])
        parts += [f"**{run} after each.**", _table(["agent", "regret", "runs", "paper"], rows)]
    for run, agents in store.figures("bandit_trials").items():
        rows = [
            [agent, _mean([c["final"] for c in cells.values()], 0), str(len(cells))]
            for agent, cells in sorted(agents.items(), key=_final)
        ]
        parts += [f"Trials, {run} after each:", _table(["agent", "regret", "runs"], rows)]
    parts.append(
        "`Bayes by Backprop` has the mixture prior of the paper, with -log sigma 1 and 6, and a noise of 5:"
        " the best of a few settings in runs of 5,000 mushrooms with key 0. With the prior N(0, 1) and a "
        "noise of 2 (*normal prior*) it does worse than the greedy agent. The noise matters most: with the "
        "same mixture and a noise of 1, the regret was as high as with the normal prior. The rewards of a "
        "poisonous mushroom are -35 or 5, and with little noise each of them counts as a certainty; with a "
        "noise of 10, the KL outweighed the rewards, and the regret was several times as high. A likely "
        "second cause: under the normal prior, weights of which the rows say nothing keep the width of the "
        "prior, so that their noise moves the value of every action, while under the mixture they stay near"
        " zero."
    )
    parts.append(
        "With a constant learning rate of 1e-3 the regret rises again once the buffer is full, less by "
        "exploring than by forgetting. In a trial in which the rows of the buffer stood for all rows seen "
        "(`count_forgotten=True`), so that the posterior went on narrowing, the regret rose by 120 between "
        "3,000 and 4,500 mushrooms, and by 2,175 between 4,500 and 10,000. Of the mistakes in the second half, "
        "117 were poisonous mushrooms eaten and 6 edible ones left: by then, the poisonous mushrooms of the "
        "beginning had left the buffer. `Bayes by Backprop` therefore also has a learning rate that falls with "
        "the square of the number of mushrooms, from 1e-3 to 1e-5, with which the weights keep what they were "
        "taught. With the same key, its regret after 7,000 mushrooms was 2,080 in place of 3,270, but it still "
        "rose by 400 over the last 2,450 of them. Its minibatches share a draw of the weights, which halves "
        "the time of a step. These two changes, all rows counted and the falling rate, were all that was "
        "tried, with key 100; *constant rate* is the agent before them. The greedy agents above have the "
        "constant rate, so that they are to be compared with *constant rate* alone. No run over the 50,000 "
        "mushrooms of the paper has been finished."
    )
    pictures.bandit(figures)
    return [*parts, "![Regret](pictures/evidence_bandit.png)", _machine("bandit")]


def _final(agent: tuple[str, dict]) -> float:
    """The mean final regret of an agent's runs."""
    return float(np.mean([cell["final"] for cell in agent[1].values()]))


def _reference() -> list[str]:
    figures = store.figures("reference")
    text = (
        "## Distance to the posterior, against gradients\n\n"
        "Every method with its defaults, all rows in every step, on the first split of UCI tables, "
        "compared with long HMC for the same model (50 hidden units, a prior of scale 1 over the square "
        "root of the fan-in, learned noise). The distance is the mean Wasserstein-1 distance of the "
        "predictive distributions of the test rows, in standard deviations of HMC's. Below the distance "
        "of a second HMC run it cannot be told from zero."
    )
    parts = [text, _command("reference", "reference --tables yacht")]
    answers = store.figures("reference_answers")
    if not figures:
        return [*parts, "Not yet run on this version."]
    r_hat = {name: answers[name]["r_hat"] for name in figures}
    figures = {name: cells for name, cells in figures.items() if r_hat[name] <= MIXED}
    unmixed = ", ".join(
        f"{name} (R-hat {r_hat[name]:.2f})" for name in r_hat if name not in figures
    )
    if unmixed:
        parts.append(
            f"Not shown, since the chains of the reference itself do not agree there: {unmixed}. The "
            "posterior of these networks has modes that HMC of this length does not join."
        )
    if not figures:
        return [*parts, _machine("reference")]
    pictures.reference(figures)
    labels = list(dict.fromkeys(label for cells in figures.values() for label in cells))
    rows = []
    for label in labels:
        found = [cells.get(label) for cells in figures.values()]
        spent = [c["gradients"] for c in found if c]
        shown = [f"{c['distance']:.3f} (sd × {c['spread']:.2g})" if c else "" for c in found]
        rows.append([label, f"{np.median(spent):,.0f}", *shown])
    mixed = ", ".join(f"{name} {r_hat[name]:.3f}" for name in figures)
    return [
        *parts,
        "![Distance to HMC against gradients](pictures/evidence_reference.png)",
        "In brackets: the median ratio of the epistemic standard deviations.",
        _table(["method", "gradients", *figures], rows),
        f"R-hat of the reference (99th percentile over its predictions): {mixed}.",
        _machine("reference"),
    ]


def _samplers() -> list[str]:
    figures = store.figures("samplers")
    text = (
        "## Samplers on targets with exact moments\n\n"
        "Ten classic targets: effective draws per 1,000 gradients and per second, where the smallest "
        "bulk effective sample size counts, and the largest error of a mean in standard errors (z). "
        "Chains whose R-hat is above 1.1 have not mixed (marked !)."
    )
    parts = [text, _command("samplers")]
    if not figures:
        return [*parts, "Not yet run on this version."]
    names = list(next(iter(figures.values())))
    rows = []
    for target, cells in figures.items():
        row = [target]
        for name in names:
            c = cells.get(name)
            mark = " !" if c and c["R-hat"] > 1.1 else ""
            row.append(
                f"{c['ESS per 1,000 gradients']:.3g} / {c['ESS per second']:.3g} / {c['largest |z|']:.1f}{mark}"
                if c
                else ""
            )
        rows.append(row)
    note = (
        "Each cell: effective draws per 1,000 gradients / per second / largest |z|. The samplers ran one "
        "after the other on a machine that was busy with other work, so compare gradients, not seconds."
    )
    return [*parts, note, _table(["target", *names], rows), _machine("samplers")]
