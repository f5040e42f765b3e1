"""Rows of every form: drawn anew, of any size and shape, and never silently changed."""

import numpy as np
import pytest
import torch
from test_network_training import blobs, model, quick
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dorfl
from dorfl import methods, networks
from dorfl.federated import registry
from dorfl.networks.checkpoint import describe
from dorfl.networks.data import gather

pytestmark = pytest.mark.filterwarnings("ignore:on the way of")


class Noisy(Dataset):
    """Rows with noise that is drawn whenever a row is read, and a count of the reads."""

    def __init__(self, X, y):
        self.X, self.y, self.drawn = X, y, []

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.drawn.append((i, noise := float(torch.randn(()))))
        return self.X[i] + noise, self.y[i]


def noisy():
    return {name: Noisy(*pair) for name, pair in blobs().items()}


def test_augmentation_is_drawn_anew_in_every_epoch_and_repeats_with_the_seed(tmp_path):
    clients = noisy()
    fit = quick(clients, methods.erm(), rounds=3, local_epochs=1)
    drawn = clients["c2"].drawn
    for i in range(len(clients["c2"])):
        noise = [z for k, z in drawn if k == i]
        assert len(set(noise)) >= 3
    again = quick(noisy(), methods.erm(), rounds=3, local_epochs=1)
    assert np.array_equal(fit.theta, again.theta)
    file = tmp_path / "state"
    quick(noisy(), methods.erm(), rounds=1, local_epochs=1, checkpoint=file)
    resumed = quick(noisy(), methods.erm(), rounds=3, local_epochs=1, checkpoint=file)
    assert np.array_equal(fit.theta, resumed.theta)
    assert np.array_equal(fit.risks, resumed.risks)


def test_workers_of_a_loader_read_the_rows_and_give_the_same_model():
    sets = {name: Plain(*pair) for name, pair in blobs().items()}
    loaders = {name: DataLoader(one, num_workers=1) for name, one in sets.items()}
    fits = [quick(given, methods.erm(), rounds=1) for given in (sets, loaders)]
    assert np.array_equal(fits[0].theta, fits[1].theta)


class Plain(Noisy):
    def __getitem__(self, i):
        return self.X[i], self.y[i]


def test_a_data_set_gives_the_model_of_its_arrays():
    arrays = quick(blobs(), methods.erm(), rounds=2, max_parameters=1)
    lazy = quick({n: Plain(*p) for n, p in blobs().items()}, methods.erm(), rounds=2)
    assert np.array_equal(arrays.theta, lazy.theta)


class Huge(Dataset):
    """2 GB of pictures that are made when they are read."""

    targets = np.arange(800) % 2

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return torch.full((3, 468, 468), float(self.targets[i])), self.targets[i]


def test_a_lazy_data_set_is_not_read_into_memory():
    read = []

    class Counted(Huge):
        def __getitem__(self, i):
            read.append(i)
            return super().__getitem__(i)

    rows = gather([Counted()], torch.float32, classify=True)
    assert rows.classes.tolist() == [0, 1]
    assert read == []
    assert rows.batch([0], [np.array([3, 5])]).x.shape == (1, 2, 3, 468, 468)
    assert read == [3, 5]


def test_arrays_are_not_copied():
    X, y = np.zeros((50, 7), np.float32), np.arange(50) % 2
    tensor = torch.zeros(50, 7)
    rows = gather({"a": (X, y), "b": (tensor, y)}, torch.float32, classify=True)
    assert rows.sources[0].x.data_ptr() == X.ctypes.data
    assert rows.sources[1].x.data_ptr() == tensor.data_ptr()


class Looked(nn.Module):
    """An embedding that keeps what it was asked for."""

    seen = ()

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        if x.is_floating_point():
            raise TypeError("token ids must be integers")
        Looked.seen = (*Looked.seen, *torch.as_tensor(x).flatten().tolist())
        return self.out(self.table(x % 4).mean(1))


def test_token_ids_above_the_range_of_float32_stay_what_they_are():
    ids = 2**24 + np.arange(24).reshape(8, 3)
    y = np.arange(8) % 2
    fit = dorfl.train([(ids, y)], methods.erm(), model=Looked, rounds=1, max_parameters=1)
    assert set(ids.ravel()) <= set(Looked.seen)
    assert fit.predict(ids).shape == (8,)
    for method in (methods.wafl(1.0), methods.paper()):
        with pytest.raises(ValueError, match="have no gradient by its inputs"):
            dorfl.train([(ids, y)], method, model=Looked, rounds=1)


def test_integers_for_a_model_of_real_numbers_become_real_numbers():
    clients = [(np.arange(40).reshape(20, 2), np.arange(20) % 2)]
    real = [(clients[0][0].astype(np.float32), clients[0][1])]
    fits = [dorfl.train(c, "erm", model=lambda: nn.Linear(2, 2), rounds=2) for c in (clients, real)]
    assert np.array_equal(fits[0].theta, fits[1].theta)


def test_two_outputs_of_a_regression_are_both_fitted_and_predicted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    Y = np.stack([X[:, 0], -2 * X[:, 1]], 1)
    for loss in ("squared", "huber", lambda out, y: ((out - y) ** 2).sum(1)):
        fit = dorfl.train(
            [(X, Y)], "erm", model=lambda: nn.Linear(3, 2), loss=loss, rounds=300, lr=0.05
        )
        assert fit.predict(X) == pytest.approx(Y, abs=0.1)
    with pytest.raises(ValueError, match=r"needs \(2,\)"):
        dorfl.train([(X, Y)], "erm", model=lambda: nn.Linear(3, 1), loss="squared")


def test_several_labels_of_a_row_by_the_logistic_loss():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    Y = (X > 0).astype(int)
    fit = dorfl.train(
        [(X, Y)], "erm", model=lambda: nn.Linear(3, 3), loss="logistic", rounds=200, lr=0.1
    )
    assert fit.score(X, Y) > 0.95
    assert fit.predict(X).shape == (200, 3)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.table(x))


def test_a_label_for_every_token():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, (60, 5))
    fit = dorfl.train([(X, X % 3)], "afl", model=Tagger, rounds=100, lr=0.05)
    assert np.array_equal(fit.predict(X), X % 3)


class Sentences(Dataset):
    """Sentences of different lengths, as lists of token ids with one label for each."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.rows = [rng.integers(1, 6, n) for n in rng.integers(2, 9, 40)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"tokens": self.rows[i], "tags": self.rows[i] % 3}


class Masked(nn.Module):
    """Takes keywords, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.inner = Tagger()

    def forward(self, ids, mask):
        return self.inner(ids) * mask[..., None]


def pad(rows):
    """A batch of dict rows: inputs by keyword, and labels with -100 for padding."""
    longest = max(len(row["tokens"]) for row in rows)

    def padded(key, value):
        return torch.as_tensor(
            np.stack([np.pad(r[key], (0, longest - len(r[key])), constant_values=value)
                      for r in rows])
        )  # fmt: skip

    ids = padded("tokens", 0)
    return {"ids": ids, "mask": (ids > 0).float()}, padded("tags", -100)


def per_token(out, y):
    each = nn.functional.cross_entropy(out.movedim(-1, 1), y, reduction="none", ignore_index=-100)
    return each.sum(1) / (y >= 0).sum(1)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: DataLoader(s, collate_fn=pad)])
def test_rows_of_any_length_by_a_collate_function(wrap):
    clients = {f"c{k}": wrap(Sentences(k)) for k in range(2)}
    collate = None if isinstance(clients["c0"], DataLoader) else pad
    fit = dorfl.train(clients, model=Masked, loss=per_token, collate=collate, rounds=60, lr=0.05)
    assert fit.risks.max() < 0.1
    assert "one tensor" in fit.notes[0] or "no gradient" in fit.notes[0]
    inputs, labels = pad([Sentences(5)[k] for k in range(4)])
    right = fit.model(**inputs).argmax(-1) == labels
    assert bool(right[labels >= 0].all())
    with pytest.raises(ValueError, match="collate="):
        dorfl.train(clients["c0"] and [Sentences(0)], model=Masked, loss=per_token)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 3), nn.Linear(4, 3)

    def forward(self, a, b):
        return self.one(a) + self.two(b)


class Both(Plain):
    def __getitem__(self, i):
        return (self.X[i], np.tile(self.X[i], 2)), int(self.y[i])


def test_several_inputs():
    clients = {name: Both(*pair) for name, pair in blobs().items()}
    fit = dorfl.train(clients, "afl", model=Two, rounds=60)
    assert fit.risks.max() < 0.8
    with pytest.raises(ValueError, match="outputs of its embedding"):
        dorfl.train(clients, methods.wafl(1.0), model=Two)


class Counting(nn.Module):
    """A buffer that every forward pass changes."""

    def __init__(self):
        super().__init__()
        self.inner = model()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


class OwnNorm(nn.Module):
    """Batch normalisation that is not called so."""

    def __init__(self):
        super().__init__()
        self.inner = model()

    def forward(self, x):
        return self.inner((x - x.mean(0)) / (x.std(0) + 1e-3))


@pytest.mark.parametrize(
    ("made", "said"), [(Counting, "changes the buffer 'calls'"), (OwnNorm, "use GroupNorm")]
)
def test_what_passes_from_row_to_row_or_client_to_client_is_refused(made, said):
    with pytest.raises(ValueError, match=said):
        dorfl.train(blobs(), methods.erm(), model=made)


def frozen():
    """A backbone in eval mode with a new head, as fine-tuning has it."""
    norm = nn.BatchNorm1d(8)
    norm.running_mean.normal_()
    made = nn.Sequential(nn.Linear(2, 8), norm, nn.ReLU(), nn.Linear(8, 3))
    for part in made[:2]:
        part.eval().requires_grad_(False)
    return made


def test_frozen_batch_normalisation_is_left_alone():
    torch.manual_seed(0)
    start = frozen()
    fit = quick(blobs(), methods.erm(), model=start, rounds=100)
    assert torch.equal(fit.model[1].running_mean, start[1].running_mean)
    assert torch.equal(fit.model[0].weight, start[0].weight)
    assert fit.score(*blobs((300,), seed=2)["c0"]) > 0.8
    moved = quick(blobs(), methods.wafl(5.0), model=start, rounds=2)  # it passes evaluating()
    assert torch.equal(moved.model[1].running_mean, start[1].running_mean)


class Kinds(nn.Module):
    """Buffers of several types."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.inner = model().to(dtype)
        for name, value in {
            "flag": torch.tensor([True, False]), "small": torch.tensor([3], dtype=torch.int32),
            "tiny": torch.tensor([3], dtype=torch.int8), "short": torch.ones(2).half(),
        }.items():  # fmt: skip
            self.register_buffer(name, value)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_type_of_number_is_saved_and_resumed(dtype, tmp_path):
    made, file = Kinds(dtype), tmp_path / "state"
    given = {"model": made, "server_optimizer": networks.sgd(0.1), "rounds": 3}
    whole = quick(blobs(), methods.erm(), **given)
    quick(blobs(), methods.erm(), **{**given, "rounds": 1}, checkpoint=file)
    fit = quick(blobs(), methods.erm(), **given, checkpoint=file)
    assert np.array_equal(fit.theta, whole.theta)
    back = networks.load(networks.save(fit, tmp_path / "model"), made)
    for name, value in fit.model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value)
        assert back.state_dict()[name].dtype == value.dtype


def test_a_resumed_training_with_anything_else_is_refused_and_the_difference_named(tmp_path):
    file = tmp_path / "state"

    def loss(out, y):
        return nn.functional.cross_entropy(out, y, reduction="none")

    def other(out, y):
        return 2 * nn.functional.cross_entropy(out, y, reduction="none")

    def bounded(x, y):
        return 0.1 * x.abs().sum(1)

    given = {"classes": range(3), "rounds": 1, "loss": loss, "checkpoint": file}
    method = methods.method(temperature=5.0)
    quick(blobs(), method, **given)
    changed = {k: (X.copy(), y) for k, (X, y) in blobs().items()}
    changed["c1"][0][3, 1] += 1e-4
    relabelled = {k: (X, y.copy()) for k, (X, y) in blobs().items()}
    relabelled["c2"][1][0] = 1
    for clients, words, named in (
        (changed, {}, "other rows of 'c1'"),
        (relabelled, {}, "other rows of 'c2'"),
        (blobs(), {"loss": other}, "other loss"),
        (blobs(), {"score": bounded}, "other score"),
        (blobs(), {"batch_size": 8}, "other plan"),
        (blobs(), {"model": lambda: networks.mlp(2, (9,), 3)}, "other model"),
    ):
        with pytest.raises(ValueError, match=named):
            quick(clients, method, **{**given, **words})
    with pytest.raises(ValueError, match="other method"):
        quick(blobs(), methods.afl(), **given)
    quick(blobs(), method, **{**given, "rounds": 2})


def test_descriptions_are_the_same_in_every_process_and_differ_with_what_is_meant():
    weight = np.arange(3.0)
    one, two = (lambda x: x @ weight), (lambda x: x @ (weight + 1))
    assert describe(one) == describe(lambda x: x @ weight)
    assert describe(one) != describe(two)
    assert "0x" not in describe((one, methods.paper(), nn.Linear(2, 2), networks.distance(3.0)))


def test_methods_have_names(monkeypatch):
    monkeypatch.setattr(registry, "_methods", {})
    fits = [quick(blobs(), m) for m in ("afl", methods.afl())]
    assert np.array_equal(fits[0].theta, fits[1].theta)
    dorfl.register_method("half", methods.method(mixture="agnostic"))
    assert np.array_equal(quick(blobs(), "half").theta, fits[1].theta)
    dorfl.register_method("sizes", lambda reports: [one.rows for one in reports])
    for name, said in (
        ("wafl", "needs a price"),
        ("sgd", "choose one of erm"),
        ("sizes", "rule from reports to weights"),
    ):
        with pytest.raises(ValueError, match=said):
            quick(blobs(), name)
