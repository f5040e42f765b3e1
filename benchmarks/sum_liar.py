"""Measure what one lying site can do in a summed study: `python benchmarks/sum_liar.py 3 6 10`.

The liar adds gradient and curvature of a steep paraboloid to its masked numbers. Its minimum is the
θ that the liar wants. The other sites' reports hardly count beside it, so the next θ is there, and
every site recomputes that θ from the opened sum. The liar needs no other site's numbers for this,
so it does not matter that it commits before the sum is opened. Every site learns the opened sums,
so it does not need the coordinator either.

The θ wanted here is a steep plane with a single row on its far side: the row that is outermost in a
column. The sum of gradients there, less that at θ = 0, is this row divided by the number of all
rows. The liar is given more than it has: where between the two outermost rows the plane must lie.
A row counts as read if it is found within 0.01 standard deviations in every column.
"""

import sys
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from sklearn.datasets import load_breast_cancer

from dorfl.federated import pooled
from dorfl.linear.curvature import Shape, diagonal_places
from dorfl.protocol import coordinator, settings, site_keys, steps, toml, transcript
from dorfl.protocol.messages import Reply
from dorfl.protocol.transcript import Relay, SignedReply
from dorfl.site import local
from dorfl.site.ledger import mark_of
from dorfl.site.policy import Policy
from dorfl.site.site import Site
from dorfl.support import wire

STUDY = (
    'name = "liar"\nsites = [{sites}]\n[data]\nlabel = "y"\n[columns]\nscaling = "standard"\n'
    '[method]\nname = "erm"\n[training]\nmax_rounds = 2\n[privacy]\nreports = "summed"\n'
)
ROWS, COLUMNS = 30, 10  # of a site; of the table
LIAR = "site-00"
SLOPE = 300.0  # of the wanted plane, per standard deviation
STEEP = 100.0  # curvature of the paraboloid; the honest sum's is at most a quarter
CLOSE = 0.01  # standard deviations
_VALUE, _GRADIENT = 3, 4 + 7  # places in what a site adds: see dorfl.federated.pooled


class Liar:
    """A site that adds a paraboloid with its minimum at `aim` to its masked numbers."""

    def __init__(self, site: Site, aim: np.ndarray) -> None:
        self.site, self.aim = site, aim
        self.thetas: list[np.ndarray] = []
        self.lies: list[np.ndarray] = []

    def respond(self, data: bytes) -> bytes:
        """Reply as an honest site does, except for the numbers of a round."""
        said, request = (
            wire.decode(self.site.respond(data), SignedReply),
            wire.decode(data, Relay).request,
        )
        if not said.signature or request.step != "sum masked" or request.broadcast is None:
            return wire.encode(said)
        reply = wire.decode(said.reply, Reply)
        lie = self._lie(request.broadcast.task)
        whole = np.rint(np.ldexp(lie, steps.named("round").bits)).astype(np.int64)
        masked = reply.answer.numbers.view(np.uint64) + whole.view(np.uint64)
        numbers = masked.view(reply.answer.numbers.dtype)
        other = wire.encode(reply._replace(answer=reply.answer._replace(numbers=numbers)))
        head = self.site.replicas[reply.run].head
        return wire.encode(transcript.sign(self.site.key, head, self.site.name, other))

    def _lie(self, task) -> np.ndarray:
        shape, gap = Shape(1, task.theta.size), task.theta - self.aim
        lie = np.zeros(pooled.size(task, shape))
        lie[_VALUE] = 1e3 if not self.lies else 0.0  # claims that the loss has fallen
        lie[_GRADIENT : _GRADIENT + gap.size] = STEEP * gap
        if task.curvature != "none":
            places = diagonal_places(shape.sizes(task.curvature))
            lie[_GRADIENT + gap.size + places] = STEEP
        self.thetas.append(task.theta)
        self.lies.append(lie)
        return lie


def attack(X: np.ndarray, y: np.ndarray, sites: int, column: int) -> tuple[float, float]:
    """Return how far θ is from the one wanted, and how far what is read is from a row."""
    names = [f"site-{k:02d}" for k in range(sites)]
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    listed = ", ".join(f'"{name}"' for name in names)
    study = settings.among(toml.parse(STUDY.format(sites=listed)), ())
    peers = tuple(site_keys.peer(name, key.public_key()) for name, key in keys.items())
    study = study.changed(privacy_peers=peers)
    hosted = dict[str, Site | Liar]()
    for k, name in enumerate(names):
        rows = {f"x{j:02d}": X[k::sites, j] for j in range(X.shape[1])} | {"y": y[k::sites]}
        hosted[name] = Site(name, rows, Policy(tuple(rows)), key=keys[name])
        hosted[name].ledger.approve(mark_of(study))
    first, second = np.sort(X[:, column])[::-1][:2]
    aim = np.zeros(X.shape[1] + 1)
    aim[column], aim[-1] = SLOPE, -SLOPE * (first + second) / 2
    liar = hosted[LIAR] = Liar(hosted[LIAR], aim)
    opened = list[np.ndarray]()

    def note(total, *given, **named):
        if not any(np.array_equal(total, one) for one in opened):  # sites recompute it
            opened.append(total)
        return combine(total, *given, **named)

    combine = pooled.combine
    with mock.patch.object(pooled, "combine", note):
        local.run(coordinator.begin(study, "run"), hosted)
    others = [total - lie for total, lie in zip(opened, liar.lies, strict=True)]
    slopes = [sums[_GRADIENT : _GRADIENT + aim.size] for sums in others]
    moved = (slopes[1] - slopes[0]) * len(y)  # the row, and half of Σx = 0 and of the rows
    moved[-1] += len(y) / 2
    read = np.abs(X - moved[:-1] / moved[-1]).max(axis=1).min()
    return float(np.abs(liar.thetas[1] - aim).max()), float(read)


def run(sites: int) -> None:
    """Print a row of the table."""
    X, y = load_breast_cancer(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(y))[: sites * ROWS]
    X, y = X[chosen, :COLUMNS], y[chosen]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    found = np.array([attack(X, y, sites, column) for column in range(COLUMNS)])
    off, read = found.T
    print(
        f"| {sites} of {ROWS} rows | {off.max() / SLOPE:.3f} | "
        f"{(read <= CLOSE).sum()} of {COLUMNS} | {np.median(read):.0e} |",
        flush=True,
    )


if __name__ == "__main__":
    print("| sites | θ is off by at most, of its slope | rows read | median error, sd |")
    print("| --- " * 4 + "|")
    for count in map(int, sys.argv[1:] or ("3", "6", "10")):
        run(count)
