"""A student learns to act as a teacher does, on the student's own ways and from what the student sees (DAgger)."""

from twostep.distill.distiller import Distiller
from twostep.distill.lessons import Lesson, Lessons
from twostep.distill.mixture import Mixture, teacher_for

__all__ = ["Distiller", "Lesson", "Lessons", "Mixture", "teacher_for"]
