"""Every method on the same table: how well it predicts, whether its intervals are calibrated, and its run time.

Each method of ``cx.inference.METHODS`` runs with its default settings through ``cx.BayesianRegressor`` on a
fixed split of the yacht table (308 rows): RMSE and log likelihood of the test rows in the units of the
target, the coverage of the 90 % intervals, and the seconds of a fit, including compilation. A method that
cannot be used for this table is listed with the reason.

Run as ``python -m benchmarks methods``. ``CREDAX_DATA`` is the folder that contains ``uci/``.
"""

import json
import warnings

import numpy as np

import credax as cx
from benchmarks import tables


def measure(methods=None, table: str = "yacht", splits=(0,)) -> dict:
    """The mean of each figure over the splits, for each method by its name on the command line."""
    figures: dict = {}
    for name in methods or cx.inference.METHODS:
        try:
            with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
                runs = [tables.one(table, split, method=name) for split in splits]
        except (ValueError, TypeError, cx.CredaxError) as error:
            figures[name] = {"not applicable": str(error)}
        else:
            figures[name] = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        print(name, figures[name], flush=True)
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
