"""Check that a study can be run as it is written; each objection says what to write instead."""

from __future__ import annotations

from dorfl import solvers
from dorfl.objective.methods import check_outliers, check_shift
from dorfl.protocol import private_columns, resolution
from dorfl.protocol.settings import SUMMED_SITES, Defence, Study, Training, check_values
from dorfl.support import wire


def check(study: Study) -> None:
    """Raise ValueError if the study cannot be run as it is written."""
    data, columns, method, options = study.data, study.columns, study.method, study.training
    for what, names in (
        ("sites", study.sites),
        ("columns.use", columns.use),
        ("data.classes", data.classes),
    ):
        if len(set(names)) < len(names):
            raise ValueError(f"study: {what} names one twice")
    if not study.name.replace("-", "").replace("_", "").isalnum():
        raise ValueError("study: its name must be made of letters, digits, - and _")
    if not data.label.strip():
        raise ValueError("data.label: is empty; name the column to predict")
    if data.label in columns.use:
        raise ValueError(f"study: the label {data.label!r} is also one of the columns")
    for section, values in zip(study._fields, study, strict=True):
        if wire.is_record(type(values)):
            check_values(values, f"{section}.")
    if study.privacy.minimum_rows < study.privacy.least:
        raise ValueError("privacy.minimum_rows: must be at least privacy.least")
    if study.sites and method.cap * len(study.sites) < 1.0 - 1e-12:
        raise ValueError(
            f"method.cap = {method.cap:g}: must be at least 1/{len(study.sites)} for "
            f"{len(study.sites)} sites, or their weights cannot add up to 1"
        )
    check_outliers(method.outliers)
    check_shift(method.shift)
    if data.task != "auto" and resolution.loss_of(study, max(len(data.classes), 2)).classifies != (
        data.task == "classification"
    ):
        raise ValueError(f"study: loss {options.loss!r} is not for {data.task}")
    asked = resolution.options_of(study, 1)
    if asked.trim > 0 and not solvers.resolve(asked.solver, whole=asked.whole).needs.trims:
        raise ValueError('study: defence.trim needs training.solver = "optimistic"')
    resolution.plan_of(study)
    if study.privacy.mode == "private" and study.privacy.epsilon is None:
        raise ValueError('privacy.reports = "private": set privacy.epsilon')
    if study.privacy.mode == "open" and study.privacy.epsilon is not None:
        raise ValueError('privacy.reports = "open": goes without epsilon; set "private"')
    if study.privacy.known:
        private_columns.check(study)
    if options.model != "linear":
        _check_network(study)
    elif options.batch is not None:
        raise ValueError('training.batch: is for networks; set training.model = "mlp"')
    if study.privacy.summed:
        _check_sums(study)


def _check_network(study: Study) -> None:
    """Raise ValueError if a network's study has settings of linear models."""
    words, usual = study.training, Training()
    instead = {
        "solver": "a network has its own",
        "tol": "a network has no gap to stop at: set training.max_rounds",
        "curvature": "a network reports none",
        "bytes_per_round": "a network reports no curvature",
        "intercept": "a network has one in every layer",
    }
    for name, reason in instead.items():
        if getattr(words, name) != getattr(usual, name):
            raise ValueError(f"training.{name}: is for linear models ({reason}); leave it out")
    judges = study.defence._replace(most_rows=None) != Defence()
    for wrong, reason in (
        (
            study.privacy.epsilon is not None,
            "privacy.epsilon: how far one row moves a network's update has no bound here, so no "
            "noise is known to hide it; linear models have one",
        ),
        (judges, "[defence]: a network's updates are left out where absurd, and not judged beyond"),
        (study.method.by == "regret", "method.by: regret is known for linear models; use loss"),
    ):
        if wrong:
            raise ValueError(f'{reason}. Leave it out, or set training.model = "linear"')


def _check_sums(study: Study) -> None:
    """Raise if a summed study asks for what cannot be computed from sums over sites."""
    solver, defence = resolution.options_of(study, 1).solver, study.defence
    judged = defence.row is not None or defence.target is not None
    judged = judged or defence.trim > 0 or defence.liars > 0
    network = study.training.model != "linear"
    worst = network and resolution.is_adversarial(study)
    needed = not network and not solvers.resolve(solver, whole=True).needs.pools
    if study.privacy.epsilon is not None:
        raise ValueError('privacy.reports = "summed": goes without epsilon; set "private"')
    for wrong, reason in (
        (0 < len(study.sites) < SUMMED_SITES, "three sites at least"),
        (worst, 'method.mixture = "fixed" for a network (a worst mixture needs each risk)'),
        (study.method.cap < 1.0, "method.cap = 1 (which sites are at the cap is no sum)"),
        (study.method.by == "regret", 'method.by = "loss" or "risk" (regret is each site\'s own)'),
        (judged, "no [defence] (no single report is seen, so none can be judged)"),
        (needed, f"another solver (solver {solver!r} needs single reports)"),
    ):
        if wrong:
            raise ValueError(
                f'privacy.reports = "summed" needs {reason}; else set reports = "open", which '
                "every site has to allow"
            )
