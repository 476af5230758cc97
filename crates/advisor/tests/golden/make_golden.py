#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes statistics.json: data and the numbers that statsmodels and scipy compute from them.

usage: make_golden.py [FILE]      (default: statistics.json beside this script)

Needs statsmodels (pip install statsmodels). The data are drawn with a fixed seed and kept in the file, so
that its numbers do not depend on the generator.
"""

import json
import pathlib
import sys

import numpy as np
import scipy
import scipy.stats
import statsmodels
import statsmodels.api as sm
from statsmodels.stats.diagnostic import het_breuschpagan
from statsmodels.stats.outliers_influence import variance_inflation_factor
from statsmodels.stats.stattools import durbin_watson

ENTRY, REMOVAL = 0.05, 0.10


def fit(names, columns, y):
    exog = sm.add_constant(np.column_stack(columns), has_constant="add") if names else np.ones((len(y), 1))
    # The default, a pseudoinverse, loses eight digits where bytes (10^8) stand beside categories;
    # exact rational arithmetic agrees with QR to the last digit.
    return sm.OLS(y, exog).fit(method="qr"), exog


def fit_numbers(names, columns, y):
    result, exog = fit(names, columns, y)
    interval = result.conf_int(0.05)
    blom = sm.ProbPlot(result.resid / np.sqrt(result.mse_resid), a=0.375)
    # These two have no choice of method; neither depends on the scale of a column.
    scaled = exog / np.abs(exog).max(axis=0)
    lm, lm_p, _, _ = het_breuschpagan(result.resid, scaled)
    return {
        "names": names,
        "columns": [list(map(float, column)) for column in columns],
        "response": list(map(float, y)),
        "coefficients": [
            {
                "name": name,
                "value": result.params[index],
                "standard_error": result.bse[index],
                "t": result.tvalues[index],
                "p": result.pvalues[index],
                "lower": interval[index][0],
                "upper": interval[index][1],
            }
            for index, name in enumerate(["Constant", *names])
        ],
        "r_squared": result.rsquared,
        "adjusted_r_squared": result.rsquared_adj,
        "regression_squares": result.ess,
        "residual_squares": result.ssr,
        "f": result.fvalue,
        "f_p": result.f_pvalue,
        "inflation": [variance_inflation_factor(scaled, index + 1) for index in range(len(names))],
        "durbin_watson": durbin_watson(result.resid),
        "breusch_pagan": lm,
        "breusch_pagan_p": lm_p,
        "normal_quantiles": list(map(float, blom.theoretical_quantiles)),
        "sorted_residuals": list(map(float, np.sort(blom.data))),
    }


def stepwise(names, columns, y):
    """The rule of SPSS's STEPWISE, over statsmodels."""
    selected, steps = [], []
    while True:
        if selected:
            result, _ = fit([names[i] for i in selected], [columns[i] for i in selected], y)
            worst = int(np.argmax(result.pvalues[1:]))
            if result.pvalues[1:][worst] > REMOVAL:
                steps.append([names[selected[worst]], False, result.pvalues[1:][worst]])
                del selected[worst]
                continue
        best = None
        for index in range(len(names)):
            if index in selected:
                continue
            chosen = [*selected, index]
            result, _ = fit([names[i] for i in chosen], [columns[i] for i in chosen], y)
            t, p = abs(result.tvalues[-1]), result.pvalues[-1]
            if p <= ENTRY and (best is None or t > best[0]):
                best = (t, p, index)
        if best is None:
            break
        selected.append(best[2])
        steps.append([names[best[2]], True, best[1]])
    chosen = sorted(selected)
    result, _ = fit([names[i] for i in chosen], [columns[i] for i in chosen], y)
    return {
        "names": names,
        "columns": [list(map(float, column)) for column in columns],
        "response": list(map(float, y)),
        "selected": [names[i] for i in chosen],
        "steps": steps,
        "values": list(map(float, result.params)),
        "adjusted_r_squared": result.rsquared_adj,
    }


def small_design(random, rows):
    """Variables of very different scale, as the paper's: bytes beside categories."""
    servers = random.choice([2.0, 4.0, 8.0], rows)
    device = random.choice([1.0, 2.0], rows)
    total = random.choice([16, 32, 64, 128], rows) * 1048576.0
    operations = np.round(random.uniform(2, 4000, rows))
    return ["s", "d", "R", "M"], [servers, device, total, operations]


def main():
    random = np.random.default_rng(20161101)
    names, columns = small_design(random, 60)
    servers, device, total, operations = columns
    y = -50 + 12 * servers + 60 * device + 4e-7 * total - 0.02 * operations + random.normal(0, 20, 60)
    uneven = y + random.normal(0, 1, 60) * device * 15
    # A variable that all but repeats another: an inflation of thousands.
    near = servers + random.normal(0, 0.02, 60)

    rows = 120
    latent = random.normal(0, 1, (rows, 8))
    # v0 is v1 + v2 and noise: it enters first and leaves once both are in.
    v0 = latent[:, 1] + latent[:, 2] + random.normal(0, 0.3, rows)
    chosen = [v0] + [latent[:, i] for i in range(1, 8)]
    response = 3 * latent[:, 1] + 3 * latent[:, 2] + 1.0 * latent[:, 3] + random.normal(0, 1, rows)

    sample = random.lognormal(4, 1, 41)
    pairs = [(random.normal(0, 1, 30), random.normal(0, 1, 30)), (servers, y), (operations, y)]
    golden = {
        "made_by": f"make_golden.py with statsmodels {statsmodels.__version__}, scipy {scipy.__version__}, "
        f"numpy {np.__version__}",
        "fits": [
            fit_numbers(names, columns, y),
            fit_numbers(names, columns, uneven),
            fit_numbers([*names, "near"], [*columns, near], y),
            fit_numbers(["d"], [device], y),
        ],
        "selections": [
            stepwise([f"v{i}" for i in range(8)], chosen, response),
            stepwise(names, columns, y),
            stepwise(["n1", "n2"], [latent[:60, 0], latent[:60, 7]], random.normal(0, 1, 60)),
        ],
        "correlations": [
            {"x": list(map(float, x)), "y": list(map(float, z)), "r": float(r.statistic), "p": float(r.pvalue)}
            for x, z in pairs
            for r in [scipy.stats.pearsonr(x, z)]
        ],
        "summary": {
            "values": list(map(float, sample)),
            "mean": float(sample.mean()),
            "standard_deviation": float(sample.std(ddof=1)),
            "standard_error": float(scipy.stats.sem(sample)),
            "median": float(np.median(sample)),
        },
        "student_t": [
            {"degrees": n, "probability": q, "quantile": float(scipy.stats.t.ppf(q, n))}
            for n in [1, 2, 5, 30, 677, 10000]
            for q in [0.005, 0.1, 0.5, 0.9, 0.975, 0.9995]
        ],
        "student_t_tails": [
            {"degrees": n, "t": t, "p": float(2 * scipy.stats.t.sf(t, n))}
            for n in [1, 5, 677]
            for t in [0.0, 0.5, 1.766, 4.0, 13.686]
        ],
        "f_tails": [
            {"f": f, "numerator": a, "denominator": b, "p": float(scipy.stats.f.sf(f, a, b))}
            for a, b in [(1, 3), (9, 677), (5, 635)]
            for f in [0.1, 1.0, 5.0, 130.0]
        ],
        "chi_squared_tails": [
            {"statistic": x, "degrees": n, "p": float(scipy.stats.chi2.sf(x, n))}
            for n in [1, 4, 11]
            for x in [0.1, 3.84, 20.0, 150.0]
        ],
    }
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("statistics.json")
    target.write_text(json.dumps(golden, default=float) + "\n")
    removed = [step for selection in golden["selections"] for step in selection["steps"] if not step[1]]
    print(f"{target}: {golden['made_by']}; removals: {removed}")


main()
