"""A hostile coordinator against one unmodified site: it may send whatever the wire carries.

Every attack ends in records that the coordinator claims to know. One counts if all its numbers are
within 1 % of a standard deviation of those of a row. The leak is such rows per hundred questions.
"""

import contextlib
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, pairwise

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from scipy.optimize import least_squares
from scipy.special import expit, logit

from dorfl.data import sketch
from dorfl.data.preprocessing import Category, Numeric, Transform
from dorfl.federated.messages import Broadcast
from dorfl.protocol import coordinator, site_keys, toml
from dorfl.protocol.messages import Agreement, Outcome, Refusal, Reply, Request
from dorfl.protocol.transcript import Exchange, Relay, SignedReply, Transcript
from dorfl.selection.outliers import Decision, default_candidates
from dorfl.site.ledger import mark_of
from dorfl.site.policy import Policy
from dorfl.site.site import Site
from dorfl.solvers.base import Task
from dorfl.support import wire

COLUMNS = ("age", "pressure", "sugar", "weight")
OPEN = Policy(
    approve=("*",),
    least=1,
    max_runs=9999,
    max_readings=9999,
    allow_open_reports=True,
    parameters_per_row=99.0,
)  # everything is allowed: what an open study can show


class StoppedError(Exception):
    """The site takes no part, so the attack cannot begin."""


def patients(n=188, seed=0):
    """A hospital's table: four measurements, a ward that one patient alone is in, a label."""
    rng = np.random.default_rng(seed)
    X = rng.normal([60.0, 130.0, 5.5, 75.0], [12.0, 18.0, 1.1, 13.0], (n, 4))
    ill = (X @ [0.03, 0.03, 0.5, 0.01] + rng.normal(scale=1.0, size=n)) > 9.2
    ward = rng.choice(["north", "south"], n).astype(object)
    ward[17] = "isolation"
    table = dict(zip(COLUMNS, X.T, strict=True))
    return {**table, "ward": ward.tolist(), "ill": np.where(ill, "yes", "no").tolist()}


def victim(policy=None, table=None, **options):
    """A site as it is by default, its columns released and its studies approved."""
    table = table or patients()
    policy = (policy or Policy(approve=("*",)))._replace(released=tuple(table))
    return Site("s", table, policy, **{"secret": bytes(32), **options})


class Course:
    """An honest summed study of the victim and two others, as far as a coordinator takes it."""

    def __init__(self, study, run, site):
        others = {name: victim(table=patients(seed=k)) for k, name in ((1, "b"), (2, "c"))}
        self.sites = {"s": site, **others}
        study = study._replace(sites=tuple(self.sites)).changed(privacy_reports="summed")
        peers = tuple(site_keys.peer(n, key_of(n).public_key()) for n in sorted(self.sites))
        self.study = study.changed(privacy_peers=peers)
        for name, one in self.sites.items():
            one.name, one.key = name, key_of(name)
            one.ledger.approve(mark_of(self.study))
        self.state, self.log = coordinator.begin(self.study, run), Transcript()

    def to_the_rounds(self):
        while self.state.sum.of != "round":
            step = Exchange(self.state, self.log)
            for name in coordinator.recipients(self.state):
                while not step.read(name, self.sites[name].respond(step.payload(name))):
                    pass
            self.state = step.close()
        return coordinator.request(self.state, "s").agreement

    def relay(self, request):
        """A request of the attacker's own, in the place of the study's."""
        request = request._replace(agreement=request.agreement._replace(study=self.study))
        return Relay(self.state.number, 0, tuple(self.log.steps), request)


@cache
def key_of(name):
    return ec.generate_private_key(ec.SECP384R1())


@dataclass
class Attacker:
    """Counts its questions; `claims` are records in the order of COLUMNS."""

    site: Site
    summed: bool = False
    asked: int = 0
    courses: dict = field(default_factory=dict)
    refused: list = field(default_factory=list)
    claims: list = field(default_factory=list)

    def study(self, extra="", use=(*COLUMNS, "ward"), method='name = "erm"', privacy=""):
        names = ", ".join(f'"{name}"' for name in use)
        return toml.parse(
            f'name = "trial"\nsites = ["s"]\n[data]\nlabel = "ill"\n[columns]\nuse = [{names}]\n'
            f"{extra}\n[method]\n{method}\n[privacy]\n{privacy}\n"
        )

    def course(self, study, run):
        key = (run, mark_of(study))
        if key not in self.courses:
            self.courses[key] = Course(study, run, self.site)
        return self.courses[key]

    def send(self, request):
        self.asked += 1
        if self.summed:
            of = self.course(request.agreement.study, request.agreement.run)
            said = wire.decode(self.site.respond(wire.encode(of.relay(request))), SignedReply)
            answer = wire.decode(said.reply, Reply).answer
        else:
            answer = wire.decode(self.site.respond(wire.encode(request)), Reply).answer
        if isinstance(answer, Refusal):
            self.refused.append(answer.reason)
            return None
        return answer

    def agree(self, study, run="run"):
        """The honest steps up to the first round, or as far as the site goes along."""
        if self.summed:
            return self.course(study, run).to_the_rounds()._replace(study=study)
        state = coordinator.begin(study, run)
        while state.step not in ("round", "select"):
            answer = self.send(coordinator.request(state, "s"))
            if answer is None:
                raise StoppedError
            state = coordinator.receive(state, {"s": answer})
        return coordinator.request(state, "s").agreement

    def ask(self, agreement, theta, number, **task):
        question = Broadcast(number, Task(np.asarray(theta, float), np.ones(1), **task))
        return self.send(Request(agreement, "round", question))

    def recovered(self):
        """How many different rows are among the claims."""
        rows = _rows(self)
        found = set()
        for claim in self.claims:
            known = [k for k, value in enumerate(claim) if value is not None]
            off = np.abs(rows[:, known] - [claim[k] for k in known]) / rows.std(axis=0)[known]
            found |= set(np.flatnonzero(off.max(axis=1) < 0.01).tolist())
        return len(found)

    def leak(self):
        return 100.0 * self.recovered() / max(self.asked, 1)

    def unscaled(self, agreement, vector):
        parts = {part.name: part for part in agreement.transform.numeric}
        places = [agreement.transform.names.index(name) for name in COLUMNS]
        return [
            vector[k] * parts[name].spread + parts[name].center
            for k, name in zip(places, COLUMNS, strict=True)
        ]

    def claim_differences(self, agreement, vectors):
        """Two gradients that differ by one row's pull show it: its place over its intercept."""
        for one, two in combinations(vectors, 2):
            change = one - two
            if abs(change[-1]) > 1e-12:
                self.claims.append(self.unscaled(agreement, change / change[-1]))


def small_batches(attacker):
    """Five rows a question, of a seed that the study tells."""
    agreement = attacker.agree(attacker.study())
    for number in range(1, 101):
        attacker.ask(agreement, np.zeros(7), number, batch=5)
    return attacker


def lonely_level(attacker):
    """A level of one patient, and two θ that differ there alone."""
    agreement = attacker.agree(attacker.study())
    parts = tuple(p for p in agreement.transform.parts if p.name != "ward")
    sneaky = Transform((*parts, Category("ward", ("isolation",))), {})
    agreement = agreement._replace(transform=sneaky, run="other")
    told = []
    for number, size in enumerate((0.0, 8.0), start=1):
        theta = np.zeros(6)
        theta[4] = size
        told.append(attacker.ask(agreement, theta, number))
    attacker.claim_differences(agreement, [t.vector for t in told if t is not None])
    return attacker


def sweep(attacker, steep=3000.0, questions=287):
    """A step along one column, moved over the rows."""
    agreement = attacker.agree(attacker.study())
    values = np.sort(np.linspace(-3.0, 3.0, questions))
    told = []
    for number, level in enumerate(values, start=1):
        theta = np.zeros(7)
        theta[agreement.transform.names.index("age")] = steep
        theta[-1] = -steep * level
        answer = attacker.ask(agreement, theta, number)
        if answer is not None:
            told.append(answer.vector)
    attacker.claim_differences(agreement, told if len(told) < 60 else told[:60])
    for one, two in pairwise(told):
        attacker.claim_differences(agreement, [one, two])
    return attacker


def targeted(attacker, target=3, questions=60, steep=8.0):
    """A plane that an outlying row alone is beyond, moved through it step by step."""
    agreement = attacker.agree(attacker.study())
    rows = agreement.transform.apply(attacker.site.table).X
    far = np.argsort(-np.linalg.norm(rows[:, :4], axis=1))[target]
    direction = np.r_[rows[far, :4] / np.linalg.norm(rows[far, :4]), np.zeros(2)]
    top, told = float(rows[far] @ direction), []
    for number, shift in enumerate(np.linspace(-0.4, 0.4, questions), start=1):
        theta = np.r_[steep * direction, -steep * (top + shift)]
        answer = attacker.ask(agreement, theta, number)
        if answer is not None:
            told.append(answer.vector)
    attacker.claim_differences(agreement, told)
    return attacker


def many_studies(attacker, questions=89):
    """Blocks of 5, 6, 7, … rows: their sums differ by single values."""
    n, sums = attacker.site.table.num_rows, {0: 0.0}
    for least in range(5, 5 + questions):
        study = attacker.study(privacy=f"least = {least}\nminimum_rows = {least}")
        agreement = Agreement(f"run-{least}", "s", study, (*COLUMNS, "ward"))
        answer = attacker.send(Request(agreement, "columns"))
        if answer is not None:
            _add_up(sums, answer.columns["age"].values)
    return _single_values(attacker, sums, n)


def named_missing(attacker):
    """Studies in which one age after another means a missing value: how many cells are left."""
    ages, rows = attacker.site.table.column("age").to_numpy(), _rows(attacker)
    whole = attacker.send(Request(_named(attacker, "none"), "columns"))
    for age in range(20, 101):
        answer = attacker.send(Request(_named(attacker, str(age)), "columns"))
        if answer is not None:
            count = whole.columns["age"].rows - answer.columns["age"].rows
            if 0 < count < 5:
                attacker.claims.extend(rows[ages == age])
    return attacker


def _named(attacker, missing):
    study = attacker.study(extra=f'missing = ["{missing}"]')
    return Agreement(f"run-{missing}", "s", study, (*COLUMNS, "ward"))


def _rows(attacker):
    return np.column_stack([attacker.site.table.column(c).to_numpy() for c in COLUMNS])


def moved_middle(attacker, questions=40):
    """Distances from a middle beyond all values, or anywhere: blocks that begin elsewhere."""
    study = attacker.study()
    agreed = attacker.agree(study)
    values = attacker.site.table.column("age").to_numpy()
    sums = {0: 0.0}
    _add_up(sums, sketch.of(values, 5))  # the site told as much
    low = values.min() - 1.0
    for k in range(questions):
        part = agreed.transform.parts[0]._replace(center=low - k)
        moved = Transform((part, *agreed.transform.parts[1:]), {})
        answer = attacker.send(Request(agreed._replace(transform=moved, run=f"r-{k}"), "scales"))
        if answer is not None:
            told = answer.columns["age"].distances
            _add_up(sums, told._replace(means=tuple(m + low - k for m in told.means)))
    return _single_values(attacker, sums, len(values))


def chosen_columns(attacker):
    """Centres over other columns leave other rows out: the means differ by single rows."""
    total, told = None, []
    for size in (4, 3, 2):
        for use in combinations(COLUMNS, size):
            study = attacker.study(use=use, method='name = "dorfl"')
            run = "-".join(use)
            state = coordinator.begin(study, run)
            answer = True
            while state.step != "cutoff" and answer is not None:
                request = coordinator.request(state, "s")
                answer = attacker.send(request)
                if request.step == "location" and answer is not None:
                    parts = {p.name: p for p in request.agreement.transform.numeric}
                    mean = {c: m * parts[c].spread + parts[c].center
                            for c, m in zip(use, answer.mean, strict=True)}  # fmt: skip
                    told.append((answer.kept, mean))
                if request.step == "columns" and answer is not None:
                    total = total or {}
                    for name in use:
                        found = answer.columns[name].values
                        total[name] = float(np.dot(found.means, found.sizes)) / found.rows
                if answer is not None:
                    state = coordinator.receive(state, {"s": answer})
    n = attacker.site.table.num_rows
    pairs = [*combinations(told, 2), *(((float(n), total), one) for one in told)]
    for (kept, mean), (fewer, other) in pairs:
        shared = [c for c in COLUMNS if c in mean and c in other]
        if abs(kept - fewer) == 1 and shared == list(COLUMNS):
            sign = np.sign(kept - fewer)
            attacker.claims.append([sign * (kept * mean[c] - fewer * other[c]) for c in COLUMNS])
    return attacker


def bent(attacker):
    """Full curvature where all rows but a few are certain: what is left is those rows."""
    agreement = attacker.agree(attacker.study())
    rows = agreement.transform.apply(attacker.site.table).X[:, :4]
    for number, far in enumerate(np.argsort(-np.linalg.norm(rows, axis=1))[:50], start=1):
        direction = np.r_[rows[far] / np.linalg.norm(rows[far]), np.zeros(2)]
        top = float(np.linalg.norm(rows[far]))
        theta = np.r_[8.0 * direction, -8.0 * top]
        answer = attacker.ask(agreement, theta, number, curvature="full")
        if answer is not None and answer.curvature is not None:
            last = answer.curvature[-7:]  # its last row: a weighted sum of rows, and of ones
            attacker.claims.append(attacker.unscaled(agreement, last / last[-1]))
    return attacker


def solved(attacker, questions=40):
    """As many gentle questions as are answered, and the rows that fit all answers best.

    The labels are known, and rows are sought from near where they are: more than is given.
    """
    use = COLUMNS[:2]
    agreement = attacker.agree(attacker.study(use=use))
    rows = agreement.transform.apply(attacker.site.table).X
    sign = np.where(np.array(attacker.site.table.column("ill").to_pylist()) == "yes", 1.0, -1.0)
    rng, n = np.random.default_rng(0), len(rows)
    asked, told = [], []
    for number in range(1, questions + 1):
        theta = rng.normal(scale=2.0, size=3)
        answer = attacker.ask(agreement, theta, number)
        if answer is not None:
            asked.append(theta)
            told.append(np.r_[answer.value, answer.vector])
    if not told:
        return attacker
    asked, told = np.array(asked), np.array(told)

    def off(guess):
        place = np.column_stack([guess.reshape(n, 2), np.ones(n)])
        margin = sign[:, None] * (place @ asked.T)
        slope = -sign[:, None] * expit(-margin)
        value = np.logaddexp(0.0, -margin).mean(axis=0)
        return (np.column_stack([value, slope.T @ place / n]) - told).ravel() * n

    start = rows + 0.3 * rng.normal(size=rows.shape)
    found = least_squares(off, start.ravel(), max_nfev=60, xtol=1e-15, ftol=1e-15, gtol=1e-15)
    parts = agreement.transform.numeric
    for guess in found.x.reshape(n, 2):
        known = [guess[k] * part.spread + part.center for k, part in enumerate(parts)]
        attacker.claims.append([*known, None, None])
    return attacker


def _refilled(agreement, run, fill, **changes):
    """The agreement with something else for missing ages, in units of the column."""
    age, *others = agreement.transform.parts
    parts = (age._replace(fill=age.center + fill * age.spread), *others)
    return agreement._replace(transform=Transform(parts, {}), run=run, **changes)


def filled(attacker):
    """A patient without an age: what stands for it moves one entry of ∇F by that row's slope."""
    agreement = attacker.agree(attacker.study(use=COLUMNS))
    n, slopes = attacker.site.table.num_rows, []
    for number, column in enumerate((None, 1, 2, 3)):
        theta = np.r_[np.zeros(4), 0.3]
        if column is not None:
            theta[column] = 0.7
        pair = [
            attacker.ask(_refilled(agreement, f"run-{fill}", fill), theta, 2 * number + k)
            for k, fill in ((1, 0.0), (2, 3.0))
        ]
        if None not in pair:
            slopes.append((pair[1].vector - pair[0].vector)[0] / 3.0 * n)
    if len(slopes) == 4:
        sign = -np.sign(slopes[0])
        parts = agreement.transform.numeric
        known = [
            (-sign * logit(-sign * slope) - 0.3) / 0.7 * part.spread + part.center
            for slope, part in zip(slopes[1:], parts[1:], strict=True)
        ]
        attacker.claims.append([None, *known])
    return attacker


def moved_fill(attacker, questions=60):
    """Where sites have no middle of their own, what stands for missing cells is the middle."""
    agreement = attacker.agree(attacker.study(use=COLUMNS, method='name = "dorfl"'))
    (age, *_), ages = agreement.transform.numeric, attacker.site.table.column("age").to_numpy()
    size = int(sketch.of(ages, 5).sizes[-1])
    top = (np.sort(ages)[-size:] - age.center) / age.spread  # about where the sketch tells
    middles, told = np.linspace(top[0] - 0.05, top[-1] + 0.05, questions), []
    for k, middle in enumerate(middles):
        asked = _refilled(
            agreement, f"r-{k}", middle, own_centers=False, scales=None, center=None, cutoffs=(),
            candidate=None,
        )  # fmt: skip
        answer = attacker.send(Request(asked, "location"))
        told.append(None if answer is None else answer.away[:, 0].min())
    step = middles[1] - middles[0]
    bends = [  # of a distance that is straight between values: each bends it by 2 / size
        None if None in told[k - 1 : k + 2] else told[k + 1] - 2.0 * told[k] + told[k - 1]
        for k in range(1, questions - 1)
    ]
    for k, (one, two) in enumerate(pairwise(bends), start=1):
        if None not in (one, two) and abs(one + two - 2.0 / size * step) < 1e-6:  # one value alone
            value = middles[k] + step * two / (one + two)
            attacker.claims.append([value * age.spread + age.center, None, None, None])
    return attacker


def counted(attacker, steps=11):
    """How many rows a model gets right, where its plane passes the outermost row and no other."""
    agreement = attacker.agree(attacker.study(use=COLUMNS))
    ages, age = attacker.site.table.column("age").to_numpy(), agreement.transform.numeric[0]
    near, far = np.quantile((ages - age.center) / age.spread, 0.95), 5.0

    def right(level, run):
        theta = np.r_[0.5, np.zeros(3), -0.5 * level]
        asked = agreement._replace(run=run)
        if attacker.ask(asked, theta, 1) is None:
            return None
        end = Outcome(theta, np.ones(1), np.zeros(1), None, 0.0, 0.0, 0.0, 1, "converged", "")
        answer = attacker.send(Request(asked, "finish", outcome=end))
        return None if answer is None else answer.score

    beyond = right(far, "r-0")
    for k in range(1, steps + 1):
        level = (near + far) / 2.0
        near, far = (near, level) if right(level, f"r-{k}") == beyond else (level, far)
    attacker.claims.append([far * age.spread + age.center, None, None, None])
    return attacker


def unlisted_class(attacker):
    """Studies of an age in years, each with all classes but one: does somebody have that?"""
    ages, rows = attacker.site.table.column("age").to_numpy(), _rows(attacker)
    years = [*range(48, 95)]
    for year in years:
        classes = tuple(str(one) for one in years if one != year)
        names = ", ".join(f'"{one}"' for one in classes)
        study = toml.parse(
            f'name = "y{year}"\nsites = ["s"]\n[data]\nlabel = "age"\ntask = "classification"\n'
            f'classes = [{names}]\n[columns]\nuse = ["pressure"]\n[method]\nname = "erm"\n'
        )
        scaled = Transform((Numeric("pressure", 130.0, 18.0, 130.0),), {})
        agreement = Agreement(f"r-{year}", "s", study, ("pressure",), classes, scaled)
        attacker.ask(agreement, np.zeros(2 * len(classes)), 1)
        if attacker.refused and "not among the study's classes" in attacker.refused[-1]:
            if (ages == year).sum() < 5:
                attacker.claims.extend(rows[ages == year])
            attacker.refused[-1] = "somebody has it"
    return attacker


def weighed_labels(attacker, questions=24):
    """Labels far from what a reference says count less: one that moves past an outlying label."""
    use = COLUMNS[:3]
    names = ", ".join(f'"{name}"' for name in use)
    agreement = attacker.agree(
        toml.parse(
            'name = "w"\nsites = ["s"]\n[data]\nlabel = "weight"\ntask = "regression"\n[columns]\n'
            f"use = [{names}]\n[method]\noutliers = 0.1\n"
        )
    )
    told, number = [], 1
    for k, out in enumerate(np.linspace(0.0, 6.0, questions)):
        reference, theta = np.r_[0.0, 0.0, 0.0, out, 1.0], np.r_[0.1, 0.0, 0.0, 0.0, 1.0]
        asked = agreement._replace(run=f"r-{k}")
        attacker.ask(asked, reference, number)  # only models of the run's rounds are taken
        weighed = asked._replace(reference=reference, decision=Decision(0.1, labels=True))
        answer = attacker.ask(weighed, theta, number + 1)
        if answer is not None:
            told.append(answer.vector)
    parts = {part.name: part for part in agreement.transform.numeric}
    for one, two in combinations(told, 2):
        change = one - two
        if abs(change[-1]) > 1e-12:
            place = change[:3] / change[-1]
            record = [
                v * parts[n].spread + parts[n].center for n, v in zip(use, place, strict=True)
            ]
            attacker.claims.append([*record, None])
    return attacker


def few_ill(attacker):
    """A label that one patient has: at θ = 0 the gradient is half of all rows less that one."""
    study = attacker.study(use=COLUMNS)
    agreement = attacker.agree(study._replace(data=study.data._replace(classes=("no", "yes"))))
    for number, theta in enumerate((np.zeros(5), np.r_[np.zeros(4), 1e-3]), start=1):
        told = attacker.ask(agreement, theta, number)
        if told is not None:
            _claim_beside_sums(attacker, agreement, told.vector)
    return attacker


def plane_and_sums(attacker):
    """All rows but an outlying one to one side of a plane: beside the sums of all, that one."""
    agreement = attacker.agree(attacker.study(use=COLUMNS))
    rows = agreement.transform.apply(attacker.site.table).X
    far = int(np.linalg.norm(rows, axis=1).argmax())
    along = rows[far] / np.linalg.norm(rows[far])
    between = float(np.sort(rows @ along)[-2:].mean())
    steep = 30.0 / float(np.median(np.abs(rows @ along - between)))
    first = attacker.ask(agreement, np.zeros(5), 1)
    second = attacker.ask(agreement, np.r_[-steep * along, steep * between], 2)
    if None not in (first, second):
        _claim_beside_sums(attacker, agreement, second.vector - first.vector)
    return attacker


def near_steps(attacker, questions=12, reach=0.4, intercept=1.0):
    """Models that hardly differ, along a row far out: of all combinations, the one for rows there.

    Other rows are taken to be normal along it, and answers to have eight digits.
    """
    agreement = attacker.agree(attacker.study(use=COLUMNS))
    rows = agreement.transform.apply(attacker.site.table).X
    far = int(np.linalg.norm(rows, axis=1).argmax())
    top = float(np.linalg.norm(rows[far]))
    asked, told = [], []
    for number, size in enumerate(np.linspace(0.0, reach, questions), start=1):
        answer = attacker.ask(agreement, np.r_[size * rows[far] / top, intercept], number)
        if answer is not None:
            asked.append(size)
            told.append(answer.vector)
    if not told:
        return attacker
    asked, along = np.array(asked), np.linspace(-3.5, 3.5, 141)
    bulk = expit(intercept + np.outer(along, asked)) * (np.exp(-(along**2) / 4) + 0.05)[:, None]
    there = np.column_stack([expit(intercept + top * asked), np.ones(len(asked))])
    root = np.linalg.qr(np.vstack([bulk, 1e-8 * np.eye(len(asked))]))[1]
    given = np.linalg.solve(root.T, there)  # one there, none of the labels, of the bulk the least
    weights = np.linalg.solve(root, np.linalg.lstsq(given.T, np.array([1.0, 0.0]), rcond=None)[0])
    left = weights @ np.array(told)
    attacker.claims.append(attacker.unscaled(agreement, left / left[-1]))
    return attacker


def _claim_beside_sums(attacker, agreement, vector):
    """Of a sum over rows what is left beside half of all of them: their sums were told before."""
    rows = agreement.transform.apply(attacker.site.table).X
    half, told = 0.5 * np.r_[rows.sum(axis=0), len(rows)], len(rows) * vector
    for left in (told - half, told + half):
        if abs(left[-1]) > 1e-6:
            attacker.claims.append(attacker.unscaled(agreement, left / left[-1]))


def fewest_rows(attacker):
    """A study for at least as many rows as there are, and one age of the label not counted."""
    ages, rows = attacker.site.table.column("age").to_numpy(), _rows(attacker)
    for age in range(20, 101):
        study = toml.parse(
            f'name = "m{age}"\nsites = ["s"]\n[data]\nlabel = "age"\ntask = "regression"\n'
            f'[columns]\nuse = ["pressure"]\nmissing = ["{age}"]\n[method]\nname = "erm"\n'
            f"[privacy]\nminimum_rows = {len(ages)}\n"
        )
        attacker.send(Request(Agreement(f"r-{age}", "s", study, ()), "enrol"))
        if attacker.refused and "minimum" in attacker.refused[-1] and (ages == age).sum() < 5:
            attacker.claims.extend(rows[ages == age])
    return attacker


def counted_classes(attacker):
    """Studies with noise of all classes but one: how many rows have one is told without it."""
    ages, rows = attacker.site.table.column("age").to_numpy(), _rows(attacker)
    years = range(48, 95)
    for year in years:
        classes = ", ".join(f'"{one}"' for one in years if one != year)
        study = toml.parse(
            f'name = "k{year}"\nsites = ["s"]\n[data]\nlabel = "age"\ntask = "classification"\n'
            f'classes = [{classes}]\n[columns]\nuse = ["pressure"]\nscaling = "standard"\n'
            '[method]\nname = "erm"\noutliers = 0\n[privacy]\nepsilon = 1.0\ndelta = 1e-6\n'
            "known = { pressure = [0.0, 300.0] }\n"
        )
        answer = attacker.send(Request(Agreement(f"r-{year}", "s", study, ()), "enrol"))
        if answer is not None and 0 < len(ages) - answer.rows < 5:
            attacker.claims.extend(rows[ages == year])
    return attacker


def _until_refused(attacker, words, ask, near, far, steps):
    """Between what is let through and what is refused with these words, by halves."""
    for _ in range(steps):
        middle, before = (near + far) / 2.0, len(attacker.refused)
        ask(middle)
        refused = len(attacker.refused) > before and words in attacker.refused[-1]
        near, far = (near, middle) if refused else (middle, far)
    return near


def _claim_ages(attacker, found):
    """Values found to five digits: so near to one by chance is hardly any."""
    ages, rows = attacker.site.table.column("age").to_numpy(), _rows(attacker)
    for age in found:
        off = np.abs(ages - age)
        if off.min() < 1e-5 * ages.std():
            attacker.claims.append(rows[off.argmin()])


def refused_centres(attacker):
    """Where a centre is refused as far beyond the range: the least and the greatest value."""
    agreement = attacker.agree(attacker.study(use=COLUMNS))
    age, *others = agreement.transform.parts
    runs = iter(range(1000))

    def ask(center):
        parts = (age._replace(center=center, spread=1e9), *others)
        moved = agreement._replace(transform=Transform(parts, {}), run=f"r-{next(runs)}")
        attacker.ask(moved, np.zeros(5), 1)

    low, high = (_until_refused(attacker, "range", ask, 0.0, end, 48) for end in (-1e7, 1e7))
    width = (high - low) / (2e4 + 1.0)
    _claim_ages(attacker, [low + 1e4 * width, high - 1e4 * width])
    return attacker


def refused_slopes(attacker):
    """How steep is too steep, from several places: the median of distances is one row's."""
    agreement = attacker.agree(attacker.study(use=COLUMNS))
    age, runs = agreement.transform.parts[0], iter(range(1000))
    for place in (-5.0, 0.2, 1.0):

        def ask(slope, place=place):
            theta = np.r_[slope, 0.0, 0.0, 0.0, -slope * place]
            attacker.ask(agreement._replace(run=f"r-{next(runs)}"), theta, 1)

        away = 50.0 / _until_refused(attacker, "steeper", ask, 0.0, 1e4, 30)
        _claim_ages(attacker, [(place + s * away) * age.spread + age.center for s in (-1, 1)])
    return attacker


def compared_planes(attacker, steep=10.0):
    """Two planes to either side of a held-out row: their losses differ by that row alone."""
    agreement = attacker.agree(attacker.study(use=COLUMNS, method='name = "dorfl"'))
    age, level = agreement.transform.numeric[0], 4.6
    candidates = default_candidates()[:2]
    for width in (2.0, 0.8, 0.4):
        models = np.array(
            [np.r_[steep, 0.0, 0.0, 0.0, -steep * (level + s * width / 2)] for s in (-1, 1)]
        )
        asked = agreement._replace(run=f"r-{width}")
        broadcasts = {
            str(k): Broadcast(1, Task(theta, np.ones(1))) for k, theta in enumerate(models)
        }
        attacker.send(Request(asked, "select", candidates=candidates, broadcasts=broadcasts))
        answer = attacker.send(Request(asked, "compare", candidates=candidates, models=models))
        if answer is None or not answer.rows[0]:
            return attacker
        # Every other ill patient adds the same, this one as much as it is beyond the plane.
        short = (-answer.differences[0] / steep) % width
        found = [short - k * width for k in (0, 1)]
        level += width / 2 - min(found, key=lambda one: abs(one - width / 2))
    attacker.claims.append([level * age.spread + age.center, None, None, None])
    return attacker


def _add_up(sums, told):
    """The sums over the least values that a sketch shows, by how many values there are in them."""
    edges, parts = np.cumsum(told.sizes), np.array(told.means) * told.sizes
    sums.update(zip(edges.tolist(), np.cumsum(parts).tolist(), strict=True))


def _single_values(attacker, sums, n):
    """Values known alone: records of one column, counted as if they were whole."""
    values = np.sort(attacker.site.table.column("age").to_numpy())
    rows = _rows(attacker)
    for k in range(n):
        if k in sums and k + 1 in sums:
            single = sums[k + 1] - sums[k]
            near = int(np.abs(values - single).argmin())
            if abs(values[near] - single) < 1e-6 * values.std():
                attacker.claims.append(rows[np.abs(rows[:, 0] - values[near]).argmin()])
    return attacker


ATTACKS = {
    "five rows a question (`batch`)": small_batches,
    "a level of one patient, two θ": lonely_level,
    "a steep step swept along a column": sweep,
    "the same, as steep as is allowed": lambda a: sweep(a, steep=45.0),
    "a plane moved through an outlying row": targeted,
    "89 studies with other blocks": many_studies,
    "an age after the other named a missing value": named_missing,
    "distances from chosen middles": moved_middle,
    "centres over chosen columns": chosen_columns,
    "curvature of a few uncertain rows": bent,
    "rows that fit all answers (40 rows, two columns)": solved,
    "another value in the place of a missing one": filled,
    "middles in the place of missing values": moved_fill,
    "how many rows models get right, past the outermost": counted,
    "an age after the other left out of the classes": unlisted_class,
    "labels weighed by a reference that moves past one": weighed_labels,
    "a label that one patient has": few_ill,
    "a plane before an outlying row, and the sums of all": plane_and_sums,
    "models that hardly differ, along an outlying row": near_steps,
    "an age of the label not counted, and as many rows asked for": fewest_rows,
    "an age after the other left out of a study with noise": counted_classes,
    "centres moved until they are refused": refused_centres,
    "slopes raised until they are refused": refused_slopes,
    "planes to either side of a held-out row": compared_planes,
}


def against(name, policy=None, *, summed=False):
    """The attack of that name on a site with this policy, or as sites are."""
    table = patients(40) if ATTACKS[name] is solved else None
    if ATTACKS[name] in (named_missing, unlisted_class, fewest_rows, counted_classes):
        table = patients()
        table["age"] = np.rint(table["age"])
    if ATTACKS[name] is refused_slopes:  # an odd number has one in the middle
        table = patients(187)
    if ATTACKS[name] is few_ill:
        table = patients()
        table["ill"] = ["yes" if k == 23 else "no" for k in range(188)]
    if ATTACKS[name] in (plane_and_sums, compared_planes):
        table, place = (patients(), 11) if ATTACKS[name] is plane_and_sums else (patients(1000), 26)
        for column in COLUMNS:
            table[column][place] = table[column].mean() + 5.0 * table[column].std()
    if ATTACKS[name] is near_steps:
        table = patients()
        for column in COLUMNS:
            table[column][11] = table[column].mean() + 7.0 * table[column].std()
    if ATTACKS[name] in (unlisted_class, counted_classes):
        table["age"] = np.clip(table["age"], 48.0, 94.0)
    if ATTACKS[name] is weighed_labels:
        table = patients()
        table["weight"][29] = 230.0
    if ATTACKS[name] is moved_fill:  # the outermost block: patients who are older than all others
        table = patients()
        table["age"][:6] = [111.0, 114.0, 118.0, 121.0, 126.0, 128.0]
    if ATTACKS[name] is filled:
        table = patients()
        table["age"][17] = np.nan
    attacker = Attacker(victim(policy, table), summed)
    with contextlib.suppress(StoppedError):
        ATTACKS[name](attacker)
    return attacker
