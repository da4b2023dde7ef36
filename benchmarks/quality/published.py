"""Figures of the papers. Sources stand beside each."""

from __future__ import annotations

UCI_COLUMNS = ("BBB", "dropout 2018", "Deep Ens. 2017", "HMC")
"""BBB: Zhang et al., Noisy natural gradient, 2018, table 1. dropout 2018: the repository of Gal & Ghahramani,
in which the tuning that had seen test rows was mended. Deep Ens.: Lakshminarayanan et al., 2017, table 1.
HMC: Bui et al., Deep Gaussian processes, 2016, supplement, tables 3 and 4. All have one hidden layer of 50
units (100 for protein) and, except for HMC, the same splits as here."""

LOG_LIKELIHOOD: dict[str, tuple[float, ...]] = {
    "yacht": (-2.408, -1.25, -1.18, -1.62),
    "bostonHousing": (-2.602, -2.40, -2.41, -2.27),
    "energy": (-1.500, -1.21, -1.38, -0.93),
    "concrete": (-3.149, -2.93, -3.06, -2.72),
    "wine-quality-red": (-0.977, -0.93, -0.94, -0.91),
    "kin8nm": (1.111, 1.14, 1.20, 1.35),
    "power-plant": (-2.807, -2.80, -2.79, -2.70),
    "naval-propulsion-plant": (6.143, 4.45, 5.63, 7.31),
    "protein-tertiary-structure": (-2.882, -2.87, -2.83, -2.77),
}
# fmt: off
DROPOUT_BY_SPLIT: dict[str, tuple[float, ...]] = {
    "yacht": (
        -1.311, -1.202, -1.139, -1.248, -1.222, -1.220, -1.171, -1.385, -1.184, -1.159,
        -1.354, -1.344, -1.263, -1.263, -1.289, -1.214, -1.190, -1.253, -1.241, -1.350,
    ),
    "bostonHousing": (
        -2.444, -2.448, -2.245, -2.347, -2.735, -2.179, -2.145, -2.484, -2.635, -2.850,
        -2.608, -2.163, -2.300, -2.386, -2.240, -2.225, -2.382, -2.376, -2.374, -2.474,
    ),
    "energy": (
        -1.174, -1.210, -1.176, -1.210, -1.221, -1.202, -1.186, -1.205, -1.245, -1.192,
        -1.261, -1.206, -1.251, -1.205, -1.179, -1.222, -1.228, -1.202, -1.222, -1.234,
    ),
    "concrete": (
        -3.050, -2.930, -2.792, -2.925, -3.092, -2.830, -3.029, -2.987, -2.869, -2.976,
        -2.711, -2.817, -2.883, -2.798, -3.050, -2.932, -2.956, -2.896, -3.128, -3.081,
    ),
    "wine-quality-red": (
        -0.928, -0.910, -1.065, -0.900, -0.844, -0.950, -0.973, -0.995, -0.838, -0.960,
        -0.920, -0.964, -1.014, -0.923, -0.907, -0.831, -0.924, -0.876, -0.907, -0.934,
    ),
    "kin8nm": (
        1.070, 1.136, 1.137, 1.140, 1.183, 1.108, 1.140, 1.155, 1.144, 1.088,
        1.159, 1.113, 1.129, 1.178, 1.107, 1.156, 1.170, 1.104, 1.143, 1.170,
    ),
    "power-plant": (
        -2.847, -2.753, -2.779, -2.801, -2.897, -2.866, -2.810, -2.772, -2.804, -2.812,
        -2.772, -2.883, -2.763, -2.824, -2.781, -2.777, -2.793, -2.790, -2.806, -2.826,
    ),
    "naval-propulsion-plant": (
        4.418, 4.452, 4.457, 4.447, 4.446, 4.455, 4.432, 4.455, 4.454, 4.441,
        4.458, 4.455, 4.456, 4.449, 4.455, 4.443, 4.452, 4.455, 4.453, 4.459,
    ),
    "protein-tertiary-structure": (
        -2.874, -2.867, -2.874, -2.875, -2.867,
    ),
}
# fmt: on
"""Log likelihoods of the column "dropout 2018" on each split, from the result files of that repository."""
RMSE: dict[str, tuple[float, ...]] = {
    "yacht": (1.174, 0.67, 1.58, 0.56),
    "bostonHousing": (3.171, 2.90, 3.28, 2.76),
    "energy": (0.565, 0.54, 2.09, 0.48),
    "concrete": (5.678, 4.82, 6.03, 4.12),
    "wine-quality-red": (0.643, 0.62, 0.64, 0.63),
    "kin8nm": (0.080, 0.08, 0.09, 0.06),
    "power-plant": (4.023, 4.01, 4.11, 3.73),
    "naval-propulsion-plant": (0.000, 0.00, 0.00, 0.00),
    "protein-tertiary-structure": (4.321, 4.27, 4.71, 3.91),
}

MNIST_ERROR: dict[str, dict[int, float]] = {
    "SGD": {400: 1.83, 800: 1.84, 1200: 1.88},
    "SGD + dropout": {400: 1.51, 800: 1.33, 1200: 1.36},
    "Bayes by Backprop, Gaussian prior": {400: 1.82, 800: 1.99, 1200: 2.04},
    "Bayes by Backprop, mixture prior": {400: 1.36, 800: 1.34, 1200: 1.32},
}
"""Test errors in per cent of Blundell et al., 2015, table 1: two hidden layers, 600 epochs, the best settings
on 10,000 rows for validation."""
PRUNING = {0.0: 1.24, 0.5: 1.24, 0.75: 1.24, 0.95: 1.29, 0.98: 1.39}
"""Test errors in per cent of Blundell et al., 2015, table 2, by the share of weights removed (2 x 1200)."""

BANDIT = {
    "Bayes by Backprop": {10_000: 3_800, 50_000: 5_700},
    "greedy": {10_000: 4_800, 50_000: 8_100},
}
"""Regret, read off figure 6 of Blundell et al., 2015, to about 3 %; their epsilon-greedy curves are left out,
since they lie higher than the cost of their random actions explains."""

CIFAR = {
    "Deep Ensembles": (91.7, 0.104),
    "SGLD": (91.8, 0.106),
    "SGHMC": (92.2, 0.105),
    "SGHMC, cyclical": (92.8, 0.095),
}
"""Agreement in per cent and total variation on CIFAR-10 (Wilson et al., 2022), up to 1,000 epochs."""
CIFAR_BEFORE = {
    "MAP": (79.1, 0.231, 15.0),
    "DeepEnsemble": (86.2, 0.166, 78.0),
    "SGHMC": (82.4, 0.228, 114.0),
    "IVON": (85.1, 0.183, 15.0),
    "BayesByBackprop": (69.2, 0.388, None),
}
"""Agreement, total variation and seconds of the version before this one: 40 epochs on an H200, 4 members."""
