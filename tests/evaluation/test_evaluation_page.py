"""What docs/evaluation.md shows is what the library does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from twostep import PolicyStore, PPOTrainer, make_env
from twostep.config.suites import load_suite

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_every_block_of_the_page_runs(tmp_path, monkeypatch, small_policy):
    """M1, M13: the Python as it stands, the YAML as a suite."""
    monkeypatch.chdir(tmp_path)
    env = make_env("CartPole-v1", 2)
    policy = small_policy(env)
    trainer = PPOTrainer(policy, env, rollout_steps=8)
    trainer.save_checkpoint("runs/mine/checkpoints/step_0")
    PolicyStore("runs/mine/policies").save("kept", policy, {"eval_scores": {"maze": 1.0}})
    names: dict[str, Any] = {"policy": policy}
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert 5 < names["scores"].score < 500
    (suite,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    Path("walking.yaml").write_text(suite)
    assert list(load_suite("walking.yaml").resolved()) == ["flat/slow", "flat/fast", "hills/slow"]
