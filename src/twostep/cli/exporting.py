"""`twostep export`: a trained agent as one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostep.cli.options import ExportRequest
from twostep.cli.trained import find_policy
from twostep.errors import ConfigError

if TYPE_CHECKING:
    from twostep.export import Exported
    from twostep.store import PolicyRecord

FILE = "policy.onnx"


def run_export(request: ExportRequest) -> int:
    """Write the file, check it, and say what goes into it and what comes out; return the exit code."""
    from twostep.export import export_policy
    from twostep.export.files import require_packages

    require_packages()
    folder, record = find_policy(request.what)
    if request.out is None and folder is None:
        raise ConfigError(f"{request.what} is in no run's folder: say where the file goes, --out {FILE}.")
    target = Path(request.out) if request.out is not None else Path(folder or ".") / FILE
    about = _about(record)
    exported = export_policy(record.policy(), target, masks=request.masks, about=about, inputs=request.inputs)
    print(_in_words(exported, record))
    return 0


def _about(record: PolicyRecord) -> dict[str, Any]:
    """Return what is known of a policy, its observation statistics included: which saved state they are of."""
    return {"uri": record.uri, "saved_at_ns": record.saved_at, **record.metadata}


def _in_words(exported: Exported, record: PolicyRecord) -> str:
    size = exported.path.stat().st_size / 1024
    step = record.metadata.get("agent_step")
    of_step = f" after {step:,} steps" if isinstance(step, int) else ""
    lines = [f"{exported.path}: {record.name}{of_step}, {size:,.0f} KiB"]
    lines += [f"  in   {port}" for port in exported.inputs]
    lines += [f"  out  {port}" for port in exported.outputs]
    return "\n".join([*lines, f"Under onnxruntime it does what PyTorch does: {exported.parity}."])
