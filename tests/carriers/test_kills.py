"""Any process killed at any moment, again and again: the same bits in the end.

`DORFL_KILLS=20` kills so often on every carrier. By default Flower's processes are killed twice:
a SuperNode takes up to a minute to be back.
"""

import os
import random
import signal
import threading
import time

import pytest
from deployments import KINDS, TABLES, alone, same

from dorfl.carriers import runs
from study_cases import METHODS, make_study

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]

RESTARTS = "answer_within = 600"  # seconds: sites are started again and again
LONGER = {"training": 'solver = "optimistic"\ntol = 1e-12\nmax_rounds = 12', "absent": RESTARTS}
SHORT = {"method": METHODS["erm"], "training": "max_rounds = 3", "absent": RESTARTS}
WITHIN = {"in-process": 2.0, "https": 4.0, "flower": 40.0}  # seconds until the next kill, at most


class Killed(BaseException):
    """The coordinator ends here, wherever it is."""


def kills(name, default):
    return int(os.environ.get("DORFL_KILLS", default if name == "flower" else 20))


@pytest.mark.parametrize("name", ["in-process", "https"])
def test_processes_killed_at_random_moments_change_no_bit(tmp_path_factory, name):
    rng, left = random.Random(27), kills(name, 20)
    study = make_study(TABLES, **LONGER)
    with KINDS[name](tmp_path_factory.mktemp("k")) as deployed:
        while left > 0:
            left = _survive(deployed, study, rng, left)


def _survive(deployed, study, rng, left):
    """Run the study once, with kills at random moments until it ends; return the kills left."""
    done, folder = threading.Event(), None
    victims = ["coordinator", *deployed.homes]
    victims += ["server"] if deployed.name == "https" else []
    plan = [(rng.uniform(0.0, WITHIN[deployed.name]), rng.choice(victims)) for _ in range(left)]

    def disturb():
        nonlocal left
        for wait, victim in plan:
            if done.wait(wait):
                return
            left -= 1
            if victim == "coordinator":
                doomed.set()
            elif victim == "server":
                deployed.kill_server()
            else:
                deployed.stop_site(victim)
                time.sleep(0.05)
                deployed.start_site(victim)

    def watch(*_):
        if doomed.is_set():
            doomed.clear()
            raise Killed

    doomed, thread = threading.Event(), threading.Thread(target=disturb)
    before = set(deployed.federation.runs())
    thread.start()
    try:
        while True:
            try:
                if folder is None:
                    runs.begin(deployed.federation, study, watch, carrier=deployed.carrier())
                else:
                    runs.resume(deployed.federation, folder, watch, carrier=deployed.carrier())
                break
            except Killed:
                (folder,) = set(deployed.federation.runs()) - before
            except ValueError as error:  # a person starts it again a moment later
                if "its server is not running" not in str(error):
                    raise
                time.sleep(0.2)
    finally:
        done.set()
        thread.join()
    (folder,) = set(deployed.federation.runs()) - before
    assert same(deployed.outcome(folder), alone(study))
    return left


def test_flowers_processes_killed_at_random_moments_change_no_bit(tmp_path_factory):
    rng, left = random.Random(27), kills("flower", 2)
    study = make_study(TABLES, **SHORT)
    with KINDS["flower"](tmp_path_factory.mktemp("k")) as deployed:
        while left > 0:
            left = _survive_on_flower(deployed, study, rng, left)


def _survive_on_flower(deployed, study, rng, left):
    """Run the study once over Flower, with kills at random moments; return the kills left."""
    before, done = set(deployed.federation.runs()), threading.Event()
    ended, errors, planned = [], [], left

    def run():
        while not ended and len(errors) < 2 * planned + 3:
            made = set(deployed.federation.runs()) - before
            try:
                ended.append(deployed.run(study) if not made else _resumed(deployed, *made))
            except ValueError as error:
                errors.append(str(error))
        done.set()

    def restart_supernodes():
        """Start SuperNodes that have ended, as their units do: each is refused for a minute."""
        while not done.wait(5.0):
            for name, home in deployed.homes.items():
                if deployed.flower.processes[f"{name}-supernode"].poll() is not None:
                    deployed.flower.start_supernode(home)

    threads = [threading.Thread(target=work) for work in (run, restart_supernodes)]
    for thread in threads:
        thread.start()
    kinds = ("site", "supernode")
    victims = ["coordinator", "superlink", *(f"{name}-{kind}" for name in TABLES for kind in kinds)]
    while left > 0 and not done.wait(rng.uniform(0.0, WITHIN["flower"])):
        left -= 1
        victim = rng.choice(victims)
        if victim == "coordinator":
            deployed.kill_all_of_the_coordinator()
        elif victim == "superlink":
            deployed.kill_server()
        elif victim.endswith("site"):
            deployed.stop_site(victim.removesuffix("-site"))
            deployed.start_site(victim.removesuffix("-site"))
        else:
            deployed.flower.stop(victim, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert ended, (planned - left, errors[-1:])
    assert same(deployed.outcome(ended[0]), alone(study))
    return left


def _resumed(deployed, folder):
    deployed.resume(folder)
    return folder
