"""Environments that come with twostep. They import numpy and Gymnasium, never torch."""
