"""Matches that one can watch: a page that plays in any browser, and a film for everywhere else."""

from twostep.replay.animation import write_animation
from twostep.replay.files import read_replay
from twostep.replay.page import write_page

__all__ = ["read_replay", "write_animation", "write_page"]
