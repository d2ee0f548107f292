"""The scaling law: the loss as a function of a model's parameters and its training tokens, fitted to runs.

    L(N, D) = E + A / N^alpha + B / D^beta

(Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models", equation 2.) It is fitted as in section 3.3 and
appendix D.3: L-BFGS minimises the Huber loss of the differences of log L, from a grid of starting points.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from .ladder import FEWEST

DELTA = 1e-3  # of the Huber loss, in log L
# Starting points: log A and log B, alpha and beta, log E.
GRID = (
    np.arange(0, 26, 5.0),
    np.arange(0, 26, 5.0),
    (0.1, 0.5, 1.0, 1.5),
    (0.1, 0.5, 1.0, 1.5),
    (-1.0, -0.5, 0.0, 1.0),
)
# Exponents of Hoffmann et al. (table A3) and of Kaplan et al. 2020 ("Scaling Laws for Neural Language Models",
# equations 1.1 and 1.2), whose laws have no E.
PUBLISHED = {"Hoffmann et al. 2022": (0.34, 0.28), "Kaplan et al. 2020": (0.076, 0.095)}


@dataclass
class Law:
    """A fitted law. alpha, beta: exponents of parameters and tokens. irreducible: E, nats per token."""

    irreducible: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters, tokens):
        """The loss, in nats per token, for these numbers of parameters and training tokens; arrays or numbers."""
        return self.irreducible + self.a / np.power(parameters, self.alpha) + self.b / np.power(tokens, self.beta)

    @property
    def share_of_parameters(self) -> float:
        """With c times the compute (6 N D), the best N grows by c to the power of this, the best D by the rest."""
        return self.beta / (self.alpha + self.beta)


def fit(parameters, tokens, losses, begin: Law | None = None) -> Law:
    """The law that fits the runs best.

    parameters, tokens, losses: of each run, (R,).
    begin: a law to start from; None: the best starting points of the grid.

    Raises ValueError for fewer than FEWEST runs, or where all have the same parameters or the same tokens.
    """
    n, d, log_losses = (np.log(np.asarray(values, dtype=np.float64)) for values in (parameters, tokens, losses))
    if len(n) < FEWEST or np.ptp(n) == 0 or np.ptp(d) == 0:
        raise ValueError(f"a law needs {FEWEST} runs, of several sizes and several lengths")

    def objective(x):
        """The Huber loss and its gradient at log A, log B, alpha, beta, log E."""
        terms = np.stack([x[0] - x[2] * n, x[1] - x[3] * d, np.full_like(n, x[4])])
        difference = logsumexp(terms, axis=0) - log_losses
        small = np.abs(difference) <= DELTA
        value = np.where(small, difference**2 / 2, DELTA * (np.abs(difference) - DELTA / 2)).sum()
        slope = np.where(small, difference, DELTA * np.sign(difference)) * softmax(terms, axis=0)
        return value / DELTA**2, np.array(
            [slope[0].sum(), slope[1].sum(), -(slope[0] * n).sum(), -(slope[1] * d).sum(), slope[2].sum()]
        ) / DELTA**2

    def best(beginnings):
        results = [minimize(objective, x, jac=True, method="L-BFGS-B", bounds=bounds) for x in beginnings]
        return min(results, key=lambda result: result.fun).x

    bounds = [(None, None), (None, None), (0, 5), (0, 5), (-10, None)]
    if begin is None:
        starts = sorted(itertools.product(*GRID), key=lambda x: objective(np.array(x))[0])[:12]
        x = best(starts)
    else:
        x = best([[np.log(begin.a), np.log(begin.b), begin.alpha, begin.beta, np.log(begin.irreducible)]])
    return Law(float(np.exp(x[4])), float(np.exp(x[0])), float(np.exp(x[1])), float(x[2]), float(x[3]))


def bootstrap(parameters, tokens, losses, law: Law, resamples: int, seed: int) -> list[Law]:
    """Laws fitted to resampled runs, for intervals; a resample with too few different runs is drawn again."""
    generator, count, laws = np.random.default_rng(seed), len(losses), []
    columns = [np.asarray(values, dtype=np.float64) for values in (parameters, tokens, losses)]
    while len(laws) < resamples:
        chosen = generator.integers(count, size=count)
        if len(np.unique(chosen)) >= FEWEST - 1 and all(np.ptp(values[chosen]) > 0 for values in columns[:2]):
            laws.append(fit(*(values[chosen] for values in columns), begin=law))
    return laws


def interval(values, level: float = 0.9) -> tuple[float, float]:
    """The bounds of the middle `level` of some numbers."""
    low, high = np.quantile(np.asarray(values), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
