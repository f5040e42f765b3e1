"""What people bring: modules, data sets and losses that work, or that are refused in a sentence."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import dorfl
from dorfl import methods, networks
from dorfl.networks.data import gather

MOVING = methods.method(rho=10.0, temperature=20.0, name="dorfl")


def pictures(count=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 1, 6, 6)).astype(np.float32), np.arange(count) % 3


CLIENTS = {"a": pictures(), "b": pictures(9, 1)}


def cnn(*extra):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), *extra, nn.Flatten(), nn.Linear(32, 3))


def fit(model=cnn, method=None, clients=CLIENTS, **given):
    given = {"rounds": 2, "batch_size": 4, **given}
    return dorfl.train(clients, method or methods.afl(), model=model, **given)


class Pairs(Dataset):
    """Rows as `shape` makes them of x and y."""

    def __init__(self, shape):
        self.shape, self.rows = shape, pictures()

    def __len__(self):
        return len(self.rows[1])

    def __getitem__(self, i):
        return self.shape(self.rows[0][i], int(self.rows[1][i]))


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*pictures(), strict=True)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.out(torch.relu(self.two(torch.relu(self.one(x.flatten(1))))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.cells(x[:, 0])[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.layer(x[:, 0]).mean(1))


class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = cnn()

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else -self.inner(x)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.table(x.flatten(1).abs().clamp(max=8).long()).mean(1))


class Integers(Words):
    """It takes rows for numbers of words, and they come as floats."""

    def forward(self, x):
        return self.out(self.table(x).mean(1))


class Pair(nn.Module):
    """Two inputs, side by side in one array."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, x):
        x, z = x.split([4, 2], 1)
        return self.one(x) + self.two(z)


class Apart(Pair):
    def forward(self, x, z):
        return self.one(x) + self.two(z)


class Turning(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.one, self.two = nn.Linear(36, 3), nn.Parameter(torch.ones(3, 3, dtype=dtype))

    def forward(self, x):
        return (self.one(x.flatten(1)).to(self.two.dtype) @ self.two).abs()


class Several(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = cnn(), kind

    def forward(self, x):
        return self.kind(self.inner(x))


@pytest.mark.filterwarnings("ignore:on the way of", "ignore:There is a performance drop")
@pytest.mark.parametrize("method", [methods.afl(), MOVING], ids=["afl", "dorfl"])
@pytest.mark.parametrize(
    "model",
    [
        cnn, lambda: cnn(nn.Dropout(0.5)), lambda: cnn(nn.GroupNorm(1, 2)),
        lambda: cnn(nn.InstanceNorm2d(2)), Tied, Recurrent, Attending, Choosing,
        lambda: cnn().double(),
    ],
    ids=["cnn", "dropout", "group", "instance", "tied", "lstm", "attention", "choice", "double"],
)  # fmt: skip
def test_modules_train_and_the_same_seed_gives_the_same(model, method):
    one, two = fit(model, method), fit(model, method)
    assert np.isfinite(one.risks).all()
    assert np.array_equal(one.theta, two.theta)
    assert one.predict(CLIENTS["a"][0]).shape == (12,)


def test_one_client_at_a_time_gives_what_all_together_give(monkeypatch):
    """Where `vmap` cannot batch a module, the loop over clients takes its place."""
    together = fit()

    def refuse(*_, **__):
        raise RuntimeError("no batching rule")

    monkeypatch.setattr("dorfl.networks.model.vmap", lambda *_, **__: refuse)
    np.testing.assert_allclose(fit().theta, together.theta, atol=1e-6)


def test_shared_parameters_stay_shared():
    model = fit(Tied).model
    assert model.one.weight is model.two.weight


@pytest.mark.parametrize(
    "given",
    [
        pictures(),
        Pairs(lambda x, y: (x, y)),
        Pairs(lambda x, y: (x.astype(np.float64), np.int64(y))),
        TensorDataset(*map(torch.as_tensor, pictures())),
        Stream(),
        DataLoader(Pairs(lambda x, y: (x, y))),
        (pictures()[0], pictures()[1][:, None]),
        (torch.as_tensor(pictures()[0]), torch.as_tensor(pictures()[1])[:, None]),
    ],
    ids=["arrays", "pairs", "float64", "tensors", "stream", "loader", "column", "tensor-column"],
)
def test_rows_come_in_many_forms(given):
    rows = gather([given], torch.float32, classify=True).known(0)
    expected = gather([pictures()], torch.float32, classify=True).known(0)
    assert torch.equal(rows[0], expected[0])
    assert torch.equal(rows[1], expected[1])


def test_a_client_of_one_row_takes_part():
    clients = {"a": pictures(), "b": pictures(1)}
    assert np.isfinite(fit(clients=clients).risks).all()


def test_a_loss_of_ones_own_gets_class_numbers_where_classes_are_given():
    ours = fit()
    loss = nn.CrossEntropyLoss(reduction="none")
    theirs = fit(loss=loss, classes=range(3))
    assert np.array_equal(theirs.theta, ours.theta)
    assert np.array_equal(theirs.predict(CLIENTS["a"][0]), ours.predict(CLIENTS["a"][0]))


def sentences(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 9, (12, 5)), np.arange(12) % 3


@pytest.mark.parametrize(
    ("model", "clients", "given"),
    [
        (Words, {"a": sentences(0), "b": sentences(1)}, {"method": methods.erm()}),
        (Pair, {"a": (pictures()[0][:, 0, 0], pictures()[1])}, {"method": MOVING}),
    ],
    ids=["embedding", "two-inputs"],
)
def test_rows_that_are_no_pictures_train_are_kept_and_come_back(model, clients, given, tmp_path):
    """Integers by an embedding; two inputs in one array."""
    trained = fit(model, clients=clients, **given)
    rows = clients["a"][0]
    back = networks.load(networks.save(trained, tmp_path / "model"), model)
    assert np.array_equal(back(torch.as_tensor(rows)).detach(), trained.decision(rows))
    with pytest.raises(ValueError, match="give the `model`"):
        networks.load(tmp_path / "model")


def test_an_estimator_refuses_batch_normalisation_in_the_same_sentence():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))

    def model(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))

    with pytest.raises(ValueError, match="use GroupNorm or LayerNorm"):
        dorfl.RobustClassifier(model=model).fit(X, X[:, 0] > 0)


def spoilt():
    X, y = pictures()
    X[3, 0, 2, 2] = np.nan
    return {"a": (X, y)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": lambda: cnn(nn.BatchNorm2d(2))}, "use GroupNorm or LayerNorm"),
        ({"model": lambda: Several(lambda out: (out, out))}, "returns a tuple"),
        ({"model": lambda: Several(lambda out: {"logits": out})}, "returns a dict"),
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3))}, "has no shape yet"),
        ({"model": Words, "method": MOVING}, "have no gradient by its inputs"),
        ({"model": Integers}, r"does not take rows .* reach it as torch.float32: .*indices"),
        ({"model": Apart}, "missing 1 required positional argument: 'z'"),
        ({"model": lambda: Turning(torch.complex64)}, "two is torch.complex64"),
        ({"model": lambda: cnn().bfloat16()}, "0.weight is torch.bfloat16"),
        ({"model": lambda: Several(torch.fft.fft)}, "returns torch.complex64"),
        ({"clients": [((np.ones((12, 4)), np.ones((12, 2))), np.arange(12) % 3)]}, "are pairs"),
        ({"loss": nn.CrossEntropyLoss(), "classes": range(3)}, r"reduction='none'"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "class numbers where `classes` is given"),
        ({"loss": nn.MSELoss(reduction="none"), "model": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(36, 1))}, r"gives \(2, 2\) for two rows"),
        ({"clients": [Pairs(lambda x, y: {"image": x, "label": y})]}, "gives a dict for a row"),
        ({"clients": [Pairs(lambda x, y: (x, y, 0))]}, "gives a tuple for a row"),
        ({"clients": {"a": pictures(), "b": pictures(0)}}, "client 'b': has no rows"),
        ({"clients": spoilt()}, "NaN or infinite, the first in row 3"),
        ({"clients": {"a": pictures(2)}}, "give `classes` if these rows lack some"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using a target size")  # PyTorch's own words
def test_what_cannot_work_is_refused_in_a_sentence(given, said):
    with pytest.raises(ValueError, match=said):
        fit(**given)
