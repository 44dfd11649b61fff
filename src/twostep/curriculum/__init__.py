"""What is played when: task sources that go on from how earlier episodes went.

All follow `twostep.protocols.Curriculum`: `get_task` before an episode, `complete_task` with its score after it.
"""

from __future__ import annotations

from twostep.curriculum.drawn import LearningProgressCurriculum, LowRewardCurriculum, UniformCurriculum
from twostep.curriculum.levels import StagedCurriculum, SuccessRateCurriculum
from twostep.curriculum.settings import CurriculumConfig, make_curriculum
from twostep.curriculum.terrain import TerrainGrid

__all__ = [
    "CurriculumConfig",
    "LearningProgressCurriculum",
    "LowRewardCurriculum",
    "StagedCurriculum",
    "SuccessRateCurriculum",
    "TerrainGrid",
    "UniformCurriculum",
    "make_curriculum",
]
