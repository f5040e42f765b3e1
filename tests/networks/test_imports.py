"""Linear models do without PyTorch, and networks say what to install."""

import subprocess
import sys

LINEAR = """
import sys, dorfl
data = dorfl.datasets.synthetic(seed=0)
dorfl.train(data.clients, dorfl.methods.erm(), max_rounds=30)
X, y = data.clients["client-1"]
dorfl.RobustClassifier("erm").fit(X, y).predict(X)
assert "torch" not in sys.modules
"""
MISSING = """
import sys
sys.modules["torch"] = None
from dorfl import networks
try:
    networks.train
except ModuleNotFoundError as error:
    assert "pip install 'torch" in str(error), error
else:
    raise AssertionError
"""


def run(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode()


def test_the_linear_path_is_free_of_torch():
    run(LINEAR)


def test_without_torch_an_error_says_what_to_install():
    run(MISSING)
