"""A policy as one file that runs without twostep and without torch: ONNX, checked against the policy it came from."""

from twostep.export.deployed import Deployed, Port
from twostep.export.files import Exported, export_policy
from twostep.export.parity import Parity

__all__ = ["Deployed", "Exported", "Parity", "Port", "export_policy"]
