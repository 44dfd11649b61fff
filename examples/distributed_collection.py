"""Programs that share nothing but a folder: workers collect, one program learns. Files meet in it.

    python examples/distributed_collection.py --steps 20000

The folder may lie on a file server and the workers on other machines: start each there with --work NUMBER --folder F,
where F is the run's folder that this program makes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twostep import (
    PolicyStore,
    PPOOptimizer,
    RolloutCollector,
    combine_rollouts,
    load_rollouts,
    make_env,
    make_policy,
    save_rollouts,
)

WORKERS = 2


def work(folder: Path, number: int) -> None:
    """Collect one rollout with every policy that appears in the folder, until it is told that all is done."""
    store, last = PolicyStore(folder / "policies"), ""
    policy = make_policy(vecenv := make_env("CartPole-v1", num_envs=4))
    collector = RolloutCollector(vecenv, policy, num_steps=128, seed=number, env_seed=number)
    while not (folder / "done").exists():
        newest = max(store.records(), key=lambda record: record.name, default=None)
        if newest is None or newest.name == last:
            time.sleep(0.01)
            continue
        policy.load_state_dict((learned := newest.policy()).state_dict())
        policy.version, last = learned.version, newest.name
        save_rollouts(collector.rollout(), folder / f"{last}_{number}.safetensors")


def learn(folder: Path, steps: int) -> None:
    """Publish the policy, wait for a rollout of every worker, learn from all of them together, and again."""
    learner, store = PPOOptimizer(make_policy(make_env("CartPole-v1"), seed=0)), PolicyStore(folder / "policies")
    for update in range(-(-steps // (WORKERS * 4 * 128))):
        name = store.save(f"update_{update:06d}", learner.policy).name
        files = [folder / f"{name}_{number}.safetensors" for number in range(WORKERS)]
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        metrics = learner.update(combine_rollouts(map(load_rollouts, files)))  # its version: the ratio is exact
        print(f"{name}: ratio error {metrics['ratio_error']:.0e}, explained {metrics['explained_variance']:.2f}")
    (folder / "done").touch()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="where all meet; a new folder in it for every run")
    parser.add_argument("--work", type=int)
    options = parser.parse_args()
    if options.work is not None:
        work(options.folder, options.work)
    else:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            command = [sys.executable, __file__, "--folder", folder, "--work"]
            workers = [subprocess.Popen([*command, str(number)]) for number in range(WORKERS)]
            learn(Path(folder), options.steps)
            for worker in workers:
                worker.wait()
