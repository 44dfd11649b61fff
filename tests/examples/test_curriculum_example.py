"""What is shown of curricula runs as it stands: the example, the page, and the benchmark in small."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from twostep import TrainingConfig, UniformCurriculum, make_env, make_policy
from twostep.curriculum import make_curriculum

ROOT = Path(__file__).parents[2]


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_short_locks_open_the_long_one(capsys: pytest.CaptureFixture[str]) -> None:
    """J42: the example's curriculum wins; the long lock alone teaches nothing in as many steps."""
    opened = loaded("examples/curriculum_training.py").main()
    assert opened == {"short locks first": 1.0, "the whole lock at once": 0.0}
    assert "opens 100% of 8-dial locks" in capsys.readouterr().out


def test_the_page_runs(tmp_path: Path) -> None:
    """J42: its Python and its YAML describe the same curriculum."""
    page = (ROOT / "docs" / "curriculum.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (settings,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/curriculum.md", "exec"), names)
    assert names["history"]["curriculum/attempts/short"][-1] > 0
    (tmp_path / "lock.yaml").write_text(settings, encoding="utf-8")
    config = TrainingConfig.from_yaml(tmp_path / "lock.yaml")
    described = make_curriculum(config.curriculum)
    assert type(described) is type(names["trainer"].curriculum)
    assert config.curriculum.tasks == names["tasks"]


def test_the_benchmark_measures_what_it_says() -> None:
    """The exact chance is that of drawing all right numbers; every kind trains."""
    benchmark = loaded("benchmarks/curriculum.py")
    env = make_env(lambda: benchmark.CombinationLock(2), 1)
    assert benchmark.chance_to_open(make_policy(env, seed=0), 2) == pytest.approx(1 / 16, abs=0.02)
    for kind in benchmark.KINDS:
        curve = benchmark.train(kind, 0, dials=2, steps=512)
        assert curve[0][0] == 0
        assert curve[-1][0] == 512
        assert all(0 < chance < 1 for _, chance in curve)
    assert isinstance(benchmark.curriculum("uniform", 2, 0), UniformCurriculum)
