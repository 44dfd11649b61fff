"""Policies: encoders, memory, distributions, and the default actor-critic made of them."""
