"""Matches that one can watch: a page that plays in any browser, and an animation for everywhere else."""

from twostep.replay.page import write_page

__all__ = ["write_page"]
