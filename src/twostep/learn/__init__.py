"""Phase two: a `RolloutBuffer` makes a better policy. Never imports `twostep.collect`."""
