"""Phase one: a policy and an environment make a `RolloutBuffer`. Never imports `twostep.learn`."""
