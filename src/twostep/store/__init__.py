"""Policies that are kept: saved, listed, chosen by a URI, and built again from what was saved alone."""

from twostep.store.architecture import described
from twostep.store.policies import SELECTORS, PolicyStore
from twostep.store.record import PolicyRecord

__all__ = ["SELECTORS", "PolicyRecord", "PolicyStore", "described"]
