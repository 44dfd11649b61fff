import pytest

pytest.importorskip("mujoco", reason="the world of walking robots needs MuJoCo")
